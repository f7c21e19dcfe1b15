"""Flushes a log to disk and owns its recovery point.

A flush has three steps: `begin` lists what must be flushed, `sync` waits for the disk, `finish` advances the recovery
point. `PartitionLog` holds its lock during the first and the last step only, and runs one flush at a time.

Invariant: all records below `recovery_point` are on disk. Only `sync`, which uses no state, is thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..config.section import LONG_MAX
from ..errors import StorageError
from ..faults import fault_point
from ..records.partition import TopicPartition
from .segment.file_operations import OpenFile, storage, sync_directory
from .segment.log_segments import LogSegments
from .segment.segment import Segment
from .state.producer_state import ProducerState
from .state.producer_state_manager import ProducerStateManager

_log = logging.getLogger(__name__)


class RecoverySnapshot(NamedTuple):
    """The position from which crash recovery may read: the indexes of the active segment when it had `size` bytes, and
    the producer state when the log ended at `offset`."""

    segment: Segment
    size: int
    indexes: list[bytes | None]
    producers: bytes
    offset: int


class PendingFlush(NamedTuple):
    """The segments and, if set, the directory to flush, so that all records below `offset` are on disk."""

    offset: int
    segments: list[Segment]
    directory: bool
    snapshot: RecoverySnapshot | None


class Flusher:
    """Owns the recovery point of one log and the time of its last flush."""

    def __init__(self, tp: TopicPartition, directory: Path, recovery_point: int, now_ms: int) -> None:
        self._recovery_point = recovery_point
        self._last_flush_ms = now_ms
        self._tp = tp
        self._directory = directory
        self._snapshot_at: tuple[Segment | None, int] = (None, 0)
        """The segment of the last written snapshot, and its size at that time."""

    def __repr__(self) -> str:
        return f"Flusher({self._tp}, recovery_point={self._recovery_point}, last_flush_ms={self._last_flush_ms})"

    @property
    def recovery_point(self) -> int:
        """All records below this offset are on disk."""
        return self._recovery_point

    @property
    def last_flush_ms(self) -> int:
        """The time at which the log was last flushed or opened, by the broker's clock."""
        return self._last_flush_ms

    # -- a flush -------------------------------------------------------------------------------------------------

    def begin(self, segments: LogSegments, end: int, producers: ProducerState | None) -> PendingFlush:
        """Lists the files to flush up to `end`, the log end offset; with `producers`, takes a snapshot as well."""
        active, snapshot = segments.active, None
        if producers is not None and active.size:
            snapshot = RecoverySnapshot(active, active.size, active.index_contents(), producers.to_bytes(), end)
        unflushed = [segment for segment in segments if segment.next_offset > self._recovery_point]
        return PendingFlush(end, unflushed, segments.take_directory_changed(), snapshot)

    def sync(self, pending: PendingFlush, open_file: Callable[[Segment], OpenFile | None]) -> None:
        """Flushes the files and waits for the disk. After a `StorageError` it is unknown which bytes are on disk.

        `open_file` is called for one segment at a time, which keeps few files open; it returns None for a segment that
        was deleted in the meantime.
        """
        with storage(f"cannot flush {self._tp}"):
            if pending.directory:
                sync_directory(self._directory)
            for segment in pending.segments:
                file = open_file(segment)
                if file is not None:
                    fault_point("log.flush")
                    file.sync()

    def finish(self, pending: PendingFlush, end: int, now_ms: int) -> None:
        """Advances the recovery point to the flushed offset, but not above `end`, the current log end offset."""
        self._recovery_point = max(self._recovery_point, min(pending.offset, end))
        self._last_flush_ms = now_ms

    def write_snapshot(self, snapshot: RecoverySnapshot, producers: ProducerStateManager) -> None:
        """Writes the snapshot without flushing it: its files have checksums, and recovery reads more batches if one is
        damaged. Logs a failure instead of raising it."""
        try:
            snapshot.segment.write_indexes(snapshot.indexes)
            producers.write_snapshot(snapshot.producers, snapshot.offset)
            self._snapshot_at = (snapshot.segment, snapshot.size)
        except StorageError as error:
            _log.warning("%s: %s; crash recovery will read more batches", self._tp, error)

    def truncate_to(self, end: int) -> None:
        """Lowers the recovery point to `end`, the new log end offset, and forgets the snapshot, which may cover later
        batches."""
        self._recovery_point = min(self._recovery_point, end)
        self._snapshot_at = (None, 0)

    def restart_at(self, offset: int) -> None:
        """Sets the recovery point of a log without records to its end."""
        self._recovery_point = offset
        self._snapshot_at = (None, 0)

    # -- when to flush -------------------------------------------------------------------------------------------

    def rescan_exceeds(self, size: int, active: Segment) -> bool:
        """True if crash recovery would re-scan more than `size` flushed bytes of the active segment."""
        segment, covered = self._snapshot_at
        return active.size - (covered if segment is active else 0) > size

    def is_due(self, flush_ms: int, active: Segment, now_ms: int) -> bool:
        """True if `flush.ms` has passed or a segment before the active one is not flushed. The log must have unflushed
        records."""
        due_by_time = flush_ms < LONG_MAX and not self.flushed_within(flush_ms, now_ms)
        return due_by_time or self._recovery_point < active.base_offset

    def flushed_within(self, interval_ms: int, now_ms: int) -> bool:
        """True if the last flush was less than `interval_ms` ago; False if the clock was set back."""
        return 0 <= now_ms - self._last_flush_ms < interval_ms
