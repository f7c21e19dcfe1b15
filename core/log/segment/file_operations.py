"""The file operations of the log, each with its fault point; translates OSError to `StorageError` in one place."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from ...errors import NoSpaceError, StorageError
from ...faults import fault_point

MOST_CACHED: Final = 512 * 1024  # copying that many bytes takes about as long as waking a thread
_FILE_MODE: Final = 0o644
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class storage:
    """A context manager that translates OSError to `StorageError`, whose message has the failed operation and the
    reason.

    It is a class because every read enters it, and a generator costs three times as much.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise storage_error(self._what, error) from error


def storage_error(what: str, error: OSError) -> StorageError:
    """Returns the error of a failed disk operation; `what` describes the operation."""
    kind = NoSpaceError if error.errno in _NO_SPACE else StorageError
    return kind(f"{what}: {error.strerror or error}")


def read_file(path: Path) -> bytes | None:
    """Returns the content of a file; None if there is none. Raises `StorageError`."""
    with storage(f"cannot read {path}"):
        return path.read_bytes() if path.exists() else None


class _Scratch(threading.local):
    """One buffer for each thread, for reads that do not wait: Python would fill a new buffer with zeros for each
    read."""

    def __init__(self) -> None:
        self._memory: memoryview | None = None

    def of(self, size: int) -> memoryview:
        if self._memory is None:
            self._memory = memoryview(bytearray(MOST_CACHED))
        return self._memory[:size]


_scratch: Final = _Scratch()


class OpenFile:
    """A file descriptor that closes when the last reference to this object is dropped.

    A reader takes the object under the log's lock and reads without it; meanwhile the segment may be removed. Reference
    counting keeps the descriptor open until the read is done, and never lets another file take its number.
    """

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """`path` remains the name under which the file was opened. `create`: creates an empty file if there is none."""
        self.fd, self.path = -1, path
        with storage(f"cannot open {path}"):
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), _FILE_MODE)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, size: int, pos: int) -> bytes:
        """Returns `size` bytes at `pos`; fewer only at the end of the file."""
        data, failed = self.read_readable(size, pos)
        if failed is not None:
            raise failed
        return data

    def read_readable(self, size: int, pos: int) -> tuple[bytes, OSError | None]:
        """Does the same as `read`, but returns the bytes before a place that cannot be read, and its error."""
        parts: list[bytes] = []
        got = 0
        try:
            while got < size:
                data = os.pread(self.fd, size - got, pos + got)
                if len(data) == size or not data:
                    return data or b"".join(parts), None
                parts.append(data)
                got += len(data)
        except OSError as error:
            return b"".join(parts), error.with_traceback(None)  # its frames would keep the bytes and the file
        return b"".join(parts), None

    def read_cached(self, size: int, pos: int) -> bytes | None:
        """Does the same as `read`, but returns None if not all bytes are in the page cache, or if they are more than
        `MOST_CACHED`. Never waits for a disk."""
        if size > MOST_CACHED:
            return None
        buffer = _scratch.of(size)
        try:
            got = os.preadv(self.fd, [buffer], pos, os.RWF_NOWAIT)
        except OSError:
            # Not in the page cache, or the file system has no such flag, or the disk fails: `read` says which.
            return None
        return bytes(buffer) if got == size else None

    def write(self, data: bytes | bytearray | memoryview, pos: int) -> None:
        """Writes all of `data` at `pos`."""
        done = os.pwrite(self.fd, data, pos)
        if done == len(data):
            return
        view = memoryview(data)
        while done < len(data):
            done += os.pwrite(self.fd, view[done:], pos + done)

    def sync(self) -> None:
        fault_point("files.fsync")
        os.fdatasync(self.fd)

    def forget_pages(self, pos: int, size: int = 0) -> None:
        """Drops the clean pages of `size` bytes from `pos` on, or all, from the page cache: the next read asks the
        disk."""
        os.posix_fadvise(self.fd, pos, size, os.POSIX_FADV_DONTNEED)

    def truncate(self, size: int) -> None:
        fault_point("files.truncate")
        os.ftruncate(self.fd, size)


def is_short(path: Path, size: int) -> bool:
    """True if the file is missing or shorter than `size`; False if that cannot be found out."""
    try:
        return path.stat().st_size < size
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # unknown; the next read or write fails if the file is unusable
        return False


def sync_directory(path: Path) -> None:
    """Makes creations, renames and removals in a directory durable."""
    fault_point("files.fsync_directory")
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path: Path) -> bool:
    """Makes everything that was written to the file system of `path` durable, including names. Returns False if that
    fails: the caller then syncs file by file, which raises the error."""
    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    if syncfs is None:
        return False
    try:
        fault_point("files.fsync_directory")
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return int(syncfs(fd)) == 0
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, durable: bool = True, named: bool = True) -> None:
    """Replaces the whole content of a file: readers and a restart see the old or the new content, never a part.

    Without `durable` a power cut (not a killed process) may leave it empty; such a file needs a checksum. Without
    `named` it may undo the replacement: the caller makes the directory durable (`sync_directory`).
    """
    partial = path.with_name(path.name + ".tmp")
    with storage(f"cannot write {path}"):
        fault_point("files.write")
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                fault_point("files.fsync")
                os.fsync(fd)
        finally:
            os.close(fd)
        rename(partial, path)
        if durable and named:
            sync_directory(path.parent)


def rename(source: Path, target: Path) -> None:
    fault_point("files.rename")
    source.rename(target)


def remove_tree(path: Path) -> None:
    """Removes a directory and all its contents."""
    fault_point("files.rmtree")
    shutil.rmtree(path)


def remove(path: Path) -> None:
    """Removes a file, if it exists."""
    fault_point("files.unlink")
    path.unlink(missing_ok=True)
