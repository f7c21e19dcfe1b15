"""The publishing seam: what a lake's file system must do for a load to be one atomic rename (design D11).

Paths are URIs or plain absolute paths of the implementation's scheme. Every implementation passes the contract suite
`tests/contracts/test_publishing.py`; a scheme whose rename does not (object stores copy and delete, Hadoop's own
local rename checks and then renames) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from klamm.core.errors import ConfigError, KlammError
from klamm.plugins.sinks.hadoop import file_in_the_way


class TargetExistsError(KlammError):
    """Something is published under this name already; the staged directory is where it was, untouched."""


class LakeError(KlammError):
    """The lake's file system failed or holds what no load wrote; names the path."""


class LakeUnavailableError(LakeError):
    """The lake's file system does not answer: nothing is known of what it holds."""


class NoLakeError(ConfigError):
    """There can be no lake: its path, or one above it, is a file."""


class LakeReader(Protocol):
    """What is read of a lake. Thread-safe. Any method may raise `LakeError`."""

    def read(self, path: str) -> bytes | None:
        """The file's bytes; None when it is not there."""
        ...

    def names(self, path: str) -> list[str]:
        """Names in a directory, sorted, without files that are being written; empty when it is not there."""
        ...

    def files(self, path: str) -> list[tuple[str, int]]:
        """(relative path, bytes) of every file below a directory, sorted, without files that are being written."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether something is there that is no directory."""
        ...


class Publisher(LakeReader, Protocol):
    """Directory operations in one lake. Thread-safe. Any method may raise `LakeError`."""

    def publish(self, staging: str, target: str) -> None:
        """Make the whole directory `staging` visible as `target` in one step, durably.

        Exactly one of any number of racing callers succeeds, and nothing of a loser ever shows below `target`.
        `TargetExistsError`: `target` holds something, nothing was changed. Any other error means *unknown*: it may or
        may not have happened, and the caller finds out by reading what is there.
        """
        ...

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file, durable when this returns; replaces one that is there, never half. What it needs beside
        the file meanwhile is shown by neither `names` nor `files`, and removed by `tidy` when the writer dies."""
        ...

    def tidy(self, path: str, older_than_s: float) -> None:
        """Remove what writers that died left in a directory, once it is older than this."""
        ...

    def make(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""
        ...

    def age_s(self, path: str) -> float | None:
        """Seconds since the file was last written, by the file system's clock; None when it is not there."""
        ...

    def move(self, source: str, target: str) -> bool:
        """Rename within the lake; False when `source` is no longer there."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file or a directory with all below it; one that is not there is no error."""
        ...

    def sync(self, path: str) -> None:
        """All files and directories below `path` are durable when this returns."""
        ...

    def folder(self, path: str) -> Path | None:
        """The directory of this machine that `path` is, where it is one: what is written there is written here."""
        ...

    def put(self, source: Path, path: str) -> None:
        """Copy a whole file of this machine to a path where none is, with the directories above it; durable after
        `sync`. For a file that nobody reads yet: while it is written half of it is seen."""
        ...

    def spark_settings(self, path: str) -> Mapping[str, str]:
        """What a Spark session must be told for its files below `path` to be as durable as those of `write`."""
        ...


def check_root(reader: LakeReader, root: str) -> None:
    """`NoLakeError` in one line where the lake's root, or a path above it, is a file."""
    if (found := file_in_the_way(root, reader.is_file)) is not None:
        raise NoLakeError(found)
