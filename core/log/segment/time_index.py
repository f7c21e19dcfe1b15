"""The sparse time index (`%020d.timeindex`): maps timestamps to offsets in the segment.

An entry is Kafka's, 12 bytes: the largest timestamp so far in ms (int64), the last offset of the batch that has it
minus the segment's base offset (uint32). Every record with a larger timestamp comes after that offset. The last entry
of a segment that is no longer written has its largest timestamp.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final

from .index_file import IndexFile, SegmentState
from .naming import TIME_INDEX

_ENTRY: Final = Struct(">qI")


class TimeIndex(IndexFile):
    suffix = TIME_INDEX

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, _ENTRY, max_bytes)
        self._largest = -1

    def load(self) -> SegmentState | None:
        state = super().load()
        if state:
            self._largest = state.largest_ms
        return state

    def add(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry if the timestamp is larger than all before; does nothing otherwise."""
        if timestamp_ms > self._largest:
            self.append(_ENTRY.pack(timestamp_ms, offset - self._base))
            self._largest = timestamp_ms

    def encoded(self, state: SegmentState) -> bytes | None:
        """Returns the content of the file, as `IndexFile.encoded` does, with the segment's largest timestamp as the
        last entry; does not add that entry."""
        if state.largest_ms <= self._largest:
            return super().encoded(state)
        return self._encode(state, (state.largest_ms, state.largest_offset - self._base))

    def clear(self) -> None:
        super().clear()
        self._largest = -1

    def offset(self, timestamp_ms: int) -> int:
        """Returns the offset from which to search for records with `timestamp_ms` or a later timestamp. Raises
        `CorruptRecordError` if the file is damaged."""
        entry = self.floor_checked(timestamp_ms)
        return self._base + entry[1] if entry else self._base
