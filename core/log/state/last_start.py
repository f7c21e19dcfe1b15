"""The broker epoch of the last start: the file `last-start` in the log directory.

The coordination has the same number. A directory with a lower one was restored from an older backup.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..segment.file_operations import read_file, write_atomically
from .checksummed import VERSION, seal, versioned_lines

LAST_START: Final = "last-start"
NO_START: Final = -1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastStart:
    """The broker epochs of the last start and of the last one that opened every partition; `NO_START` if none is
    known."""

    epoch: int = NO_START
    complete_epoch: int = NO_START

    def then(self, epoch: int, *, complete: bool) -> LastStart:
        """Returns the last start after another one."""
        return LastStart(epoch, epoch if complete else self.complete_epoch)


def read_last_start(directory: Path) -> LastStart:
    """Returns the recorded start; none is known if there is no file or it is damaged."""
    path = directory / LAST_START
    if (raw := read_file(path)) is None:
        return LastStart()
    try:
        epoch, complete_epoch = map(int, versioned_lines(raw))
        return LastStart(epoch, complete_epoch)
    except ValueError as error:
        _log.warning("%s is damaged: %s; the directory is treated as restored from an older backup", path, error)
        return LastStart()


def write_last_start(directory: Path, start: LastStart) -> None:
    """Stores the start durably; raises `StorageError`."""
    write_atomically(directory / LAST_START, seal(f"{VERSION}\n{start.epoch}\n{start.complete_epoch}\n"))
