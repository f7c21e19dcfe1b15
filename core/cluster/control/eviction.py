"""Eviction of brokers that refuse connections, before their session times out.

A killed process refuses connections at once, but its session continues. A broker that is refused suspects its
registration; the controller connects too, and if it is refused as well, it ends the registration. A mistake costs an
election, never a record: the broker notices that its registration no longer exists and registers again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ...interfaces.coordination import Delete, NoNodeError
from ..brokers.reports import read_suspects
from ..image import BrokerNode, ClusterImage
from ..tree import paths
from ..tree.steps import Session, Steps, connects, transact

_log = logging.getLogger(__name__)


class Evictions:
    """The controller's part; `monotonic` returns seconds. The caller runs one sequence of steps at a time."""

    def __init__(self, session: Session, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._monotonic = monotonic
        self._evicted: dict[int, float] = {}
        """When a session's broker was evicted, by session."""

    def confirmed(self, image: ClusterImage) -> Steps[Mapping[int, BrokerNode]]:
        """Returns the suspected brokers that refuse this broker's connections too, and drops every other suspicion.

        A session is evicted at most once in a session time-out, so that a live broker that is suspected again and again
        still makes progress. A live one registers again in its session; one that was killed and restarted has a new
        session.
        """
        found = {}
        by_incarnation = {node.registration.incarnation: node for node in image.brokers.values()}
        for incarnation in (yield from read_suspects()):
            node = by_incarnation.get(incarnation)
            if node is not None and not self._is_recent(node) and not (yield from connects(node)):
                found[node.id] = node
            else:
                yield from self._forget(incarnation)
        return found

    def evicted(self, node: BrokerNode) -> Steps[None]:
        """Records that the broker was evicted now."""
        if node.registration.leaving:
            _log.info("broker %d has stopped listening, as it leaves: its registration is ended", node.id)
        else:
            _log.warning("broker %d refuses connections: its registration is ended before its session", node.id)
        self._evicted = {session: at for session, at in self._evicted.items() if self._is_within_time_out(at)}
        self._evicted[node.session_id] = self._monotonic()
        yield from self._forget(node.registration.incarnation)

    def _is_recent(self, node: BrokerNode) -> bool:
        return self._is_within_time_out(self._evicted.get(node.session_id, float("-inf")))

    def _is_within_time_out(self, evicted_at: float) -> bool:
        return self._monotonic() - evicted_at < self._session.session_timeout_s

    def _forget(self, incarnation: str) -> Steps[None]:
        with suppress(NoNodeError):  # the session of the broker that suspected is over
            yield from transact(Delete(paths.suspect(incarnation)))
