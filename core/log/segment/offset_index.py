"""The sparse offset index (`%020d.index`): where in the segment a batch lies.

Kafka's entries, 8 bytes: last offset of a batch less the segment's base (uint32), position of the batch (uint32).
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final

from .index_file import IndexFile

_ENTRY: Final = Struct(">II")
MAX_RELATIVE: Final = 2**31 - 1
"""The largest distance of an offset from its segment's base: beyond it the segment is rolled."""


class OffsetIndex(IndexFile):
    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, _ENTRY, max_bytes)

    def add(self, last_offset: int, position: int) -> None:
        self.append(last_offset - self._base, position)

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """Returns last offset and position of a batch at or before `offset`. The caller must check that batch."""
        entry = self.floor(offset - self._base)
        return (self._base + entry[0], entry[1]) if entry else None
