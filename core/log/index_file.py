"""A sorted file of fixed-size entries beside a segment; it can always be rebuilt from the segment.

While the segment grows, its entries are kept in memory too; afterwards the file is mapped for the time of a search.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from struct import Struct

from klamm.core.errors import StorageError
from klamm.core.faults import fault_point
from klamm.core.log.files import remove, storage

_MODE = 0o644


class IndexFile:
    """Entries `(key, value)` with keys that grow. Not thread-safe: the log's lock guards it."""

    def __init__(self, path: Path, entry: Struct, max_bytes: int) -> None:
        self.path = path
        self._entry = entry
        self._max_entries = max(1, max_bytes // entry.size)
        self._data: bytearray | None = None
        self._fd = -1
        self._count = self._file_size() // entry.size

    def __len__(self) -> int:
        return self._count

    def __del__(self) -> None:
        self._close_fd()

    def _close_fd(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def full(self) -> bool:
        """Whether the segment must be rolled; one entry is kept free for the last one, made when it is."""
        return self._count >= self._max_entries - 1

    @property
    def in_memory(self) -> bool:
        """Whether a search needs no file."""
        return self._data is not None or not self._count

    def well_formed(self) -> bool:
        """Whether the file is there and holds whole entries."""
        return self.path.is_file() and self._file_size() % self._entry.size == 0

    def _file_size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, key: int, value: int) -> None:
        """Keys must grow; writes at once (page cache, no fsync)."""
        raw = self._entry.pack(key, value)
        if self._data is None:
            with storage(f"cannot read {self.path}"):
                self._data = bytearray(self.path.read_bytes()) if self.path.exists() else bytearray()
        if self._fd < 0:
            with storage(f"cannot open {self.path}"):
                self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _MODE)
        with storage(f"cannot write {self.path}"):
            fault_point("log.index.write")
            if os.write(self._fd, raw) != len(raw):
                raise StorageError(f"cannot write {self.path}: a short write")
        self._data += raw
        self._count += 1

    def last(self) -> tuple[int, int] | None:
        if not self._count:
            return None
        if self._data is not None:
            return self._at(self._data, self._count - 1)
        with storage(f"cannot read {self.path}"), self.path.open("rb") as file:
            file.seek((self._count - 1) * self._entry.size)
            return self._at(file.read(self._entry.size), 0)

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`."""
        if not self._count:
            return None
        if self._data is not None:
            return self._search(self._data, key)
        with (
            storage(f"cannot read {self.path}"),
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            return self._search(mapped, key)

    def _at(self, data: bytes | bytearray | mmap.mmap, index: int) -> tuple[int, int]:
        key, value = self._entry.unpack_from(data, index * self._entry.size)
        return key, value

    def _search(self, data: bytearray | mmap.mmap, key: int) -> tuple[int, int] | None:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._at(data, middle)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return self._at(data, low - 1) if low else None

    def keep(self, count: int) -> None:
        """Drop all entries but the first `count`."""
        self.seal()
        with storage(f"cannot truncate {self.path}"):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _MODE)
            try:
                os.ftruncate(fd, count * self._entry.size)
            finally:
                os.close(fd)
        self._count = count

    def seal(self) -> None:
        """No more entries for now: let memory and descriptor go."""
        self._close_fd()
        self._data = None

    def entries(self) -> list[tuple[int, int]]:
        with storage(f"cannot read {self.path}"):
            raw = self.path.read_bytes() if self.path.exists() else b""
        return [self._at(raw, index) for index in range(self._count)]

    def rename(self, target: Path) -> None:
        self.seal()
        if self.path.exists():
            self.path.rename(target)
        self.path = target

    def remove(self) -> None:
        self.seal()
        self._count = 0
        remove(self.path)
