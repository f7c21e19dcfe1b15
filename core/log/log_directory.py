"""Claims a log directory for one broker: its lock against a second process, its identity and its clean-stop marker.

`.lock` contains the broker's process id and is held with flock; the kernel releases it when the process ends for any
reason. `meta.properties` names the cluster, the broker and the directory, as Kafka's does; a directory of another
broker or cluster is refused. `.kafka_cleanshutdown` exists between a clean stop and the next start.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from ..errors import StorageError
from .segment.file_operations import read_file, remove, storage, sync_directory, write_atomically
from .state.checksummed import properties, seal, unseal
from .state.topic_id import parse_uuid, uuid_text

LOCK: Final = ".lock"
META: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
_META_VERSION: Final = "1"
_CLEAN: Final = '{"version":0}\n'
_ATTEMPTS: Final = 50
_POLL_S: Final = 0.01
"""How often, and at what interval in seconds, a lock is tried: `holder` has it for microseconds."""
_log = logging.getLogger(__name__)


class DirectoryLock:
    """The lock of a log directory, held from construction to `release`."""

    def __init__(self, directory: Path) -> None:
        """Raises `StorageError` if another live process holds the lock."""
        path = directory / LOCK
        with storage(f"log.dirs: cannot create {directory}"):
            directory.mkdir(parents=True, exist_ok=True)
        with storage(f"cannot open {path}"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if attempt == _ATTEMPTS - 1:
                    os.close(self._fd)
                    raise StorageError(
                        f"log directory {directory} is in use by another broker, which holds {path}: "
                        "stop that broker or give this one another log.dirs"
                    ) from error
                time.sleep(_POLL_S)
        with storage(f"cannot write {path}"):
            os.ftruncate(self._fd, 0)
            os.write(self._fd, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Releases the lock; does nothing if it is released already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def holder(directory: Path) -> int | None:
    """Returns the id of the process that holds the lock of the directory; None if no process does. Raises
    `StorageError` if the lock cannot be read, as in a directory of another user."""
    path = directory / LOCK
    with storage(f"cannot read {path}"):
        try:
            file = path.open("rb")
        except (FileNotFoundError, NotADirectoryError):
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read(20).strip()
                return int(text) if text.isdigit() else None
    return None


@dataclass(frozen=True, slots=True)
class DirectoryMeta:
    """The content of `meta.properties`."""

    cluster_id: str
    broker_id: int
    directory_id: UUID

    def to_text(self) -> str:
        rows = {
            "version": _META_VERSION,
            "cluster.id": self.cluster_id,
            "broker.id": str(self.broker_id),
            "directory.id": uuid_text(self.directory_id),
        }
        return "".join(f"{name}={value}\n" for name, value in rows.items())


def read_meta(directory: Path) -> DirectoryMeta | None:
    """Returns None if there is no file yet; raises `StorageError` if it is damaged."""
    path = directory / META
    if (raw := read_file(path)) is None:
        return None
    try:
        fields = properties(unseal(raw), "=")
        if fields["version"] != _META_VERSION:
            raise ValueError(f"version {fields['version']!r}, not {_META_VERSION}")
        return DirectoryMeta(fields["cluster.id"], int(fields["broker.id"]), parse_uuid(fields["directory.id"]))
    except KeyError as error:
        raise StorageError(f"{path} is damaged: {error.args[0]} is missing") from error
    except ValueError as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def claim_meta(directory: Path, cluster_id: str, broker_id: int) -> DirectoryMeta:
    """Returns the content of `meta.properties`, which it writes the first time. Raises `StorageError` if the directory
    belongs to another broker or cluster."""
    meta = read_meta(directory)
    if meta is None:
        meta = DirectoryMeta(cluster_id, broker_id, uuid4())
        write_atomically(directory / META, seal(meta.to_text()))
        return meta
    path = directory / META
    if meta.cluster_id != cluster_id:
        raise StorageError(
            f"{path}: cluster.id is {meta.cluster_id}, but this broker joins the cluster {cluster_id}: "
            "correct `coordination`, or give it another log.dirs"
        )
    if meta.broker_id != broker_id:
        raise StorageError(
            f"{path}: broker.id is {meta.broker_id}, but this broker is configured as {broker_id}: "
            "correct broker.id, or give it another log.dirs"
        )
    return meta


def rename_directory(directory: Path, meta: DirectoryMeta) -> DirectoryMeta:
    """Gives the directory another id and returns the new content of `meta.properties`. A copy must not be mistaken
    for the original directory, which another process may be using."""
    renamed = replace(meta, directory_id=uuid4())
    write_atomically(directory / META, seal(renamed.to_text()))
    return renamed


def take_clean_marker(directory: Path) -> bool:
    """Returns True if the last stop was clean, and removes the marker. Call it before anything else is written."""
    path = directory / CLEAN_SHUTDOWN
    with storage(f"cannot remove {path}"):
        if not path.exists():
            return False
        content = path.read_bytes()
        remove(path)
        sync_directory(directory)
    try:
        unseal(content)
    except ValueError:
        _log.warning("%s is damaged; recovery checks the logs as after a crash", path)
        return False
    return True


def leave_clean_marker(directory: Path) -> None:
    """Writes the marker of a clean stop. Call it after everything else is written."""
    write_atomically(directory / CLEAN_SHUTDOWN, seal(_CLEAN))
