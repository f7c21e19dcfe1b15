"""A partition's log in memory that may have gaps, as a mirror's has: what replication needs of it, and how it crashes.

A record is one number; a batch holds one record. The epoch cache has the rules of `LeaderEpochs`. The number says what
the record is in a transaction (`change_of`); a transaction is open while the log has a record of it and no marker.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from random import Random
from struct import Struct
from typing import Final, NamedTuple

from klamm.core.log.errors import FencedLeaderEpochError, InvalidRecordError
from klamm.core.records.epoch_end import EpochRange

from .violation import ViolationError

BATCH: Final = Struct(">qiq")
"""Offset, leader epoch, value."""
NO_ROLE: Final = ("rest", -1)


_OWN_MARKER: Final = 3 * 10**9
PRODUCERS: Final = 3


class Change(NamedTuple):
    """What a record does to a transaction of its producer."""

    producer: int
    ends: bool


def change_of(value: int) -> Change | None:
    """Returns None for a record without a transaction. Of twelve values in a row of the source, three are records of a
    transaction, one of each producer, and three are markers."""
    if is_own_marker(value):
        return Change(abs(value) % PRODUCERS, True)
    kind = value // PRODUCERS % 4 if value > 0 else -1
    return Change(value % PRODUCERS, kind == 1) if kind in (0, 1) else None


def is_own_marker(value: int) -> bool:
    """Returns True for a marker that a mirror's leader has written into a gap; it is negative where that was."""
    return abs(value) >= _OWN_MARKER


class Stored(NamedTuple):
    offset: int
    epoch: int
    value: int


def records_in(data: bytes) -> list[Stored]:
    return [Stored(*found) for found in BATCH.iter_unpack(data)]


def packed(records: list[Stored]) -> bytes:
    return b"".join(BATCH.pack(*record) for record in records)


