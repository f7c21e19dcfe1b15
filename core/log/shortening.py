"""What makes a log shorter on request: compaction's swap of segments, and the deletion of a log's first records.

The part of `PartitionLog` that `cleaner`, `compaction` and DeleteRecords use; it stands apart for its length only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from klamm.core.errors import StorageError
from klamm.core.log.errors import OffsetOutOfRangeError
from klamm.core.log.files import OpenFile
from klamm.core.log.parts import LogParts
from klamm.core.log.segment import Segment
from klamm.core.log.swap import commit_swap, finish_swap

TO_HIGH_WATERMARK = -1


class Shortening(LogParts):
    # -- compaction: `cleaner` says when, `compaction` what stays -------------------------------------------------

    def sealed_segments(self) -> list[Segment]:
        """Those that are no longer written and lie below the high watermark."""
        with self._lock:
            self._check_open()
            return [s for s in self._segments[:-1] if s.next_offset <= self.high_watermark]

    def sealed_end(self, sealed: Sequence[Segment]) -> int:
        """The base offset of the segment after `sealed`, what `sealed_segments` gave."""
        with self._lock:
            behind = sealed[-1].base_offset if sealed else -1
            return next((base for base in self._bases if base > behind), self._end)

    def file_of(self, segment: Segment) -> OpenFile:
        """To be read without the lock."""
        with self._lock:
            self._check_open()
            segment.used()
            return segment.file

    def last_offsets_of_producers(self) -> dict[int, int]:
        with self._lock:
            return self._producers.last_offsets()

    def roll_when_older(self, age_ms: int, now_ms: int) -> None:
        """Begin a new segment when the first record of the one that is written is older, so that it is compacted."""
        with self._lock:
            self._check_open()
            if self._segments[-1].older_than(age_ms, now_ms):
                self._roll(self._end, now_ms)

    def swap(self, old: Sequence[Segment], cleaned: Segment) -> bool:
        """Put `cleaned` in the place of `old`; False, and nothing done, when these are not all here any more."""
        with self._flush_lock, self._lock:
            self._check_open()
            first = bisect_right(self._bases, old[0].base_offset) - 1
            last = first + len(old)
            if first < 0 or self._segments[first:last] != list(old) or last >= len(self._segments):
                return False
            commit_swap(self.directory, cleaned)
            due = self._clock() + self._config.file_delete_delay_ms
            try:
                moved = finish_swap(self.directory, old, cleaned)
            except StorageError as error:
                self._fail(f"a compaction could not be finished ({error})")
                raise
            self._removed += [(due, path) for path in moved]
            self._segments[first:last] = [cleaned]
            self._bases[first:last] = [cleaned.base_offset]
            cleaned.used()
            return True

    # -- DeleteRecords -------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """The log begins at `offset` (-1: at the high watermark) unless it begins later; returns where it does.

        Nobody reads what lies before, from now on; `LogManager.delete_records` makes that durable. Whole segments go
        with the next retention. `OffsetOutOfRangeError` above the high watermark.
        """
        with self._lock:
            self._check_open()
            wanted = self.high_watermark if offset == TO_HIGH_WATERMARK else offset
            if not 0 <= wanted <= self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.tp}: records before {offset} cannot be deleted, the high watermark is {self.high_watermark}"
                )
            if wanted > self._start:
                self._epochs.truncate_start(wanted)
                self._start = wanted
            return self._start
