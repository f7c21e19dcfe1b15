"""Publishing on `file:` by `rename(2)` in the driver: the kernel refuses a target that is not empty.

Hadoop's local rename checks first and then renames; in 56 of 300 races of two jobs both "succeeded" (design D11).
"""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ..lake.config import file_path, is_local_file
from ..lake.layout import HALF
from .interface import LakeError, TargetExistsError, remove_halves

_SYNC_THREADS = 8
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR})


def local_path(uri: str) -> Path:
    """Returns the path of `file:///a`, `file:/a` or `/a`; raises `LakeError` if it is not on this machine."""
    try:
        return file_path(uri)
    except ValueError as error:
        raise LakeError(str(error)) from error


class LocalFiles:
    """`LakeFiles` over POSIX."""

    def read(self, path: str) -> bytes | None:
        with _translating(f"cannot read {path}"), suppress(FileNotFoundError, NotADirectoryError):
            return local_path(path).read_bytes()
        return None

    def names(self, path: str) -> list[str]:
        return sorted(name for name in _names(path) if not HALF.match(name))

    def files(self, path: str) -> list[tuple[str, int]]:
        root = local_path(path)
        found = (p for p in _below(root) if not HALF.match(p.name))
        return sorted((str(p.relative_to(root)), p.stat().st_size) for p in found if p.is_file())

    def is_file(self, path: str) -> bool:
        return is_local_file(path)

    def open(self, path: str) -> BinaryIO:
        try:
            return local_path(path).open("rb")
        except OSError as error:
            raise LakeError(f"cannot read {path}: {error.strerror}") from error


class LocalPublisher(LocalFiles):
    """Publishing over POSIX. `now_s` is the clock by which ages are measured; mtimes are the file system's."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s

    def publish(self, staging: str, target: str) -> None:
        source, destination = local_path(staging), local_path(target)
        self.sync(staging)
        try:
            os.rename(source, destination)  # noqa: PTH104 - the bare system call is the point
        except OSError as error:
            if error.errno in _TAKEN and source.is_dir():
                raise TargetExistsError(f"{target} already exists") from error
            raise LakeError(f"cannot publish {target}: {error}") from error
        _sync_one(destination.parent)
        _sync_one(source.parent)

    def write(self, path: str, data: bytes) -> None:
        file = local_path(path)
        half = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
        with _translating(f"cannot write {path}"):
            half.write_bytes(data)
            _sync_one(half)
            half.replace(file)
            _sync_one(file.parent)

    def tidy(self, path: str, older_than_s: float) -> None:
        remove_halves(self, path, _names(path), older_than_s)

    def make(self, path: str) -> None:
        folder = local_path(path)
        with _translating(f"cannot make the directory {path}"):
            missing = [part for part in (folder, *folder.parents) if not part.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for made in missing:  # otherwise its content would be durable, but its name would not
                _sync_one(made.parent)

    def age_s(self, path: str) -> float | None:
        with _translating(f"cannot read {path}"), suppress(FileNotFoundError):
            return self._now_s() - local_path(path).stat().st_mtime
        return None

    def move(self, source: str, target: str) -> bool:
        with _translating(f"cannot rename {source} to {target}"), suppress(FileNotFoundError):
            local_path(source).rename(local_path(target))
            return True
        return False

    def remove(self, path: str) -> None:
        target = local_path(path)
        with _translating(f"cannot remove {path}"), suppress(FileNotFoundError):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()

    def sync(self, path: str) -> None:
        """Syncs each file and directory; several at a time, since a journal commits them together."""
        root = local_path(path)
        with _translating(f"cannot sync {path}"), ThreadPoolExecutor(_SYNC_THREADS) as pool:
            for _ in pool.map(_sync_one, [*_below(root), root]):
                pass

    def folder(self, path: str) -> Path | None:
        return local_path(path)

    def put(self, source: Path, path: str) -> None:
        target = local_path(path)
        with _translating(f"cannot write {path}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as given, target.open("xb") as made:
                shutil.copyfileobj(given, made)

    def spark_settings(self, path: str) -> Mapping[str, str]:
        del path
        return {}


@contextmanager
def _translating(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LakeError(f"{what}: {error}") from error


def _names(path: str) -> list[str]:
    """Returns all names in a directory, also of files that are being written; none if it does not exist."""
    with _translating(f"cannot list {path}"), suppress(FileNotFoundError):
        return [entry.name for entry in local_path(path).iterdir()]
    return []


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*files, *folders))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
