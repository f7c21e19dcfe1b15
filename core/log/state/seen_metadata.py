"""The last change of the cluster's metadata that this broker has seen: the file `seen-metadata` in the log directory
(docs/replication.md, R13).

A coordination that lacks this change was restored from an older backup: since then partitions may have had other
in-sync replicas than its states name. The file is written before the broker acts on the change, and not synced: it
survives the death of the process, and a power loss may set it back.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import StorageError
from ..segment.file_operations import read_file, write_atomically
from .checksummed import VERSION, seal, versioned_lines

SEEN_METADATA: Final = "seen-metadata"
_log = logging.getLogger(__name__)


class SeenChange(NamedTuple):
    """The number of the change, and the name of its writer's attempt; "" before the first one. `leader_epoch`:
    the highest of any partition until then."""

    version: int
    by: str
    leader_epoch: int


class SeenMetadata:
    """Reads and writes the file. One caller at a time."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / SEEN_METADATA
        self._last = self._read()
        self._failing = False

    @property
    def last(self) -> SeenChange | None:
        """The last change seen; None if none is known, or the file is damaged."""
        return self._last

    def note(self, seen: SeenChange) -> None:
        """Stores the change if it differs from the last. The first failure to write is logged: the broker continues
        without this protection."""
        if seen == self._last:
            return
        self._last = seen
        try:
            write_atomically(self._path, seal(f"{VERSION}\n{json.dumps(seen)}\n"), durable=False)
        except StorageError as error:
            if not self._failing:
                _log.warning("a restored coordination might not be noticed: %s", error)
            self._failing = True
        else:
            self._failing = False

    def _read(self) -> SeenChange | None:
        if (raw := read_file(self._path)) is None:
            return None
        try:
            (line,) = versioned_lines(raw)
            version, by, leader_epoch = json.loads(line)
            return SeenChange(int(version), str(by), int(leader_epoch))
        except (ValueError, TypeError) as error:
            _log.warning("%s is damaged: %s; a restored coordination might not be noticed", self._path, error)
            return None
