"""The start of a whole cluster: the first broker that is back waits a while for the others before it elects.

Alone it cannot know whether the coordination was restored from an older backup (R13): it may be the one that was out of
sync at the end, and in sync in the backup. One of the others has seen changes that the backup lacks. So partitions with
replicas that are not back wait, for twice the session time-out from the first registration of this process; no longer,
since a broker may be gone for good. They do not wait if a leader from before is at work: the cluster is running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ...replication.partition_state import NO_EPOCH, PartitionState


class ColdStart:
    """One process's view. `clock` is monotonic, in seconds."""

    def __init__(self, writer: str, wait_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`writer` begins the names of this broker's own changes."""
        self._writer = writer
        self._wait_s = wait_s
        self._clock = clock
        self._first: int | None = None
        self._until = 0.0
        self._over = False
        self.broker_epoch = NO_EPOCH
        """That of the last registration: states from it on were made in this life of the cluster."""

    def registered(self, broker_epoch: int, version: int) -> None:
        """Begins with the first registration of this process, when the metadata were at `version`; later ones make
        another broker epoch."""
        self.broker_epoch = broker_epoch
        if self._first is None:
            self._first = version
            self._until = self._clock() + self._wait_s()

    def saw(self, version: int, by: str, changed: Iterable[tuple[PartitionState | None, PartitionState]]) -> None:
        """Takes note of a change of the metadata; `changed` are states before and after it.

        Elections are held no more if another broker has made it since, and a leader from before this registration leads
        on: the cluster is running. A leader that was elected meanwhile proves nothing of the replicas that are absent.
        """
        if self._first is None or version <= self._first or by.startswith(self._writer):
            return
        self._over = self._over or any(map(self._leads_on, changed))

    def _leads_on(self, change: tuple[PartitionState | None, PartitionState]) -> bool:
        before, after = change
        if before is None or before == after or not NO_EPOCH < after.leader_broker_epoch < self.broker_epoch:
            return False
        return before.leader_broker_epoch == after.leader_broker_epoch

    def left_s(self) -> float:
        """Returns for how long elections are still held; 0 if they are not."""
        if self._first is None or self._over:
            return 0.0
        return max(0.0, self._until - self._clock())

    def held_below(self) -> int:
        """Returns the broker epoch before which states are of an earlier life of the cluster; `NO_EPOCH` if they are
        not held any more."""
        return self.broker_epoch if self.left_s() > 0 else NO_EPOCH
