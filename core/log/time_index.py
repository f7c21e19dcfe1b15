"""The sparse time index (`%020d.timeindex`): from which offset on a segment has records of a time.

Kafka's entries, 12 bytes: the largest timestamp so far in ms (int64), last offset of the batch that has it less the
segment's base (uint32). Every record with a larger timestamp comes after that offset. The last entry of a segment that
is no longer written holds its largest timestamp.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from struct import Struct
from typing import Final

from klamm.core.log.index_file import IndexFile

_ENTRY: Final = Struct(">qI")


class TimeIndex(IndexFile):
    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, _ENTRY, max_bytes)
        self._base = base_offset
        last = self.last()
        self._largest = last[0] if last else -1

    def add(self, timestamp_ms: int, offset: int) -> None:
        """Ignored unless the timestamp is larger than all before."""
        if timestamp_ms > self._largest:
            self.append(timestamp_ms, offset - self._base)
            self._largest = timestamp_ms

    def remove(self) -> None:
        super().remove()
        self._largest = -1

    def largest(self) -> tuple[int, int] | None:
        """The last entry: timestamp and offset."""
        entry = self.last()
        return (entry[0], entry[1] + self._base) if entry else None

    def offset(self, timestamp_ms: int) -> int:
        """Where to begin looking for the first record of `timestamp_ms` or later."""
        entry = self.floor(timestamp_ms)
        return self._base + entry[1] if entry else self._base

    def matches(self, next_offset: int) -> bool:
        """Whether it can belong to a segment that ends before `next_offset`."""
        if not self.well_formed():
            return False
        last = self.last()
        return last is None or self._base + last[1] < next_offset

    def truncate(self, offset: int) -> None:
        """Drop the entries at or past `offset`."""
        self.keep(bisect_left([at for _, at in self.entries()], offset - self._base))
        last = self.last()
        self._largest = last[0] if last else -1
