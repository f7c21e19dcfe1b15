"""The highest producer id that this broker has allocated from the coordination: the file `given-producer-ids`.

The logs contain only producers that have written; this file, in the log directory, covers those that may still
write. So a coordination that is restored from an older backup does not allocate any of these ids again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Lock
from typing import Final

from ..segment.file_operations import read_file, write_atomically
from .checksummed import VERSION, seal, versioned_lines

GIVEN_PRODUCER_IDS: Final = "given-producer-ids"
_log = logging.getLogger(__name__)


class GivenProducerIds:
    """Reads and writes the file. Thread-safe. If the file is damaged, only the logs show which ids are in use."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / GIVEN_PRODUCER_IDS
        self._lock = Lock()
        self._highest = self._read()

    @property
    def highest(self) -> int:
        """The highest producer id that was allocated; -1 if none."""
        return self._highest

    def note(self, producer_id: int) -> None:
        """Stores the id durably if it is the highest one; raises `StorageError`."""
        with self._lock:
            if producer_id > self._highest:
                write_atomically(self._path, seal(f"{VERSION}\n{producer_id}\n"))
                self._highest = producer_id

    def _read(self) -> int:
        if (raw := read_file(self._path)) is None:
            return -1
        try:
            (line,) = versioned_lines(raw)
            return int(line)
        except ValueError as error:
            _log.warning("%s is damaged: %s; only the logs show which producer ids are in use", self._path, error)
            return -1