class MirrorLog:
    def __init__(self, name: str) -> None:
        self.name = name
        self.records: list[Stored] = []
        self.log_start_offset = self.log_end_offset = self.high_watermark = 0
        self.flushed_offset = 0
        self.entries: list[tuple[int, int]] = []
        """Each epoch of the epoch cache with its start offset."""
        self.role: tuple[str, int] = NO_ROLE
        self.term = 0
        self.began = 0
        """Where it began when nothing of it was left, or it had no record."""

    @property
    def reported_end_offset(self) -> int:
        return self.log_end_offset

    @property
    def leader_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    @property
    def last_record_epoch(self) -> int:
        return self.epoch_at(self.log_end_offset - 1) if self.log_end_offset > self.log_start_offset else -1

    def epoch_at(self, offset: int) -> int:
        index = bisect_right([start for _, start in self.entries], offset) - 1
        return self.entries[index][0] if index >= 0 else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch == -1 or epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        index = bisect_right([found for found, _ in self.entries], epoch)
        return (self.entries[index - 1][0] if index else epoch), self.entries[index][1]

    def epoch_ranges(self, *, exact: bool) -> tuple[EpochRange, ...]:
        ends = [*(start for _, start in self.entries), self.log_end_offset][1:]
        if exact:
            ends = [self.records[at - 1].offset + 1 if (at := self._index(end)) else 0 for end in ends]
        found = (EpochRange(*entry, end) for entry, end in zip(self.entries, ends, strict=True))
        return tuple(each for each in found if each.start < each.end)

    def _index(self, offset: int) -> int:
        return bisect_left(self.records, (offset,))

    def between(self, start: int, end: int) -> list[Stored]:
        return self.records[self._index(start) : self._index(end)]

    def at(self, offset: int) -> Stored | None:
        found = self.between(offset, offset + 1)
        return found[0] if found else None

    def read(self, offset: int, count: int) -> bytes:
        first = self._index(offset)
        return packed(self.records[first : first + count])

    def open_transactions(self) -> dict[int, int]:
        """Returns the first offset of each open transaction by producer, in the order of these offsets."""
        found: dict[int, int] = {}
        for record in self.records:
            if (change := change_of(record.value)) is None:
                continue
            if change.ends:
                found.pop(change.producer, None)
            else:
                found.setdefault(change.producer, record.offset)
        return found

    # -- roles and appends ---------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> None:
        self.role = ("lead", leader_epoch)
        self._assign(leader_epoch, self.log_end_offset)

    def follow(self, leader_epoch: int) -> int:
        self.role, self.term = ("follow", leader_epoch), self.term + 1
        return self.term

    def mirror(self, leader_epoch: int) -> int:
        self.role, self.term = ("mirror", leader_epoch), self.term + 1
        return self.term

    def rest(self) -> None:
        self.role = NO_ROLE

    def append(self, value: int, leader_epoch: int) -> int:
        """Appends a client's record and returns its offset."""
        if self.role != ("lead", leader_epoch):
            raise FencedLeaderEpochError(f"{self.name}: a client's record in epoch {leader_epoch} as {self.role}")
        self._store(Stored(self.log_end_offset, leader_epoch, value))
        return self.log_end_offset - 1

    def append_as_follower(self, records: bytes, leader_epoch: int, term: int | None = None) -> None:
        self.check_follows(leader_epoch, term)
        for record in records_in(records):
            if record.offset < self.log_end_offset:
                raise InvalidRecordError(f"{self.name}: a batch at {record.offset}, below {self.log_end_offset}")
            if not self.leader_epoch <= record.epoch <= leader_epoch:
                raise InvalidRecordError(f"{self.name}: a batch of epoch {record.epoch} in epoch {leader_epoch}")
            self._store(record)

    def abort_in_gap(self, end: int, epoch: int, leader_epoch: int, term: int | None = None) -> int:
        self.check_follows(leader_epoch, term)
        producers = list(self.open_transactions())[: end - self.log_end_offset]
        for offset, producer in enumerate(producers, end - len(producers)):
            self._store(Stored(offset, epoch, -_OWN_MARKER - producer))
        return len(producers)

    def check_follows(self, leader_epoch: int, term: int | None) -> None:
        if self.role not in (("follow", leader_epoch), ("mirror", leader_epoch)):
            raise FencedLeaderEpochError(f"{self.name}: a change in epoch {leader_epoch} as {self.role}")
        if term is not None and term != self.term:
            raise FencedLeaderEpochError(f"{self.name}: a change of term {term}, but the term is {self.term}")

    def _store(self, record: Stored) -> None:
        if self.records and record.epoch < self.records[-1].epoch:
            raise ViolationError(f"epochs fall along the log of {self.name}: {record}")
        self._assign(record.epoch, record.offset)
        self.records.append(record)
        self.log_end_offset = record.offset + 1

    def _assign(self, epoch: int, start: int) -> None:
        if epoch > self.leader_epoch:
            self.entries.append((epoch, start))

    # -- watermark, start, truncation ----------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int) -> bool:
        end = min(offset, self.log_end_offset)
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    def advance_log_start(self, offset: int) -> None:
        offset = min(offset, self.log_end_offset)
        if offset <= self.log_start_offset:
            return
        del self.records[: self._index(offset)]
        self.log_start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.flushed_offset = max(self.flushed_offset, offset)
        index = bisect_right([start for _, start in self.entries], offset) - 1
        if index >= 0:
            self.entries = [(self.entries[index][0], offset), *self.entries[index + 1 :]]

    def truncate_to(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        self.check_follows(leader_epoch, term)
        self._cut(offset)

    def _cut(self, offset: int) -> None:
        if offset < self.log_end_offset:
            del self.records[self._index(offset) :]
            self.log_end_offset = self.records[-1].offset + 1 if self.records else self.log_start_offset
            self.high_watermark = min(self.high_watermark, self.log_end_offset)
            self.flushed_offset = min(self.flushed_offset, self.log_end_offset)
        self.entries = [entry for entry in self.entries if entry[1] < offset]

    def keep_below(self, offset: int) -> None:
        """Removes what is not below the offset, without a role; all of it if the log starts above."""
        if offset < self.log_start_offset:
            self.records, self.entries = [], []
            self.log_start_offset = self.log_end_offset = self.high_watermark = self.flushed_offset = offset
            self.began = offset
        else:
            self._cut(offset)

    def copy(self, name: str) -> MirrorLog:
        """Returns another replica with the same records."""
        found = MirrorLog(name)
        found.records, found.entries = list(self.records), list(self.entries)
        found.log_start_offset, found.log_end_offset = self.log_start_offset, self.log_end_offset
        found.high_watermark = self.high_watermark
        found.flushed_offset = self.log_end_offset
        return found

    def restart_at(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        self.check_follows(leader_epoch, term)
        if not self.records or self.role[0] == "follow":
            self.began = offset
        self.records, self.entries = [], []
        self.log_start_offset = self.log_end_offset = self.high_watermark = self.flushed_offset = offset

    # -- crashes -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.flushed_offset = self.log_end_offset

    def crash(self, random: Random) -> None:
        """Ends the process; the records survive, the watermark is an earlier one."""
        self.role = NO_ROLE
        self.high_watermark = random.randint(self.log_start_offset, self.high_watermark)
        if random.random() < 0.5:
            self._cut(self.log_end_offset)

    def lose_power(self, random: Random) -> None:
        """Loses a suffix of the unflushed records."""
        self.crash(random)
        first = min(self.flushed_offset, self.log_end_offset)
        self._cut(max(random.randint(first, self.log_end_offset), self.log_start_offset))
