"""Announces that this broker's disk is full, and later that it has space again. While it is full, other brokers lead,
and no request waits for this one's replicas.

The state is in the registration (`Cluster.set_full`); the controller then acts, by the rules of
`core.replication.elections`. The logs stay open and serve what they have. Whether the disk has space is tested at
growing intervals, which start longer if the disk was full a short time ago: a disk that fills up again at once must
not move leaders each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ...cluster.cluster import Cluster
from ...errors import KlammError
from ...log.disk_space import DiskSpace
from ...records.partition import some_of
from ..workers import Workers

_log = logging.getLogger(__name__)
FIRST_TRY_S: Final = 1.0
_LONGEST_S: Final = 5.0
_LONGEST_AFTER_RELAPSES_S: Final = 60.0
_RELAPSE_S: Final = 60.0
_LINES_S: Final = 60.0


class RegisteredDisk:
    """Whether this broker's registration says that its disk is full, as far as is known. Without I/O."""

    def __init__(self) -> None:
        self._full: bool | None = False
        """None: a write was not answered, and is repeated whatever is wanted."""

    def differs(self, full: bool) -> bool:
        """Returns True if the registration has to be written."""
        return self._full is not full

    def writing(self) -> None:
        """Called before a write."""
        self._full = None

    def written(self, full: bool) -> None:
        """Called after a write that was answered."""
        self._full = full


class FullDisk:
    """Belongs to the event loop. `on_space` is called when the disk has space again."""

    def __init__(self, space: DiskSpace, cluster: Cluster, workers: Workers, on_space: Callable[[], None]) -> None:
        self._space = space
        self._cluster = cluster
        self._workers = workers
        self._on_space = on_space
        self._loop = asyncio.get_running_loop()
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._registered = RegisteredDisk()
        self._relapses = 0
        self._over_at = float("-inf")
        self._said_at = float("-inf")

    def start(self) -> None:
        self._space.on_full = self._on_full
        if self._space.is_full:
            self._full.set()
        self._task = self._loop.create_task(self._run())

    def _on_full(self) -> None:
        self._loop.call_soon_threadsafe(self._full.set)

    async def stop(self) -> None:
        self._space.on_full = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._full.wait()
            self._full.clear()
            relapsed = self._loop.time() - self._over_at < _RELAPSE_S
            self._relapses = self._relapses + 1 if relapsed else 0
            try:
                await self._until_room(min(FIRST_TRY_S * 2**self._relapses, _LONGEST_AFTER_RELAPSES_S))
            except Exception as error:  # it must go on, or the disk would count as full for ever
                _log.exception("checking the full disk failed, retrying: %s", error)
                await asyncio.sleep(_LONGEST_S)
                self._full.set()

    async def _until_room(self, delay_s: float) -> None:
        said = False
        while True:
            await self._register(full=True)
            said = self._say_full() or said
            await asyncio.sleep(delay_s)
            if await self._workers.disk(self._space.has_space):
                break
            delay_s = max(delay_s, min(delay_s * 2, _LONGEST_S))
        self._space.clear()
        self._over_at = self._loop.time()
        if said:
            _log.info("the disk has space again, its partitions accept records")
        while self._registered.differs(False) and not self._space.is_full:
            if not await self._register(full=False):
                await asyncio.sleep(FIRST_TRY_S)
        self._on_space()

    async def _register(self, *, full: bool) -> bool:
        """Writes the state to the registration if it differs; returns False if it must be tried again."""
        if not self._registered.differs(full):
            return True
        if full and len(self._cluster.image().brokers) < 2:  # no other broker can take over
            return False
        self._registered.writing()
        try:
            await self._workers.coordination(self._cluster.set_full, full)
        except KlammError as error:
            _log.info("the state of this broker's disk could not be reported, retrying: %s", error)
            return False
        self._registered.written(full)
        return True

    def _say_full(self) -> bool:
        """Logs one line a minute at most; returns True if it did."""
        now = self._loop.time()
        if now - self._said_at < _LINES_S:
            return False
        self._said_at = now
        refused = self._space.refused
        _log.error(
            "the disk is full: %s; writes of %s have failed so far; stored records are served, and brokers with space "
            "lead meanwhile, if there are any",
            self._space.why, some_of(refused) or "no partition",
        )  # fmt: skip
        return True
