"""A log that a schedule's broker holds: what replication needs of it, what the invariants read, and how it crashes.

`MemoryLog` implements it, and `DiskLog` by a real `PartitionLog`. One suite holds both to the same behaviour
(tests/simulation/test_logs.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.replication.replica_log import ReplicaLog

OnCommitted = Callable[[int, int], None]
"""Called with (first, end) when the high watermark is about to move from `first` to `end`."""


class CrashingLog(ReplicaLog, Protocol):
    """A record is one number; a batch holds one record."""

    @property
    def values(self) -> Sequence[int]:
        """The records from the log start on."""
        ...

    @property
    def flushed_offset(self) -> int:
        """A power loss keeps the records below."""
        ...

    @property
    def recovery_cut_more(self) -> bool:
        """True if the last recovery has cut more than one unfinished write."""
        ...

    def epoch_entries(self) -> list[tuple[int, int]]:
        """Returns each epoch of the epoch cache with its start offset."""
        ...

    def offset_of(self, value: int) -> int | None:
        """Returns the offset of the record with this value, as a producer's state recognises a retry."""
        ...

    def value_at(self, offset: int) -> int | None: ...

    def records_from(self, offset: int) -> list[tuple[int, int]]:
        """Returns (epoch, value) of each record from `offset` on."""
        ...

    def append(self, value: int, leader_epoch: int, after: OffsetAndEpoch | None = None) -> int:
        """Appends a client's record and returns its offset. With `after` only if the log ends there; else raises
        `LogEndMovedError`."""
        ...

    def read(self, offset: int, count: int) -> bytes:
        """Returns at most `count` batches from `offset` on."""
        ...

    def flush(self, offset: int) -> None:
        """Makes the records below `offset`, and possibly later ones, durable."""
        ...

    def checkpoint(self) -> None:
        """Stores what a start after a crash begins with."""
        ...

    def stop(self) -> None:
        """Stops cleanly: flushes all and takes a checkpoint. The log accepts no append until it has a role again."""
        ...

    def crash(self, random: Random) -> None:
        """Ends the process (`kill -9`) and starts it again: every record survives."""
        ...

    def lose_power(self, random: Random) -> int:
        """Loses a suffix of the unflushed records; returns how many records were lost."""
        ...

    def fail_flush(self, random: Random) -> int:
        """Does as `lose_power`, after a flush has failed."""
        ...
