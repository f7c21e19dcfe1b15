"""The sparse offset index (`%020d.index`): where in the segment a batch lies.

Kafka's entries, 8 bytes: last offset of a batch less the segment's base (uint32), position of the batch (uint32).
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path
from struct import Struct
from typing import Final

from klamm.core.log.index_file import IndexFile

_ENTRY: Final = Struct(">II")
MAX_RELATIVE: Final = 2**31 - 1
"""The largest distance of an offset from its segment's base: beyond it the segment is rolled."""


class OffsetIndex(IndexFile):
    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, _ENTRY, max_bytes)
        self._base = base_offset

    def add(self, last_offset: int, position: int) -> None:
        self.append(last_offset - self._base, position)

    def position(self, offset: int) -> int:
        """Where to begin looking for `offset`: the start of a batch that lies at or before it."""
        entry = self.floor(offset - self._base)
        return entry[1] if entry else 0

    def matches(self, size: int, gap: int) -> bool:
        """Whether it can belong to a segment of `size` bytes of which at most the last `gap` have no entry."""
        if not self.well_formed():
            return False
        last = self.last() or (0, 0)
        return (last[1] < size or not size) and size - last[1] <= gap and last[0] <= MAX_RELATIVE

    def truncate(self, size: int) -> None:
        """Drop the entries at or past position `size`."""
        self.keep(bisect_left([position for _, position in self.entries()], size))
