"""A sorted list of fixed-size entries beside a segment; it can always be rebuilt from the segment.

While the segment grows the entries are in memory only: after a crash they are rebuilt from the batches. The file is
written whole, when no more batches are expected or the recovery point moves:

    header   magic "KLIX", version (uint16), bytes an entry (uint16), base offset of the segment (int64)
    entries  key and value
    footer   number of entries (uint32); what the segment was like: bytes, next offset, largest timestamp, the offset of
             that (int64 each); CRC-32C of all before (uint32)

So one flipped bit anywhere, a part that is missing, an older format or the index of another segment is noticed when the
log is opened, and the index is rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from crc32c import crc32c

from ...errors import CorruptRecordError
from ...faults import fault_point
from .file_operations import remove, rename, storage, write_atomically

_MAGIC: Final = b"KLIX"
_VERSION: Final = 1
_HEADER: Final = Struct(">4sHHq")
_FOOTER: Final = Struct(">Iqqqq")
_CRC: Final = Struct(">I")
_AROUND: Final = _HEADER.size + _FOOTER.size + _CRC.size


class SegmentState(NamedTuple):
    """The state of a segment when its index was written."""

    size: int
    next_offset: int
    largest_ms: int
    largest_offset: int


class IndexFile:
    """Entries `(key, value)` with keys that grow. Not thread-safe: the log's lock guards it."""

    def __init__(self, path: Path, base_offset: int, entry: Struct, max_bytes: int) -> None:
        """Empty, and in memory; `load` takes what the file holds."""
        self.path = path
        self._base = base_offset
        self._entry = entry
        self._max_entries = max(1, max_bytes // entry.size)
        self._data: bytearray | None = bytearray()
        self._count = 0
        self.full = self._max_entries <= 1
        """Whether the segment must be rolled. One entry is reserved for the last one, which is added at the roll."""

    def __len__(self) -> int:
        return self._count

    @property
    def in_memory(self) -> bool:
        """Whether a search needs no file."""
        return self._data is not None or not self._count

    # -- the file ------------------------------------------------------------------------------------------------

    def load(self) -> SegmentState | None:
        """Returns the state of the segment that the file fits; None if there is no file, `CorruptRecordError` if it is
        damaged. The entries stay on disk."""
        with storage(f"cannot read {self.path}"):
            if not self.path.exists():
                return None
            raw = self.path.read_bytes()
        state, count = self._parse(raw)
        self._data = None
        self._set_count(count)
        return state

    def _parse(self, raw: bytes) -> tuple[SegmentState, int]:
        try:
            magic, version, size, base = _HEADER.unpack_from(raw)
            if magic != _MAGIC:
                raise CorruptRecordError(f"{self.path} is damaged or of an older format")
            (crc,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
            if crc32c(memoryview(raw)[: -_CRC.size]) != crc:
                raise CorruptRecordError(f"{self.path} fails its CRC")
            count, *state = _FOOTER.unpack_from(raw, len(raw) - _CRC.size - _FOOTER.size)
        except StructError as error:
            raise CorruptRecordError(f"{self.path} is cut off") from error
        if (version, size, base) != (_VERSION, self._entry.size, self._base) or len(raw) != _AROUND + count * size:
            raise CorruptRecordError(f"{self.path} is of version {version}, or another segment's")
        return SegmentState(*state), count

    def encoded(self, state: SegmentState) -> bytes | None:
        """Returns the file's content, for `write`; None if the file has it already."""
        return self._encode(state)

    def _encode(self, state: SegmentState, *more: tuple[int, int]) -> bytes | None:
        if self._data is None:
            return None
        header = _HEADER.pack(_MAGIC, _VERSION, self._entry.size, self._base)
        entries = self._data + b"".join(self._entry.pack(*entry) for entry in more)
        body = header + entries + _FOOTER.pack(self._count + len(more), *state)
        return body + _CRC.pack(crc32c(body))

    def write(self, content: bytes) -> None:
        """Writes the file without a flush: the CRC detects what a power cut leaves, and the file is rebuilt."""
        with storage(f"cannot write {self.path}"):
            fault_point("log.index.write")
        write_atomically(self.path, content, durable=False)

    def seal(self, state: SegmentState) -> None:
        """Writes the file and frees the memory, when no entry is expected for now. `StorageError` changes nothing."""
        content = self.encoded(state)
        if content is not None:
            self.write(content)
            self._data = None

    def grow(self) -> None:
        """Reads the entries into memory, to add more. `CorruptRecordError` if the file is damaged."""
        if self._data is None:
            self._data = bytearray(self._entries())

    def _entries(self) -> memoryview:
        """Returns the entries of the file after checking its CRC."""
        with storage(f"cannot read {self.path}"):
            raw = self.path.read_bytes()
        if self._parse(raw)[1] != self._count:
            raise CorruptRecordError(f"{self.path} was exchanged")
        return memoryview(raw)[_HEADER.size : _HEADER.size + self._count * self._entry.size]

    def stored_state(self) -> SegmentState:
        """Returns the state in the file now, after checking its CRC."""
        with storage(f"cannot read {self.path}"):
            return self._parse(self.path.read_bytes())[0]

    def stored_entries(self) -> list[tuple[int, int]]:
        """Returns the entries of the file after checking its CRC."""
        data = self._entries()
        return [self._at(data, index) for index in range(self._count)]

    # -- entries -------------------------------------------------------------------------------------------------

    def append(self, key: int, value: int) -> None:
        """Adds an entry; keys must grow."""
        if self._data is None:
            self.grow()
        assert self._data is not None
        self._data += self._entry.pack(key, value)
        self._set_count(self._count + 1)

    def _set_count(self, count: int) -> None:
        self._count = count
        self.full = count >= self._max_entries - 1

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`; from the file without its CRC: for answers that are checked."""
        if not self._count:
            return None
        if self._data is not None:
            data = self._data
            return self._search(lambda index: self._at(data, index), key)
        with storage(f"cannot read {self.path}"):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return self._search(lambda index: self._read(fd, index), key)
            finally:
                os.close(fd)

    def floor_checked(self, key: int) -> tuple[int, int] | None:
        """As `floor`, after checking the CRC of the whole file; `CorruptRecordError` when it fails."""
        data = self._data if self._data is not None else self._entries()
        return self._search(lambda index: self._at(data, index), key)

    def _at(self, data: bytes | bytearray | memoryview, index: int) -> tuple[int, int]:
        key, value = self._entry.unpack_from(data, index * self._entry.size)
        return key, value

    def _read(self, fd: int, index: int) -> tuple[int, int]:
        raw = os.pread(fd, self._entry.size, _HEADER.size + index * self._entry.size)
        if len(raw) < self._entry.size:
            raise CorruptRecordError(f"{self.path} is cut off")
        return self._at(raw, 0)

    def _search(self, entry: Callable[[int], tuple[int, int]], key: int) -> tuple[int, int] | None:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if entry(middle)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return entry(low - 1) if low else None

    # -- emptying ------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes all entries from memory; the file is then stale until `seal` replaces it."""
        self._data = bytearray()
        self._set_count(0)

    def rename(self, target: Path) -> None:
        """Renames the file, which must be sealed; raises OSError."""
        if self.path.exists():
            rename(self.path, target)
        self.path = target

    def remove(self) -> None:
        self.clear()
        remove(self.path)
