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
from ..segment.file_operations import read_file, write_atomically
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
        if (raw := read_file(self.path)) is None:
            return {}
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

    def forget(self, *tps: TopicPartition) -> None:
        """Removes the entries of partitions whose logs are taken out or created again, so that recovery does not use
        the offset of an old log for a later one."""
        with self._lock:
            known = self._known()
            if any(tp in known for tp in tps):
                self.write({other: offset for other, offset in known.items() if other not in tps})

    def lower(self, tp: TopicPartition, offset: int) -> None:
        """Lowers the entry of a partition to `offset` if it is above it."""
        with self._lock:
            known = self._known()
            if known.get(tp, offset) > offset:
                self.write({**known, tp: offset})

    def _known(self) -> dict[TopicPartition, int]:
        """Returns the offsets of the last write, or those in the file; none if it is damaged: the start has reported
        that, and the next write replaces it."""
        if self._written is None:
            try:
                self._written = self.read()
            except StorageError:
                self._written = {}
        return self._written
