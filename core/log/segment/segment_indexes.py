"""Holds the indexes of a segment as a list: each operation applies to all of them.

Invariant: every `index.interval.bytes` of the log, the offset and the time index get an entry for the same batch;
the time index gets it only if the largest timestamp has grown. The transaction index gets an entry for each marker
that aborts a transaction; its file exists only if it has one. Not thread-safe: the log's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Final, NamedTuple, cast

from ...errors import CorruptRecordError
from .index_file import IndexFile, SegmentState
from .naming import OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, segment_file
from .offset_index import OffsetIndex
from .time_index import TimeIndex
from .transaction_index import TransactionIndex


class LargestTimestamp(NamedTuple):
    """The largest timestamp in the headers of a segment's batches, and the last offset of the first batch that has it;
    -1 and the base offset if no batch has a timestamp. librdkafka writes 0 for records without a timestamp, so
    `Segment.retention_time_ms` treats 0 as none."""

    timestamp_ms: int
    offset: int


new_largest: Final = cast(Callable[[type[LargestTimestamp], tuple[int, int]], LargestTimestamp], tuple.__new__)
"""Builds a `LargestTimestamp` at half the cost of calling the class: every batch with a new largest timestamp needs
one."""


class SegmentIndexes:
    """Writes, loads and clears all indexes together.

    `full`: an index has space for one last entry only, so the segment must be rolled; set by this class only.
    `bytes_since_entry`: bytes of the log since the last entry; the caller counts them, which saves a call for every
    append.
    """

    def __init__(self, directory: Path, base_offset: int, max_bytes: int, suffix: str = "") -> None:
        """Begins empty and in memory; `load` uses the files instead."""
        self.offsets = OffsetIndex(segment_file(directory, base_offset, OFFSET_INDEX + suffix), base_offset, max_bytes)
        self.times = TimeIndex(segment_file(directory, base_offset, TIME_INDEX + suffix), base_offset, max_bytes)
        self.transactions = TransactionIndex(
            segment_file(directory, base_offset, TRANSACTION_INDEX + suffix), base_offset
        )
        self.bytes_since_entry = 0
        self._base = base_offset
        self._take_full()

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """All indexes, in the order in which their files are written: `naming.INDEXES`."""
        return self.offsets, self.times, self.transactions

    # -- entries -------------------------------------------------------------------------------------------------

    @property
    def entries_left(self) -> int:
        """The number of entries that can be added before one of the indexes is full; at least 1."""
        return max(min(index.entries_left for index in (self.offsets, self.times)), 1)

    def add(self, last_offset: int, position: int, largest: LargestTimestamp) -> None:
        """Adds entries for the batch at `position`; `largest` is the largest timestamp up to and including that
        batch."""
        self.offsets.add(last_offset, position)
        self.times.add(largest.timestamp_ms, largest.offset)
        self.bytes_since_entry = 0
        self._take_full()

    def close(self, largest: LargestTimestamp) -> None:
        """Adds the last entry of the time index, which is the largest timestamp of the segment."""
        if largest.timestamp_ms >= 0:
            self.times.add(largest.timestamp_ms, largest.offset)
            self._take_full()

    def emptied(self) -> SegmentIndexes:
        """Returns new, empty indexes in memory for the same files, and does not change these. The transaction index is
        not emptied: a pass over the batches of one segment cannot restore it."""
        fresh = copy(self)
        fresh.offsets, fresh.times, fresh.transactions = copy(self.offsets), copy(self.times), copy(self.transactions)
        fresh.clear()
        fresh.transactions = self.transactions
        return fresh

    def clear(self) -> None:
        """Removes all entries; the files are stale until `seal` replaces them."""
        for index in self.files:
            index.clear()
        self.bytes_since_entry = 0
        self._take_full()

    def grow(self) -> None:
        """Reads the entries into memory, so that more can be added. Raises `CorruptRecordError` if a file is
        damaged."""
        for index in self.files:
            index.grow()
        self.bytes_since_entry = 0

    def _take_full(self) -> None:
        self.full = self.offsets.full or self.times.full  # the transaction index has no bound

    # -- the files -----------------------------------------------------------------------------------------------

    def load(self) -> SegmentState | None:
        """Uses the entries of the files, which stay on disk. Returns the state of the segment when all were written;
        None if one is missing or they have different states. Raises `CorruptRecordError` or `StorageError` if one
        cannot be used."""
        state = self.offsets.load()
        if state is None or state.next_offset < self._base or self.times.load() != state:
            return None
        self.transactions.clear()
        if state.aborted and (self.transactions.load() != state or len(self.transactions) != state.aborted):
            return None
        self._take_full()
        return state

    def contents(self, state: SegmentState) -> list[bytes | None]:
        """Returns the contents of the files for a segment in this state, and changes nothing; None for a file that has
        its content already."""
        return [index.encoded(state) for index in self.files]

    def write(self, contents: Sequence[bytes | None]) -> None:
        """Writes the result of `contents` without flushing it. The entries stay in memory."""
        for index, content in zip(self.files, contents, strict=True):
            if content is not None:
                index.write(content)

    def seal(self, state: SegmentState) -> None:
        """Writes the files and frees the memory, because no entry is expected for now. After `StorageError` an index
        that was not written is still in memory."""
        for index in self.files:
            index.seal(state)

    def stored_entries(self, state: SegmentState) -> list[tuple[int, int]]:
        """Returns last offset and position of each batch that the offset index's file names; empty if an index is in
        memory. Raises `CorruptRecordError` if one of the files is damaged or has another state of the segment."""
        if self.offsets.in_memory or self.times.in_memory:
            return []
        for index in self.files:
            if not index.in_memory and index.stored_state() != state:
                raise CorruptRecordError(f"{index.path} does not match the segment")
        return [(self._base + key, position) for key, position in self.offsets.stored_entries()]

    def take_names(self, directory: Path) -> None:
        """Renames files that were written under another suffix to the names of the log; raises OSError."""
        for index in self.files:
            index.rename(segment_file(directory, self._base, index.suffix))

    def remove(self) -> None:
        """Removes the files and all entries; raises OSError."""
        for index in self.files:
            index.remove()
        self._take_full()
