"""The broker epoch of the last start that opened every partition: the file `last-start` in the log directory.

The coordination has the same number. A directory with a lower one was restored from an older backup.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from ..segment.file_operations import read_file, write_atomically
from .checksummed import VERSION, seal, versioned_lines

LAST_START: Final = "last-start"
NO_START: Final = -1
_log = logging.getLogger(__name__)


def read_last_start(directory: Path) -> int:
    """Returns the broker epoch; `NO_START` if there is no file or it is damaged."""
    path = directory / LAST_START
    if (raw := read_file(path)) is None:
        return NO_START
    try:
        (line,) = versioned_lines(raw)
        return int(line)
    except ValueError as error:
        _log.warning("%s is damaged: %s; the directory is treated as restored from an older backup", path, error)
        return NO_START


def write_last_start(directory: Path, broker_epoch: int) -> None:
    """Stores the broker epoch durably; raises `StorageError`."""
    write_atomically(directory / LAST_START, seal(f"{VERSION}\n{broker_epoch}\n"))
