"""A sorted list of fixed-size entries beside a segment; it can always be rebuilt from the segment.

While the segment grows the entries are in memory only: after a crash they are rebuilt from the batches. The file is
written as a whole when no more batches are expected or the recovery point moves:

    header   magic "KLIX", version (uint16), bytes per entry (uint16), base offset of the segment (int64)
    entries  key and value
    footer   number of entries (uint32); the state of the segment: size in bytes, next offset, largest timestamp, offset
             of that timestamp (int64 each); CRC-32C of all bytes before it (uint32)

Opening the log detects one flipped bit anywhere, a missing part, another format and the index of another segment, and
rebuilds the index.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import ClassVar, Final, NamedTuple

from ...errors import CorruptRecordError
from ...faults import fault_point
from ...records.native import crc32c
from .file_operations import read_file, remove, rename, storage, write_atomically

_MAGIC: Final = b"KLIX"
_VERSION: Final = 3
_HEADER: Final = Struct(">4sHHq")
_FOOTER: Final = Struct(">Iqqqqq")
_CRC: Final = Struct(">I")
_AROUND: Final = _HEADER.size + _FOOTER.size + _CRC.size


class SegmentState(NamedTuple):
    """The state of a segment when its index was written. `aborted`: the number of aborted transactions whose marker is
    in it."""

    size: int
    next_offset: int
    largest_ms: int
    largest_offset: int
    aborted: int = 0


class IndexFile:
    """Entries `(key, value)` in ascending order of their keys. Not thread-safe: the log's lock guards it."""

    suffix: ClassVar[str]
    """The suffix of the file's name, one of `naming.INDEXES`."""

    def __init__(self, path: Path, base_offset: int, entry: Struct, max_bytes: int) -> None:
        """Begins empty and in memory; `load` uses the file instead."""
        self.path = path
        self._base = base_offset
        self._entry = entry
        self._max_entries = max(1, max_bytes // entry.size)
        self._data: bytearray | None = bytearray()
        self._count = 0
        self.full = self._max_entries <= 1
        """True if the segment must be rolled: one entry is reserved for the last one, which the roll adds."""

    def __len__(self) -> int:
        return self._count

    @property
    def entries_left(self) -> int:
        """The number of entries that can be added before the index is `full`."""
        return self._max_entries - 1 - self._count

    @property
    def in_memory(self) -> bool:
        """True if a search reads no file."""
        return self._data is not None or not self._count

    # -- the file ------------------------------------------------------------------------------------------------

    def load(self) -> SegmentState | None:
        """Uses the entries of the file, which stay on disk. Returns the state of the segment when the file was written;
        None if there is no file. Raises `CorruptRecordError` if it is damaged."""
        if (raw := read_file(self.path)) is None:
            return None
        state, count = self._parse(raw)
        self._data = None
        self._set_count(count)
        return state

    def _parse(self, raw: bytes) -> tuple[SegmentState, int]:
        try:
            magic, version, size, base = _HEADER.unpack_from(raw)
            if magic != _MAGIC:
                raise CorruptRecordError(f"{self.path} is damaged")
            (crc,) = _CRC.unpack_from(raw, len(raw) - _CRC.size)
            if crc32c(memoryview(raw)[: -_CRC.size]) != crc:
                raise CorruptRecordError(f"{self.path} fails its CRC")
            count, *state = _FOOTER.unpack_from(raw, len(raw) - _CRC.size - _FOOTER.size)
        except StructError as error:
            raise CorruptRecordError(f"{self.path} is truncated") from error
        if (version, size, base) != (_VERSION, self._entry.size, self._base) or len(raw) != _AROUND + count * size:
            raise CorruptRecordError(f"{self.path} has version {version} or belongs to another segment")
        return SegmentState(*state), count

    def encoded(self, state: SegmentState) -> bytes | None:
        """Returns the content of the file, for `write`; None if the file has it already."""
        return self._encode(state)

    def _encode(self, state: SegmentState, *more: tuple[int, int]) -> bytes | None:
        if self._data is None:
            return None
        header = _HEADER.pack(_MAGIC, _VERSION, self._entry.size, self._base)
        entries = self._data + b"".join(self._entry.pack(*entry) for entry in more)
        body = header + entries + _FOOTER.pack(self._count + len(more), *state)
        return body + _CRC.pack(crc32c(body))

    def write(self, content: bytes) -> None:
        """Writes the file without a flush: after a power cut the CRC detects an incomplete file, which is then
        rebuilt."""
        with storage(f"cannot write {self.path}"):
            fault_point("log.index.write")
        write_atomically(self.path, content, durable=False)

    def seal(self, state: SegmentState) -> None:
        """Writes the file and frees the memory, because no entry is expected for now. Changes nothing if it raises
        `StorageError`."""
        content = self.encoded(state)
        if content is not None:
            self.write(content)
            self._data = None

    def grow(self) -> None:
        """Reads the entries into memory, so that more can be added. Raises `CorruptRecordError` if the file is
        damaged."""
        if self._data is None:
            self._data = bytearray(self._entries())

    def _entries(self) -> memoryview:
        """Returns the entries of the file after checking its CRC."""
        with storage(f"cannot read {self.path}"):
            raw = self.path.read_bytes()
        if self._parse(raw)[1] != self._count:
            raise CorruptRecordError(f"{self.path} has another number of entries than when it was opened")
        return memoryview(raw)[_HEADER.size : _HEADER.size + self._count * self._entry.size]

    def stored_state(self) -> SegmentState:
        """Returns the state of the segment that the file has now, after checking its CRC."""
        with storage(f"cannot read {self.path}"):
            return self._parse(self.path.read_bytes())[0]

    def stored_entries(self) -> list[tuple[int, int]]:
        """Returns the entries of the file after checking its CRC."""
        data = self._entries()
        return [self._at(data, index) for index in range(self._count)]

    # -- entries -------------------------------------------------------------------------------------------------

    def append(self, entry: bytes) -> None:
        """Adds an entry as the file has it, whose key must be larger than all before."""
        if self._data is None:
            self.grow()
        assert self._data is not None
        self._data += entry
        self._set_count(self._count + 1)

    def packed(self) -> bytearray | memoryview:
        """Returns the entries as the file has them, after checking its CRC if they are not in memory."""
        return self._data if self._data is not None else self._entries()

    def _set_count(self, count: int) -> None:
        self._count = count
        self.full = count >= self._max_entries - 1

    def floor(self, key: int) -> tuple[int, int] | None:
        """Returns the last entry whose key is at most `key`; None if there is none. Does not check the CRC of the file,
        so the caller must check the result."""
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
        """Does the same as `floor`, after checking the CRC of the whole file; `CorruptRecordError` if it fails."""
        data = self.packed()
        return self._search(lambda index: self._at(data, index), key)

    def _at(self, data: bytes | bytearray | memoryview, index: int) -> tuple[int, int]:
        key, value = self._entry.unpack_from(data, index * self._entry.size)
        return key, value

    def _read(self, fd: int, index: int) -> tuple[int, int]:
        raw = os.pread(fd, self._entry.size, _HEADER.size + index * self._entry.size)
        if len(raw) < self._entry.size:
            raise CorruptRecordError(f"{self.path} is truncated")
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
        """Removes all entries; the file, if there is one, is stale until `seal` replaces it."""
        self._data = bytearray()
        self._set_count(0)

    def rename(self, target: Path) -> None:
        """Renames the file, which must be sealed; raises OSError."""
        if self.path.exists():
            rename(self.path, target)
        self.path = target

    def remove(self) -> None:
        """Removes all entries and the file; raises OSError."""
        self.clear()
        remove(self.path)
