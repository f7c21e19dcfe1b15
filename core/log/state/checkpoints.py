"""Offset checkpoints: offsets by partition in one file of the log directory, Kafka's format with a checksum
(`checksummed`).

A file has a line with the version, one with the number of entries, then a line `topic partition offset` for each entry.

- `recovery-point-offset-checkpoint`: all records below the offset are on disk.
- `log-start-offset-checkpoint`: the first offset that can be read.
- `replication-offset-checkpoint`: the high watermark.
- `cleaner-offset-checkpoint`: compaction has read all records below the offset.
- `scrub-offset-checkpoint`: the current pass of the scrubber has read all records below the offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import Final

from ...errors import StorageError
from ...records.partition import TopicPartition
from ..segment.file_operations import storage, write_atomically
from .checksummed import VERSION, seal, versioned_lines

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
SCRUB_OFFSETS: Final = "scrub-offset-checkpoint"


class OffsetCheckpoint:
    """One checkpoint file, which is written only if an offset changed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RLock()
        self._written: dict[TopicPartition, int] | None = None

    def read(self) -> dict[TopicPartition, int]:
        """Returns the offsets in the file; none if there is no file. Raises `StorageError` if it is damaged."""
        with storage(f"cannot read {self.path}"):
            if not self.path.exists():
                return {}
            raw = self.path.read_bytes()
        try:
            lines = versioned_lines(raw)
            rows = [line.split(" ") for line in lines[1:]]
            found = {TopicPartition(topic, int(number)): int(offset) for topic, number, offset in rows}
            if len(rows) != int(lines[0]):
                raise ValueError(f"{len(rows)} entries, not {lines[0]}")
        except (ValueError, IndexError) as error:
            raise StorageError(f"{self.path} is damaged: {error}") from error
        return found

    def write(self, offsets: Mapping[TopicPartition, int], *, always: bool = False) -> None:
        """Writes the file if the offsets changed. With `always` it writes in any case, which sets the file's
        modification time."""
        with self._lock:
            if offsets == self._written and not always:
                return
            rows = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items())
            write_atomically(self.path, seal(f"{VERSION}\n{len(offsets)}\n{rows}"))
            self._written = dict(offsets)

    def forget(self, tp: TopicPartition) -> None:
        """Removes the entry of a partition that is created again, so that recovery does not use the offset of the old
        one."""
        with self._lock:
            if self._written is None:
                self._written = self._read_or_nothing()
            if tp in self._written:
                self.write({other: offset for other, offset in self._written.items() if other != tp})

    def _read_or_nothing(self) -> dict[TopicPartition, int]:
        """Returns no offsets for a damaged file: the start has reported it, and the next write replaces it."""
        try:
            return self.read()
        except StorageError:
            return {}
