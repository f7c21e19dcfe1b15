"""The sparse offset index (`%020d.index`): maps offsets to positions in the segment.

An entry is Kafka's, 8 bytes: the last offset of a batch minus the segment's base offset (uint32), the position of the
batch (uint32).
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct
from typing import Final

from .index_file import IndexFile
from .naming import OFFSET_INDEX

_ENTRY: Final = Struct(">II")
MAX_RELATIVE: Final = 2**31 - 1
"""The largest difference between an offset and the base offset of its segment; a larger one requires a new segment."""


class OffsetIndex(IndexFile):
    suffix = OFFSET_INDEX

    def __init__(self, path: Path, base_offset: int, max_bytes: int) -> None:
        super().__init__(path, base_offset, _ENTRY, max_bytes)

    def add(self, last_offset: int, position: int) -> None:
        """Adds an entry for the batch at `position`."""
        self.append(_ENTRY.pack(last_offset - self._base, position))

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """Returns the last offset and the position of a batch at or before `offset`. The caller must check that
        batch."""
        entry = self.floor(offset - self._base)
        return (self._base + entry[0], entry[1]) if entry else None
