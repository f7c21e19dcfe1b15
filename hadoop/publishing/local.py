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
from pathlib import Path
from typing import BinaryIO

from ..lake.config import file_path, is_local_file
from ..lake.layout import HALF
from .interface import LakeError, TargetExistsError

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
        try:
            return local_path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise LakeError(f"cannot read {path}: {error}") from error

    def names(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in local_path(path).iterdir() if not HALF.match(entry.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LakeError(f"cannot list {path}: {error}") from error

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
        try:
            half.write_bytes(data)
            _sync_one(half)
            half.replace(file)
            _sync_one(file.parent)
        except OSError as error:
            raise LakeError(f"cannot write {path}: {error}") from error

    def tidy(self, path: str, older_than_s: float) -> None:
        try:
            halves = [entry for entry in local_path(path).iterdir() if HALF.match(entry.name)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise LakeError(f"cannot list {path}: {error}") from error
        for half in halves:
            age = self.age_s(str(half))
            if age is not None and age > older_than_s:
                self.remove(str(half))

    def make(self, path: str) -> None:
        folder = local_path(path)
        try:
            missing = [part for part in (folder, *folder.parents) if not part.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            for made in missing:  # otherwise its content would be durable, but its name would not
                _sync_one(made.parent)
        except OSError as error:
            raise LakeError(f"cannot make the directory {path}: {error}") from error

    def age_s(self, path: str) -> float | None:
        try:
            return self._now_s() - local_path(path).stat().st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LakeError(f"cannot read {path}: {error}") from error

    def move(self, source: str, target: str) -> bool:
        try:
            local_path(source).rename(local_path(target))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise LakeError(f"cannot rename {source} to {target}: {error}") from error
        return True

    def remove(self, path: str) -> None:
        target = local_path(path)
        try:
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise LakeError(f"cannot remove {path}: {error}") from error

    def sync(self, path: str) -> None:
        """Syncs each file and directory; several at a time, since a journal commits them together."""
        root = local_path(path)
        try:
            with ThreadPoolExecutor(_SYNC_THREADS) as pool:
                for _ in pool.map(_sync_one, [*_below(root), root]):
                    pass
        except OSError as error:
            raise LakeError(f"cannot sync {path}: {error}") from error

    def folder(self, path: str) -> Path | None:
        return local_path(path)

    def put(self, source: Path, path: str) -> None:
        target = local_path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as given, target.open("xb") as made:
                shutil.copyfileobj(given, made)
        except OSError as error:
            raise LakeError(f"cannot write {path}: {error}") from error

    def spark_settings(self, path: str) -> Mapping[str, str]:
        del path
        return {}


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*files, *folders))


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
