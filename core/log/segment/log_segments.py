"""Holds the segments of one partition, in offset order.

Invariants: there is at least one; base offsets increase; each segment begins at or after the end of the one before it;
only the last one, the active segment, grows. Not thread-safe: `PartitionLog` holds the lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from ...config.sections.topic import TopicConfig
from ...errors import CorruptRecordError, StorageError
from ...records.partition import TopicPartition
from ..cleanup.swap import finish_swap
from .file_operations import storage, sync_directory, write_atomically
from .naming import LOG, OFFSET_GAPS, segment_file
from .open_files import OpenFiles
from .reading import BrokenChainError, Extent
from .segment import DamagedIndexError, Segment
from .transaction_index import AbortedEntry


class LogSegments:
    """Finds, rolls, replaces, truncates and deletes segments. `len` and iteration go from the oldest to the active one.

    The files of a segment that was deleted or replaced are renamed at once and stay on disk until the caller removes
    `deleted_files`.
    """

    def __init__(
        self,
        tp: TopicPartition,
        directory: Path,
        segments: Sequence[Segment],
        config: TopicConfig,
        files: OpenFiles,
        *,
        dense: bool,
    ) -> None:
        """`segments`: at least one, loaded, each with the same value of `dense`."""
        self.active = segments[-1]
        """The last segment. Set by this class only; no property, because every append reads it."""
        self._tp = tp
        self._dense = dense
        self._directory_changed = True
        self._directory = directory
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self._config = config
        self._files = files
        self._deleted: list[tuple[int, Path]] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._segments

    @property
    def dense(self) -> bool:
        """True if offsets have no gaps, so that each batch begins exactly where the one before it ended. Only
        `allow_gaps` changes it, here and in every segment."""
        return self._dense

    @property
    def first_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self._bases[0]

    @property
    def size(self) -> int:
        """The size of all segments in bytes."""
        return sum(segment.size for segment in self._segments)

    def reconfigure(self, config: TopicConfig) -> None:
        self._config = config
        for segment in self._segments:
            segment.reconfigure(config)

    def allow_gaps(self) -> None:
        """Permits gaps between the offsets of batches from now on, also after a restart. Reads then no longer check
        that each batch begins exactly where the one before it ended."""
        if self._dense:
            write_atomically(
                self._directory / OFFSET_GAPS, b"offsets have gaps: this log was compacted, or is a replica\n"
            )
            self._dense = False
            for segment in self._segments:
                segment.allow_gaps()

    # -- finding -------------------------------------------------------------------------------------------------

    def sealed(self, below: int) -> list[Segment]:
        """Returns the segments before the active one that end at or below the offset `below`."""
        return [segment for segment in self._segments[:-1] if segment.next_offset <= below]

    def base_after(self, offset: int) -> int | None:
        """Returns the first base offset above `offset`; None if there is none."""
        return next((base for base in self._bases if base > offset), None)

    def extents(self, offset: int, bound: int, max_bytes: int, *, cached_only: bool) -> list[Extent]:
        """Returns the byte ranges of the batches from the one that contains `offset` to the offset `bound`, in as many
        segments as are necessary to reach `max_bytes`. The extents hold the files open.

        Raises `BrokenChainError` if the log has no gaps and offsets are missing at `offset`, and `NotCachedError` if
        `cached_only` and the disk would have to be read.
        """
        found: list[Extent] = []
        segments, bases = self._segments, self._bases
        index, size = bisect_right(bases, offset) - 1, 0
        while offset < bound and index < len(segments) and size < max(max_bytes, 1):
            segment = segments[index]
            start, expected = segment.locate_batch(offset, cached_only=cached_only)
            end = segment.size
            if bound < segment.next_offset:
                end = segment.locate(bound, cached_only=cached_only)
            if end > start:
                found.append(segment.extent(start, end, expected))
                size += end - start
            index += 1
            if index < len(segments) and self._dense and segment.next_offset < bases[index]:
                if found:
                    break  # this read ends before the gap; the next one, which begins at the gap, raises
                missing = f"offsets {segment.next_offset} to {bases[index] - 1} are damaged or missing"
                raise BrokenChainError(segment.path, segment.size, missing)
            offset = max(offset, segment.next_offset)
        return found

    def aborted(self, offset: int, end: int, *, cached_only: bool) -> list[AbortedEntry]:
        """Returns the aborted transactions with records in [offset, end), wherever they begin, by their first offsets.

        Raises `DamagedIndexError` at a segment whose transaction index is damaged, and `NotCachedError` if
        `cached_only` and an index would have to be read.
        """
        found: list[AbortedEntry] = []
        for segment in self._segments[max(bisect_right(self._bases, offset) - 1, 0) :]:
            if not segment.has_aborted:
                continue
            try:
                for entry in segment.aborted_since(offset, cached_only=cached_only):
                    if entry.first_offset < end:
                        found.append(entry)
                    if entry.last_stable_offset >= end:  # those of later markers begin at `end` or later
                        return sorted(found, key=attrgetter("first_offset"))
            except CorruptRecordError as error:
                raise DamagedIndexError(segment, str(error)) from error
        return sorted(found, key=attrgetter("first_offset"))

    # -- changing ------------------------------------------------------------------------------------------------

    def roll(self, base_offset: int, now_ms: int) -> Segment:
        """Begins a new active segment; the old one must have been sealed. Changes nothing if it raises."""
        segment = Segment(self._tp, self._directory, base_offset, self._config, now_ms, self._files, dense=self._dense)
        sealed, self.active = self.active, segment
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._directory_changed = True
        sealed.used()
        return segment

    def holds_sealed(self, segments: Sequence[Segment]) -> bool:
        """True if the log has all of `segments`, one after the other, and none of them is the active one."""
        first = bisect_right(self._bases, segments[0].base_offset) - 1
        last = first + len(segments)
        return first >= 0 and last < len(self._segments) and self._segments[first:last] == list(segments)

    def replace(self, old: Sequence[Segment], cleaned: Segment, due_ms: int) -> None:
        """Replaces `old` by `cleaned`, whose swap has started; the old files are due for removal at `due_ms`. After
        any error the files match neither `old` nor `cleaned`."""
        moved = finish_swap(self._directory, old, cleaned)
        self._deleted += [(due_ms, path) for path in moved]
        first = bisect_right(self._bases, old[0].base_offset) - 1
        self._segments[first : first + len(old)] = [cleaned]
        self._bases[first : first + len(old)] = [cleaned.base_offset]
        cleaned.used()

    def delete_oldest(self, count: int, due_ms: int) -> None:
        """Deletes the `count` oldest segments, never the active one; their files are due for removal at `due_ms`.

        After `StorageError` the segments before the one that failed are deleted; that one and those after it remain.
        """
        for segment in self._segments[:count]:
            moved = segment.mark_removed()
            self._deleted += [(due_ms, path) for path in moved]
            del self._segments[0], self._bases[0]

    def deleted_files(self, now_ms: int) -> list[Path]:
        """Returns the files whose delay has passed. The caller removes them and then calls `forget_deleted`."""
        return [path for at, path in self._deleted if at <= now_ms]

    def forget_deleted(self, removed: Collection[Path], now_ms: int) -> None:
        """Forgets files that were due at `now_ms` and were removed. A compaction may have deleted another segment with
        the same base offset, and so the same file names, since then: its files stay in the list."""
        self._deleted = [(at, path) for at, path in self._deleted if at > now_ms or path not in removed]

    def take_directory_changed(self) -> bool:
        """Returns True if a segment file was created since the last call; the caller then flushes the directory."""
        changed, self._directory_changed = self._directory_changed, False
        return changed

    def end_after_truncation(self, offset: int) -> int:
        """Returns the log end that `truncate_to(offset)` leaves, or a lower offset if the log has gaps or is damaged
        there."""
        segment = self.last_kept(offset)
        try:
            return segment.locate_batch(offset)[1] if self._dense else segment.base_offset
        except (CorruptRecordError, StorageError):
            return segment.base_offset

    def end_below(self, offset: int) -> int:
        """Returns the end of the last batch that begins below `offset`: `offset` unless the log has gaps. If it cannot
        be read: the start of its segment."""
        segment = self.last_kept(offset)
        try:
            return offset if self._dense else segment.end_below(offset)
        except (CorruptRecordError, StorageError):
            return segment.base_offset

    def last_kept(self, offset: int) -> Segment:
        """Returns the segment that `truncate_to(offset)` makes the active one."""
        return self._segments[max(bisect_left(self._bases, offset), 1) - 1]

    def truncate_to(self, offset: int, keep_below: int = 0) -> None:
        """Removes every batch that contains `offset` or a later one, and the segments that begin at or after `offset`,
        except the first segment of the log. Damaged batches below `keep_below` stay. `sync_cut` makes it durable."""
        self._discard_from(max(bisect_left(self._bases, offset), 1))
        self.active.truncate_to(offset, keep_below)

    def _discard_from(self, keep: int) -> None:
        """Removes all segments but the `keep` oldest, the newest first. They are removed from the disk before an
        earlier one is cut: a power loss would otherwise leave a gap before them."""
        if keep == len(self._segments):
            return
        while len(self._segments) > keep:
            self._bases.pop()
            discarded = self._segments.pop()
            self.active = self._segments[-1]
            discarded.discard()
        with storage(f"cannot flush {self._directory}"):
            sync_directory(self._directory)

    def sync_cut(self) -> None:
        """Makes a truncation or restart durable. If it raises, it is unknown which bytes are on disk."""
        self.active.sync_cut()

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Removes all records, the newest first, and begins an empty segment at `offset`.

        The oldest segment is emptied and renamed, so that the directory always has one: without any, the log would
        count as lost after a crash. `sync_cut` makes it durable.
        """
        self._discard_from(1)
        self._segments[0].empty(segment_file(self._directory, offset, LOG))
        self.active = Segment(self._tp, self._directory, offset, self._config, now_ms, self._files, dense=self._dense)
        self._segments, self._bases = [self.active], [offset]
        self._directory_changed = True
        self.active.used()

    def seal(self) -> None:
        """Writes the indexes that are in memory only."""
        for segment in self._segments:
            segment.seal()

    def close_files(self) -> None:
        """Closes each file once its last reader is done."""
        for segment in self._segments:
            segment.close_file()
