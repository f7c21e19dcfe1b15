"""A partition's log in memory that satisfies `CrashingLog`.

A record is one number; a batch holds one record. The epoch cache has the rules of `LeaderEpochs`.
"""

from __future__ import annotations

from bisect import bisect_right
from random import Random
from struct import Struct
from typing import Final

from klamm.core.errors import LogEndMovedError
from klamm.core.log.errors import FencedLeaderEpochError, InvalidRecordError
from klamm.core.records.epoch_end import EpochRange
from klamm.core.records.offset_and_epoch import OffsetAndEpoch

from .crashing_log import OnCommitted
from .violation import ViolationError

_BATCH: Final = Struct(">qiq")
"""Offset, leader epoch, value."""
NO_ROLE: Final = ("rest", -1)


class MemoryLog:
    """`on_committed(first, end)` is called when the high watermark moves, before consumers can read the records."""

    recovery_cut_more: Final = False

    def __init__(self, name: str, on_committed: OnCommitted | None = None) -> None:
        self.name = name
        self.values: list[int] = []
        self.epochs_of: list[int] = []
        self.log_start_offset = self.log_end_offset = 0
        self.high_watermark = 0
        self.flushed_offset = 0
        self._checkpoint = 0
        self.leader_epoch = -1
        """The last of `_epochs`."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._role: tuple[str, int] = NO_ROLE
        self._term = 0
        self._on_committed = on_committed
        self._offsets: dict[int, int] = {}

    # -- bounds --------------------------------------------------------------------------------------------------

    @property
    def reported_end_offset(self) -> int:
        return self.log_end_offset

    @property
    def last_record_epoch(self) -> int:
        return self.epochs_of[-1] if self.epochs_of else -1

    def epoch_entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch == -1 or epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        index = bisect_right(self._epochs, epoch)
        return (self._epochs[index - 1] if index else epoch), self._starts[index]

    def epoch_ranges(self, *, exact: bool) -> tuple[EpochRange, ...]:
        found = map(EpochRange, self._epochs, self._starts, [*self._starts, self.log_end_offset][1:])
        return tuple(each for each in found if each.start < each.end)

    def offset_of(self, value: int) -> int | None:
        """Returns the offset of the record with this value, as a producer's state recognises a retry."""
        return self._offsets.get(value)

    def value_at(self, offset: int) -> int | None:
        index = offset - self.log_start_offset
        return self.values[index] if 0 <= index < len(self.values) else None

    def records_from(self, offset: int) -> list[tuple[int, int]]:
        """Returns (epoch, value) of each record from `offset` on."""
        first = offset - self.log_start_offset
        return list(zip(self.epochs_of[first:], self.values[first:], strict=True))

    # -- roles and appends ---------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> None:
        self._role = ("lead", leader_epoch)
        self._assign(leader_epoch, self.log_end_offset)

    def follow(self, leader_epoch: int) -> int:
        self._role = ("follow", leader_epoch)
        self._term += 1
        return self._term

    def mirror(self, leader_epoch: int) -> int:
        return self.follow(leader_epoch)  # a replica's appends in a new term, as far as this log can tell

    def rest(self) -> None:
        self._role = NO_ROLE

    def append(self, value: int, leader_epoch: int, after: OffsetAndEpoch | None = None) -> int:
        """Appends a client's record and returns its offset; with `after` only if the log ends there."""
        self._check_role(("lead", leader_epoch))
        if after is not None:
            self._check_ends(after)
        self._store(leader_epoch, value)
        return self.log_end_offset - 1

    def append_as_follower(self, records: bytes, leader_epoch: int, term: int | None = None) -> None:
        self._check_role(("follow", leader_epoch), term)
        for offset, epoch, value in _BATCH.iter_unpack(records):
            if offset != self.log_end_offset:
                raise InvalidRecordError(f"{self.name}: a batch at {offset}, but the log ends at {self.log_end_offset}")
            if not self.leader_epoch <= epoch <= leader_epoch:
                raise InvalidRecordError(f"{self.name}: a batch of epoch {epoch} after {self.leader_epoch}")
            self._store(epoch, value)

    def read(self, offset: int, count: int) -> bytes:
        """Returns at most `count` batches from `offset` on."""
        first = offset - self.log_start_offset
        return b"".join(
            _BATCH.pack(offset + index, self.epochs_of[first + index], self.values[first + index])
            for index in range(min(count, len(self.values) - first))
        )

    def _check_ends(self, expected: OffsetAndEpoch) -> None:
        end = OffsetAndEpoch(self.log_end_offset, self.last_record_epoch)
        if not expected.is_end(end):
            raise LogEndMovedError(f"{self.name}: the log ends at {end}, not at {expected}")

    def _check_role(self, wanted: tuple[str, int], term: int | None = None) -> None:
        if self._role != wanted:
            raise FencedLeaderEpochError(f"{self.name}: {wanted} is required, but the role is {self._role}")
        if term is not None and term != self._term:
            raise FencedLeaderEpochError(f"{self.name}: a change of term {term}, but the term is {self._term}")

    def _store(self, epoch: int, value: int) -> None:
        if self.epochs_of and epoch < self.epochs_of[-1]:
            raise ViolationError(f"epochs fall along the log of {self.name}: {epoch} after {self.epochs_of[-1]}")
        self._assign(epoch, self.log_end_offset)
        self._offsets[value] = self.log_end_offset
        self.log_end_offset += 1
        self.values.append(value)
        self.epochs_of.append(epoch)

    def _assign(self, epoch: int, start: int) -> None:
        if epoch > self.leader_epoch:
            self.leader_epoch = epoch
            self._epochs.append(epoch)
            self._starts.append(start)

    # -- watermark, start, truncation ----------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        end = min(offset, self.log_end_offset)
        if end <= self.high_watermark:
            return False
        if self._on_committed is not None:
            self._on_committed(self.high_watermark, end)
        self.high_watermark = end
        return True

    def advance_log_start(self, offset: int) -> None:
        offset = min(offset, self.log_end_offset)
        drop = offset - self.log_start_offset
        if drop <= 0:
            return
        del self.values[:drop], self.epochs_of[:drop]
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.flushed_offset = max(self.flushed_offset, offset)
        index = bisect_right(self._starts, offset) - 1
        if index >= 0:
            self._epochs, self._starts = self._epochs[index:], [offset, *self._starts[index + 1 :]]

    def truncate_to(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        self._check_role(("follow", leader_epoch), term)
        self._cut(offset)
        self._cut_epochs(offset)

    def _cut(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            return
        del self.values[offset - self.log_start_offset :], self.epochs_of[offset - self.log_start_offset :]
        self.log_end_offset = offset
        self._offsets = {value: place for value, place in self._offsets.items() if place < offset}
        self.high_watermark = min(self.high_watermark, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self._checkpoint = min(self._checkpoint, offset)

    def _cut_epochs(self, offset: int) -> None:
        keep = sum(start < offset for start in self._starts)
        del self._epochs[keep:], self._starts[keep:]
        self.leader_epoch = self._epochs[-1] if self._epochs else -1

    def restart_at(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        self._check_role(("follow", leader_epoch), term)
        self.values, self.epochs_of, self._offsets = [], [], {}
        self._epochs, self._starts, self.leader_epoch = [], [], -1
        self.log_start_offset = self.log_end_offset = self.high_watermark = offset
        self.flushed_offset = self._checkpoint = offset

    # -- disk ----------------------------------------------------------------------------------------------------

    def flush(self, offset: int) -> None:
        self.flushed_offset = max(self.flushed_offset, offset)

    def checkpoint(self) -> None:
        self._checkpoint = self.high_watermark

    def stop(self) -> None:
        self.flush(self.log_end_offset)
        self.checkpoint()
        self.rest()

    def crash(self, random: Random) -> None:
        """Ends the process; the page cache and so all records survive. The watermark is that of the checkpoint, or
        later; an epoch without records may be forgotten.
        """
        self._role = NO_ROLE
        self.high_watermark = max(
            self.log_start_offset,
            random.randint(min(self._checkpoint, self.high_watermark), self.high_watermark),
        )
        if random.random() < 0.5:
            self._cut_epochs(self.log_end_offset)

    def lose_power(self, random: Random) -> int:
        """Loses a suffix of the unflushed records; returns how many records were lost."""
        self.crash(random)
        end = self.log_end_offset
        offset = random.randint(min(self.flushed_offset, end), end)
        self._cut(offset)
        self._cut_epochs(offset)
        return end - self.log_end_offset

    def fail_flush(self, random: Random) -> int:
        return self.lose_power(random)
