"""The index of aborted transactions (`%020d.txnindex`): those whose marker is in the segment, in the markers' order.

An entry is Kafka's, 34 bytes: version 0 (int16), producer id, first offset, last offset (the marker's), last stable
offset after the marker (int64 each). The first offset may lie in an earlier segment. A segment without aborted
transactions has no file; the segment's state (`SegmentState.aborted`) shows whether one is missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from ...errors import CorruptRecordError
from .index_file import IndexFile, SegmentState
from .naming import TRANSACTION_INDEX

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0
_UNBOUNDED: Final = 2**40


class AbortedEntry(NamedTuple):
    """An aborted transaction. `last_offset`: its marker. `last_stable_offset`: no transaction that is open after the
    marker begins below it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex(IndexFile):
    suffix = TRANSACTION_INDEX

    def __init__(self, path: Path, base_offset: int) -> None:
        super().__init__(path, base_offset, _ENTRY, _UNBOUNDED)

    def encoded(self, state: SegmentState) -> bytes | None:
        """Returns the content of the file, as `IndexFile.encoded` does; None without entries: there is no file then."""
        return super().encoded(state) if len(self) else None

    def load(self) -> SegmentState | None:
        """Does what `IndexFile.load` does, and checks the order of the entries."""
        state = super().load()
        if state is not None:
            self.entries()
        return state

    def add(self, entry: AbortedEntry) -> None:
        """Adds a transaction, whose marker comes after those of all others. Raises `CorruptRecordError` if the file is
        damaged."""
        self.append(_ENTRY.pack(_VERSION, *entry))

    def replace(self, entries: Iterable[AbortedEntry]) -> None:
        """Replaces all entries, in memory."""
        self.clear()
        for entry in entries:
            self.add(entry)

    def entries(self) -> list[AbortedEntry]:
        """Returns all entries, from memory or the file. Raises `CorruptRecordError` if the file is damaged."""
        found = [AbortedEntry._make(row[1:]) for row in _ENTRY.iter_unpack(self.packed())]
        if any(a.last_offset >= b.last_offset for a, b in pairwise(found)):
            raise CorruptRecordError(f"the entries of {self.path} are not in the order of their markers")
        return found

    def since(self, offset: int) -> Iterator[AbortedEntry]:
        """Yields the entries whose marker is at `offset` or later. Reads the file into memory, where it stays: an open
        transaction index is searched by each read. Raises `CorruptRecordError` if the file is damaged."""
        self.grow()
        data, size = self.packed(), _ENTRY.size
        first = bisect_left(range(len(self)), offset, key=lambda at: int(_ENTRY.unpack_from(data, at * size)[3]))
        for at in range(first, len(self)):
            yield AbortedEntry._make(_ENTRY.unpack_from(data, at * size)[1:])
