"""The two sparse indexes of a segment, which get their entries together.

Invariant: after `index.interval.bytes` of log both have an entry for the same batch, the time index only where the
largest timestamp grew. Not thread-safe: the log's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast

from ...errors import CorruptRecordError
from .index_file import SegmentState
from .naming import OFFSET_INDEX, TIME_INDEX, segment_file
from .offset_index import OffsetIndex
from .time_index import TimeIndex


class LargestTimestamp(NamedTuple):
    """The largest timestamp in the headers of a segment's batches, and the last offset of the first batch that has it;
    -1 and base when none. librdkafka writes 0 where its records have none: `Segment.retention_time_ms` takes 0 for
    that."""

    timestamp_ms: int
    offset: int


new_largest: Final = cast(Callable[[type[LargestTimestamp], tuple[int, int]], LargestTimestamp], tuple.__new__)
"""Makes one at half the cost of calling the class: every batch that is later than all before pays for it."""


class SegmentIndexes:
    """`full`: one of them has room for its last entry only, so the segment must be rolled. `bytes_since_entry`: bytes
    of the log since the last entry; the caller counts them."""

    def __init__(self, directory: Path, base_offset: int, max_bytes: int, suffix: str = "") -> None:
        """Empty, and in memory; `load` takes what the files hold."""
        self.offsets = OffsetIndex(segment_file(directory, base_offset, OFFSET_INDEX + suffix), base_offset, max_bytes)
        self.times = TimeIndex(segment_file(directory, base_offset, TIME_INDEX + suffix), base_offset, max_bytes)
        self.bytes_since_entry = 0
        self.full = self.offsets.full or self.times.full
        self._base = base_offset

    # -- entries -------------------------------------------------------------------------------------------------

    def add(self, last_offset: int, position: int, largest: LargestTimestamp) -> None:
        """The batch at `position` is indexed; `largest` is the segment's up to and with it."""
        self.offsets.add(last_offset, position)
        self.times.add(largest.timestamp_ms, largest.offset)
        self.bytes_since_entry = 0
        self.full = self.offsets.full or self.times.full

    def close(self, largest: LargestTimestamp) -> None:
        """Adds the last entry of the time index, the segment's largest timestamp."""
        if largest.timestamp_ms >= 0:
            self.times.add(largest.timestamp_ms, largest.offset)
            self.full = self.offsets.full or self.times.full

    def clear(self) -> None:
        """Forgets all entries; the files, which are then stale, are replaced by `seal`."""
        self.offsets.clear()
        self.times.clear()
        self.bytes_since_entry = 0
        self.full = self.offsets.full or self.times.full

    def grow(self) -> None:
        """Takes the entries into memory, to add more. `CorruptRecordError` when a file is not whole."""
        self.offsets.grow()
        self.times.grow()
        self.bytes_since_entry = 0

    # -- the files -----------------------------------------------------------------------------------------------

    def load(self) -> SegmentState | None:
        """What the segment was like when both files were written, whose entries stay on disk; None where one is missing
        or they do not fit together. `CorruptRecordError` or `StorageError` where one cannot be used."""
        state = self.offsets.load()
        if state is None or state != self.times.load() or state.next_offset < self._base:
            return None
        self.full = self.offsets.full or self.times.full
        return state

    def contents(self, state: SegmentState) -> list[bytes | None]:
        """The two files for a segment in this state, without a change; None for one that the disk has already."""
        closing = (state.largest_ms, state.largest_offset) if state.largest_ms >= 0 else None
        return [self.offsets.encoded(state), self.times.encoded(state, closing=closing)]

    def write(self, contents: Sequence[bytes | None]) -> None:
        """What `contents` gave, not flushed. The entries stay in memory."""
        for index, content in zip((self.offsets, self.times), contents, strict=True):
            if content is not None:
                index.write(content)

    def seal(self, state: SegmentState) -> None:
        """No more entries for now: writes the files and lets the memory go. After `StorageError` what was not written
        is in memory as before."""
        self.offsets.seal(state)
        self.times.seal(state)

    def stored_entries(self, state: SegmentState) -> list[tuple[int, int]]:
        """Last offset and position of each batch that the offset index's file names; empty where it is in memory.
        `CorruptRecordError` where one of the two files is damaged or fits another state."""
        if self.offsets.in_memory or self.times.in_memory:
            return []
        for index in (self.offsets, self.times):
            if index.stored_state() != state:
                raise CorruptRecordError(f"{index.path} does not fit the segment")
        return [(self._base + key, position) for key, position in self.offsets.stored_entries()]

    def take_names(self, directory: Path) -> None:
        """The files, made under another suffix, get the names of the log's; OSError as is."""
        self.offsets.rename(segment_file(directory, self._base, OFFSET_INDEX))
        self.times.rename(segment_file(directory, self._base, TIME_INDEX))

    def remove(self) -> None:
        """Removes the files and forgets all entries; OSError as is."""
        self.offsets.remove()
        self.times.remove()
        self.full = self.offsets.full or self.times.full
