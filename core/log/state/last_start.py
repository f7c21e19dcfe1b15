"""The last start of the broker in this log directory: its broker epoch, in the file `last-start`.

The coordination holds the same number. A directory with a lower one was restored from an older backup.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from ..segment.file_operations import storage, write_atomically
from .checksummed import VERSION, seal, versioned_lines

LAST_START: Final = "last-start"
NO_START: Final = -1
_log = logging.getLogger(__name__)


def read_last_start(directory: Path) -> int:
    """The broker epoch; `NO_START` where there is none, or the file is damaged."""
    path = directory / LAST_START
    with storage(f"cannot read {path}"):
        if not path.exists():
            return NO_START
        raw = path.read_bytes()
    try:
        (line,) = versioned_lines(raw)
        return int(line)
    except ValueError as error:
        _log.warning("%s is damaged: %s; the directory is taken for an older one", path, error)
        return NO_START


def write_last_start(directory: Path, broker_epoch: int) -> None:
    """Stores the broker epoch durably; raises `StorageError`."""
    write_atomically(directory / LAST_START, seal(f"{VERSION}\n{broker_epoch}\n"))
