"""The start of a whole cluster: the first broker that is back waits a while for the others before it elects.

Alone it cannot know whether the coordination was restored from an older backup (docs/replication.md, R13): it may have
been out of sync at the end, and in sync in the backup. One of the others has seen changes that the backup lacks. So
elections of partitions with absent replicas are postponed, for twice the session time-out from the first registration
of this process, and no longer, since a broker may never return. They are not postponed if brokers that registered
earlier make changes: the cluster is running.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...replication.partition_state import NO_EPOCH


class ColdStart:
    """One process's view. `clock` is monotonic, in seconds."""

    def __init__(self, writer: str, wait_s: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """The names of this broker's own changes begin with `writer`."""
        self._writer = writer
        self._wait_s = wait_s
        self._clock = clock
        self._first: int | None = None
        self._first_epoch = NO_EPOCH
        self._until = 0.0
        self._over = False
        self.broker_epoch = NO_EPOCH
        """The epoch of this broker's last registration: states of this or a later epoch were made since the cluster
        started."""

    def registered(self, broker_epoch: int, version: int) -> None:
        """Starts the wait with the first registration of this process, when the metadata were at `version`; later
        registrations only set another broker epoch."""
        self.broker_epoch = broker_epoch
        if self._first is None:
            self._first, self._first_epoch = version, broker_epoch
            self._until = self._clock() + self._wait_s()

    def saw(self, version: int, by: str, writer_epoch: int | None) -> None:
        """Records a change of the metadata by a broker that is registered with `writer_epoch`, None if it is not
        registered.

        Elections are no longer postponed if it is another broker that registered before this one: the cluster is
        running. One that registered later proves nothing about the absent replicas: it is starting, too.
        """
        if self._first is None or version <= self._first or by.startswith(self._writer):
            return
        self._over = self._over or (writer_epoch is not None and writer_epoch < self._first_epoch)

    def left_s(self) -> float:
        """Returns for how many seconds elections are still postponed; 0 if they are not."""
        if self._first is None or self._over:
            return 0.0
        return max(0.0, self._until - self._clock())

    def held_below(self) -> int:
        """Returns the broker epoch below which states are from before the start of the cluster; `NO_EPOCH` once
        elections are no longer postponed."""
        return self.broker_epoch if self.left_s() > 0 else NO_EPOCH
