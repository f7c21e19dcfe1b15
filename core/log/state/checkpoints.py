"""Offsets by partition in one file of the log directory, as Kafka writes them, with a checksum (`checksummed`).

A line with the version, one with the number of entries, then `topic partition offset` a line. The files:
`recovery-point-offset-checkpoint` (all before it is on disk), `log-start-offset-checkpoint` (retention has passed),
`replication-offset-checkpoint` (the high watermark), `cleaner-offset-checkpoint` (compaction has read what is before)
and `scrub-offset-checkpoint` (the scrubber's pass has).
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
    """One such file; written only when something changed. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RLock()
        self._written: dict[TopicPartition, int] | None = None

    def read(self) -> dict[TopicPartition, int]:
        """Returns no offsets if there is no file; `StorageError` if it is damaged."""
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
        """Writes the file if the offsets changed; with `always` in any case, so that the file has a new modification
        time."""
        with self._lock:
            if offsets == self._written and not always:
                return
            rows = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items())
            write_atomically(self.path, seal(f"{VERSION}\n{len(offsets)}\n{rows}"))
            self._written = dict(offsets)

    def forget(self, tp: TopicPartition) -> None:
        """Removes the entry of a partition that starts again, so that recovery does not use an old partition's
        offset."""
        with self._lock:
            if self._written is None:
                self._written = self._read_or_nothing()
            if tp in self._written:
                self.write({other: offset for other, offset in self._written.items() if other != tp})

    def _read_or_nothing(self) -> dict[TopicPartition, int]:
        """Returns nothing for a damaged file: the start has reported it already, and the next write replaces it."""
        try:
            return self.read()
        except StorageError:
            return {}
