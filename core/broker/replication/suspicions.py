"""Notices brokers whose process has ended before their session expires (docs/replication.md, "A killed broker is
noticed before its session ends").

A killed process's sockets are reset at once, and its host refuses connections; the session continues. A broker that
is refused twice is reported to the controller, which connects too before it evicts. A false suspicion costs an
election, never a record.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from ...cluster.cluster import Cluster
from ...cluster.image import BrokerNode
from ...errors import KlammError
from ..workers import Workers

log = logging.getLogger(__name__)

_PAUSES_S: Final = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Seconds before each attempt to connect. A process that is killed closes its sockets one by one: its port may be open
for a moment after a connection of it has ended."""
_ENOUGH: Final = 2
"""Refusals in a row that make a broker suspect."""
_DIAL_S: Final = 1.0


def is_reachable(node: BrokerNode) -> bool:
    """Returns False if the broker's host refuses a connection; a host that does not answer may only be slow. Blocks."""
    endpoint = node.inter_broker_endpoint
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=_DIAL_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:
        return True


class Suspicions:
    """Belongs to the event loop. `brokers` returns the live brokers of the image in force."""

    def __init__(self, cluster: Cluster, workers: Workers, brokers: Callable[[], Mapping[int, BrokerNode]]) -> None:
        self._cluster = cluster
        self._workers = workers
        self._brokers = brokers
        self._checks: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        """Brokers of which a connection has ended since their check started."""
        self._stopped = False

    def check(self, broker_id: int) -> None:
        """Called when a connection to or from the broker has ended or was refused: connects a few times, and reports
        the broker once it is refused twice in a row."""
        if broker_id in self._checks:
            self._again.add(broker_id)
        elif broker_id in self._brokers() and not self._stopped:
            task = asyncio.get_running_loop().create_task(self._check(broker_id))
            self._checks[broker_id] = task
            task.add_done_callback(lambda _: self._checks.pop(broker_id, None))

    async def stop(self) -> None:
        self._stopped = True
        tasks = list(self._checks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, broker_id: int) -> None:
        node = self._brokers().get(broker_id)
        if node is None or node.registration.leaving:  # its registration may have ended since the call
            return
        while not await self._refuses(node):
            if broker_id not in self._again:
                return
            self._again.discard(broker_id)
        self._again.discard(broker_id)
        if self._cluster.is_retiring:
            return  # several brokers stop at once, and the controller's part is not this one's any more
        log.warning("broker %d refuses connections: the controller is asked to evict it", broker_id)
        try:
            await self._workers.coordination(self._cluster.suspect, broker_id, node.registration.incarnation)
        except KlammError as error:
            log.warning("broker %d could not be reported: %s", broker_id, error)

    async def _refuses(self, node: BrokerNode) -> bool:
        """Returns True once the broker has refused enough attempts in a row; False if it has not within all
        attempts."""
        refused = 0
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            refused = refused + 1 if await self._is_refused(node) else 0
            if refused == _ENOUGH:
                return True
        return False

    @staticmethod
    async def _is_refused(node: BrokerNode) -> bool:
        """Returns True if every address of the broker's name refuses: a name may have an IPv4 and an IPv6 address."""
        endpoint, loop = node.inter_broker_endpoint, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_DIAL_S):
                found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
                for host in dict.fromkeys(str(address[0]) for *_, address in found):
                    with suppress(ConnectionRefusedError):
                        _, writer = await asyncio.open_connection(host, endpoint.port)
                        writer.transport.abort()
                        return False
        except OSError:
            return False
        return True
