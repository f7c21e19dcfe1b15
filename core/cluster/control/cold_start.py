"""The start of a whole cluster: the first broker that is back waits a while for the others before it elects.

Alone it cannot know whether the coordination was restored from an older backup (R13): it may be the one that was out of
sync at the end, and in sync in the backup. One of the others has seen changes that the backup lacks. So partitions with
replicas that are not back wait, for twice the session time-out from the first registration of this process; no longer,
since a broker may be gone for good. They do not wait if brokers that registered before make changes: the cluster is
running.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...replication.partition_state import NO_EPOCH


class ColdStart:
    """One process's view. `clock` is monotonic, in seconds."""

    def __init__(self, writer: str, wait_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`writer` begins the names of this broker's own changes."""
        self._writer = writer
        self._wait_s = wait_s
        self._clock = clock
        self._first: int | None = None
        self._first_epoch = NO_EPOCH
        self._until = 0.0
        self._over = False
        self.broker_epoch = NO_EPOCH
        """That of the last registration: states from it on were made in this life of the cluster."""

    def registered(self, broker_epoch: int, version: int) -> None:
        """Begins with the first registration of this process, when the metadata were at `version`; later ones make
        another broker epoch."""
        self.broker_epoch = broker_epoch
        if self._first is None:
            self._first, self._first_epoch = version, broker_epoch
            self._until = self._clock() + self._wait_s()

    def saw(self, version: int, by: str, writer_epoch: int | None) -> None:
        """Takes note of a change of the metadata by a broker that is registered with `writer_epoch`, None if it is not.

        Elections are held no more if it is another broker, which has registered before this one: the cluster is
        running. One that has registered since proves nothing of the replicas that are absent: it starts, too.
        """
        if self._first is None or version <= self._first or by.startswith(self._writer):
            return
        self._over = self._over or (writer_epoch is not None and writer_epoch < self._first_epoch)

    def left_s(self) -> float:
        """Returns for how long elections are still held; 0 if they are not."""
        if self._first is None or self._over:
            return 0.0
        return max(0.0, self._until - self._clock())

    def held_below(self) -> int:
        """Returns the broker epoch before which states are of an earlier life of the cluster; `NO_EPOCH` if they are
        not held any more."""
        return self.broker_epoch if self.left_s() > 0 else NO_EPOCH
