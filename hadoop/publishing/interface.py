"""The publishing interface: the file operations that make a load one atomic rename (design D11).

Paths are URIs or plain absolute paths of the implementation's scheme. Every implementation passes the contract suite
`tests/contracts/test_publishing.py`; a scheme whose rename does not pass (object stores copy and delete, Hadoop's own
local rename checks and then renames) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from klamm.core.errors import ConfigError, KlammError

from ..lake.config import file_in_the_way
from ..lake.layout import HALF


class TargetExistsError(KlammError):
    """The target is published already; the staged directory is unchanged."""


class LakeError(KlammError):
    """The lake's file system failed, or contains something that no load wrote; names the path."""


class LakeUnavailableError(LakeError):
    """The lake's file system does not respond: its content is unknown."""


class NoLakeError(ConfigError):
    """No lake can exist at this path: it, or a path above it, is a file."""


class LakeReader(Protocol):
    """Reads a lake. Thread-safe. Any method may raise `LakeError`."""

    def read(self, path: str) -> bytes | None:
        """Returns the file's bytes; None if it does not exist."""
        ...

    def names(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted, without files that are being written; empty if it does not
        exist.
        """
        ...

    def files(self, path: str) -> list[tuple[str, int]]:
        """Returns (relative path, bytes) of every file below a directory, sorted, without files that are being
        written.
        """
        ...

    def is_file(self, path: str) -> bool:
        """Returns True if the path exists and is not a directory."""
        ...


class Publisher(LakeReader, Protocol):
    """Directory operations in one lake. Thread-safe. Any method may raise `LakeError`."""

    def publish(self, staging: str, target: str) -> None:
        """Makes the whole directory `staging` visible as `target` in one step, durably.

        Exactly one of any number of racing callers succeeds, and no file of a loser ever shows below `target`. Raises
        `TargetExistsError` if `target` holds anything; nothing was changed. Any other error means that the outcome is
        *unknown*, and the caller determines it by reading the target.
        """
        ...

    def write(self, path: str, data: bytes) -> None:
        """Writes a whole file, durable when this returns; replaces an existing one atomically. Neither `names` nor
        `files` shows temporary files beside it; `tidy` removes them if the writer dies.
        """
        ...

    def tidy(self, path: str, older_than_s: float) -> None:
        """Removes temporary files of dead writers in a directory, once they are older than this."""
        ...

    def make(self, path: str) -> None:
        """Creates a directory and its parents; an existing one is not an error."""
        ...

    def age_s(self, path: str) -> float | None:
        """Returns the seconds since the file was last written, by the file system's clock; None if it does not
        exist.
        """
        ...

    def move(self, source: str, target: str) -> bool:
        """Renames within the lake; returns False if `source` no longer exists."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file or a directory with everything below it; a missing one is not an error."""
        ...

    def sync(self, path: str) -> None:
        """Returns once all files and directories below `path` are durable."""
        ...

    def folder(self, path: str) -> Path | None:
        """Returns `path` as a local directory, if it is one; files written there are in the lake."""
        ...

    def put(self, source: Path, path: str) -> None:
        """Copies a local file to a path that does not exist, and creates the directories above it; durable after
        `sync`. Only for files without readers: while it is written, a part of it is visible."""
        ...

    def spark_settings(self, path: str) -> Mapping[str, str]:
        """Returns the settings with which a Spark session writes files below `path` as durably as `write`."""
        ...


def check_root(reader: LakeReader, root: str) -> None:
    """Raises `NoLakeError` in one line if the lake's root, or a path above it, is a file."""
    if (found := file_in_the_way(root, reader.is_file)) is not None:
        raise NoLakeError(found)


def remove_halves(publisher: Publisher, path: str, names: Iterable[str], older_than_s: float) -> None:
    """Removes what `Publisher.tidy` removes, of the `names` in a directory."""
    for half in (f"{path}/{name}" for name in names if HALF.match(name)):
        age = publisher.age_s(half)
        if age is not None and age > older_than_s:
            publisher.remove(half)
