"""What brings a log to the disk: the recovery point, and the work that moves it.

A flush has three steps: `begin` lists what is to be flushed, `sync` waits for the disk, `finish` moves the recovery
point. `PartitionLog` holds its lock for the first and the last, not while the disk works, and runs one flush at a time.

Invariant: all below `recovery_point` is on disk. Not thread-safe but for `sync`, which reads and changes no state.
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
    """Where crash recovery may begin to read: the indexes of the active segment when it had `size` bytes, and the
    producers' state when the log ended at `offset`."""

    segment: Segment
    size: int
    indexes: list[bytes | None]
    producers: bytes
    offset: int


class PendingFlush(NamedTuple):
    """What is to be flushed so that all below `offset` is on disk."""

    offset: int
    segments: list[Segment]
    directory: bool
    snapshot: RecoverySnapshot | None


class Flusher:
    """`last_flush_ms`: when the log was last flushed or opened, by the broker's clock."""

    def __init__(self, tp: TopicPartition, directory: Path, recovery_point: int, now_ms: int) -> None:
        self.recovery_point = recovery_point
        self.last_flush_ms = now_ms
        self._tp = tp
        self._directory = directory
        self._snapshot_at: tuple[Segment | None, int] = (None, 0)
        """The segment of the last snapshot that was written, and its size then."""

    # -- a flush -------------------------------------------------------------------------------------------------

    def begin(self, segments: LogSegments, end: int, producers: ProducerState | None) -> PendingFlush:
        """All up to `end`, the log's end. With `producers` a snapshot is taken as well."""
        active, snapshot = segments.active, None
        if producers is not None and active.size:
            snapshot = RecoverySnapshot(active, active.size, active.index_contents(), producers.to_bytes(), end)
        unflushed = [segment for segment in segments if segment.next_offset > self.recovery_point]
        directory, segments.directory_changed = segments.directory_changed, False
        return PendingFlush(end, unflushed, directory, snapshot)

    def sync(self, pending: PendingFlush, open_file: Callable[[Segment], OpenFile | None]) -> None:
        """Waits for the disk. After `StorageError` it is unknown what the disk has stored.

        `open_file` is called for one segment at a time, so that few files are open; None says that the segment was
        deleted meanwhile.
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
        """Moves the recovery point, never beyond `end`, the end of the log now."""
        self.recovery_point = max(self.recovery_point, min(pending.offset, end))
        self.last_flush_ms = now_ms

    def write_snapshot(self, snapshot: RecoverySnapshot, producers: ProducerStateManager) -> None:
        """Writes it, without a flush: its files have checksums, and without them more is read. A failure is logged."""
        try:
            snapshot.segment.write_indexes(snapshot.indexes)
            producers.write_snapshot(snapshot.producers, snapshot.offset)
            self._snapshot_at = (snapshot.segment, snapshot.size)
        except StorageError as error:
            _log.warning("%s; a start after a crash reads more for it", error)

    def truncate_to(self, end: int) -> None:
        """The log ends at `end` now; a snapshot of more must not count."""
        self.recovery_point = min(self.recovery_point, end)
        self._snapshot_at = (None, 0)

    # -- when to flush -------------------------------------------------------------------------------------------

    def rescan_exceeds(self, size: int, active: Segment) -> bool:
        """True if crash recovery would re-scan more than `size` flushed bytes of the active segment."""
        segment, covered = self._snapshot_at
        return active.size - (covered if segment is active else 0) > size

    def is_due(self, flush_ms: int, active: Segment, now_ms: int) -> bool:
        """Of a log with unflushed records: whether `flush.ms` has passed, or a segment that is no longer written has
        not been flushed."""
        due_by_time = flush_ms < LONG_MAX and not self.flushed_within(flush_ms, now_ms)
        return due_by_time or self.recovery_point < active.base_offset

    def flushed_within(self, interval_ms: int, now_ms: int) -> bool:
        """Whether the last flush is less than `interval_ms` ago; False as well when the clock was set back."""
        return 0 <= now_ms - self.last_flush_ms < interval_ms
