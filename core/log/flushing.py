"""What brings a log to the disk: the part of `PartitionLog` that moves the recovery point."""

from __future__ import annotations

import logging
from typing import NamedTuple

from klamm.core.config.section import LONG_MAX
from klamm.core.errors import StorageError
from klamm.core.faults import fault_point
from klamm.core.log.files import OpenFile, storage, sync_directory
from klamm.core.log.parts import LogParts
from klamm.core.log.segment import Segment

_log = logging.getLogger(__name__)


class _Place(NamedTuple):
    """Where a start after a crash may begin to read: the growing segment's indexes, and the producers' state."""

    segment: Segment
    size: int
    indexes: list[bytes | None]
    producers: bytes
    offset: int


class Flushing(LogParts):
    def flush(self, *, keep_place: bool = False) -> None:
        """All that is in the log now is on disk when this returns. After a failure the log is offline: nobody knows
        what a failed fsync has kept.

        `keep_place`: write the indexes of the growing segment and the producers' state, too, as they were at that
        moment, so that a start after a crash reads only what came later.
        """
        with self._flush_lock:
            with self._lock:
                self._check_open()
                target, directory = self._end, self._directory_dirty
                segments = [s for s in self._segments if s.next_offset > self._flushed]
                place = self._place() if keep_place else None
            if target > self._flushed or directory:
                self._sync(segments, directory)
            with self._lock:
                before = self.high_watermark
                self._flushed = max(self._flushed, min(target, self._end))
                self._last_flush_ms = self._clock()
                advanced = self.high_watermark > before
                if place:
                    self._keep(place)
        self._tell(advanced)

    def place_is_far(self, size: int) -> bool:
        """Whether a start after a crash would read more than `size` bytes that are flushed already, for want of a newer
        place than the one that was kept last."""
        with self._lock:
            segment, kept = self._kept
            active = self._segments[-1]
            return active.size - (kept if segment is active else 0) > size

    def _place(self) -> _Place | None:
        active = self._segments[-1]
        if not active.size:
            return None
        return _Place(active, active.size, active.index_contents(), self._producers.to_bytes(), self._end)

    def _keep(self, place: _Place) -> None:
        """Not flushed: they have checksums, and without them more is read. A segment that was rolled meanwhile has
        written its own."""
        if self._closed is not None or self._segments[-1] is not place.segment:
            return
        try:
            place.segment.write_indexes(place.indexes)
            self._snapshots.keep(place.producers, place.offset, durable=False)
            self._kept = (place.segment, place.size)
        except StorageError as error:
            _log.warning("%s; a start after a crash reads more for it", error)

    def _sync(self, segments: list[Segment], directory: bool) -> None:
        try:
            with storage(f"cannot flush {self.tp}"):
                if directory:
                    sync_directory(self.directory)
                    self._directory_dirty = False
                for segment in segments:
                    file = self._file_to_flush(segment)
                    if file is not None:
                        fault_point("log.flush")
                        file.sync()
        except StorageError as error:
            with self._lock:
                self._fail(f"a flush failed ({error})")
            raise

    def _file_to_flush(self, segment: Segment) -> OpenFile | None:
        """One at a time, so that few are open; None when retention has taken the segment meanwhile."""
        with self._lock:
            return segment.file if segment in self._segments else None

    @property
    def last_flush_ms(self) -> int:
        """When the log was last flushed or opened, by the broker's clock."""
        return self._last_flush_ms

    def flush_is_due(self, now_ms: int) -> bool:
        """By `flush.ms`, or because a segment that is no longer written has not been flushed."""
        with self._lock:
            if self._closed is not None or self._end <= self._flushed:
                return False
            limit = self._config.flush_ms
            return self._flushed < self._bases[-1] or (limit < LONG_MAX and not self._flushed_within(limit, now_ms))

    def recovery_point_is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether something has not been flushed, and the last flush is `interval_ms` ago."""
        with self._lock:
            return self._closed is None and self._end > self._flushed and not self._flushed_within(interval_ms, now_ms)

    def _flushed_within(self, interval_ms: int, now_ms: int) -> bool:
        """False as well when the clock was set back."""
        return 0 <= now_ms - self._last_flush_ms < interval_ms
