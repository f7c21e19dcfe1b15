"""A segment: one file of whole record batches in offset order, with its two indexes.

Invariants: `size` is the end of the last whole batch; every offset in the file lies in [base_offset, next_offset); only
the last segment of a log grows. Not thread-safe: the log's lock guards all but the reading of an `OpenFile`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from klamm.core.config.topic import TopicConfig
from klamm.core.errors import CorruptRecordError, StorageError
from klamm.core.faults import fault_point
from klamm.core.log.files import OpenFile, remove, rename, storage
from klamm.core.log.index_file import SegmentState
from klamm.core.log.naming import LOG, OFFSET_INDEX, REMOVED, TIME_INDEX, segment_file
from klamm.core.log.offset_index import MAX_RELATIVE, OffsetIndex
from klamm.core.log.open_files import OpenFiles
from klamm.core.log.reading import MAX_HINTS, Extent
from klamm.core.log.salvage import find_whole, scan_past_damage
from klamm.core.log.scan import NotCachedError, scan
from klamm.core.log.time_index import TimeIndex
from klamm.core.records.header import HEADER_SIZE, NO_TIMESTAMP, BatchHeader

_log = logging.getLogger(__name__)


class LargestTimestamp(NamedTuple):
    """The largest timestamp in the headers of a segment's batches, and the last offset of the first batch that has it;
    -1 and base when none. librdkafka writes 0 where its records have none: `Segment.retention_time_ms` takes 0 for
    that."""

    timestamp_ms: int
    offset: int


@dataclass(slots=True)
class Checked:
    """Bytes that recovery has read, for whoever reports its progress."""

    bytes: int = 0


class Segment:
    def __init__(
        self,
        directory: Path,
        base_offset: int,
        config: TopicConfig,
        now_ms: int,
        files: OpenFiles,
        suffix: str = "",
    ) -> None:
        """Opens or creates the files. `load` or `rebuild` must follow where the file was there before. `suffix` ends
        the names of files that are not yet the log's."""
        self.base_offset = base_offset
        self.path = segment_file(directory, base_offset, LOG + suffix)
        self._files = files
        self._file: OpenFile | None = None
        self.size = self.file.size()
        self.next_offset = base_offset
        self.created_ms = now_ms
        self.dense = False
        """Whether offsets have no holes, so that a batch not exactly at the end of the one before is damage."""
        self.largest = LargestTimestamp(NO_TIMESTAMP, base_offset)
        self._config = config
        self._first_timestamp: int | None = None
        self._unindexed = 0
        self._refused_at = -1
        self._hints: dict[int, int] = {}
        self._damaged = False
        self._checked = Checked()
        limit = config.segment_index_bytes
        self._offsets = OffsetIndex(segment_file(directory, base_offset, OFFSET_INDEX + suffix), base_offset, limit)
        self._times = TimeIndex(segment_file(directory, base_offset, TIME_INDEX + suffix), base_offset, limit)

    @property
    def file(self) -> OpenFile:
        """Hold the object, not its number, while using it: `OpenFiles` may close it here at any time."""
        return self._file or self._open()

    def _open(self) -> OpenFile:
        try:
            file = OpenFile(self.path)
        except StorageError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not self._files.close_some():
                raise
            file = OpenFile(self.path)
        self._file = file
        self._files.used(self)
        return file

    def used(self) -> None:
        """Its file is closed after those of all others."""
        self._files.used(self)

    def reconfigure(self, config: TopicConfig) -> None:
        self._config = config

    # -- opening -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Believe the indexes where they fit the segment, else make them anew; `CorruptRecordError` from `rebuild`."""
        state = self._indexed()
        if state is None or state.size != self.size:
            if state is not None:
                _log.warning("the indexes of %s do not fit it and are made anew", self.path)
            self.rebuild()
            return
        self._resume(state)

    def _indexed(self) -> SegmentState | None:
        """What the segment was like when its indexes were written; None when they cannot be used. Says why."""
        try:
            state = self._offsets.load()
            if state is not None and state == self._times.load() and self.base_offset <= state.next_offset:
                return state
            if self.size:
                _log.info("an index of %s is missing, or they do not fit together: they are made anew", self.path)
        except (CorruptRecordError, StorageError) as error:
            _log.warning("%s; it is made anew", error)
        self._offsets.clear()
        self._times.clear()
        return None

    def _resume(self, state: SegmentState) -> None:
        self.next_offset = state.next_offset
        self.largest = LargestTimestamp(state.largest_ms, state.largest_offset)
        self._unindexed = 0

    def rebuild(self) -> None:
        """Make both indexes anew from the headers. `CorruptRecordError` at the first bad one; the file is left."""
        before = self.next_offset, self.largest
        _, error = self._reindex(verify=False)
        if error:
            self.next_offset, self.largest = before
            raise error

    def salvage(self) -> None:
        """For a segment that no longer grows: make both indexes anew around what is damaged, and say where that is.

        The file is left as it is. After it `size` is where the last whole batch ends.
        """
        end, error = self._reindex(verify=True, keep_below=self.base_offset + MAX_RELATIVE)
        if error:
            _log.error(
                "%s: from byte %d of %d (offset %d) on nothing is whole: %s; reads of it fail, what follows is kept",
                self.path, end, self.size, self.next_offset, error,
            )  # fmt: skip
            self.size = end

    def _rebuild_once(self, error: Exception) -> None:
        """Under readers: the index led astray, or the segment is damaged; then only the index is made around that."""
        if self._damaged:
            raise error
        _log.warning("%s; the indexes of %s are made anew", error, self.path)
        before = self.next_offset, self.largest
        try:
            self._reindex(verify=False, keep_below=self.base_offset + MAX_RELATIVE)
        finally:
            self.next_offset, self.largest = before

    def recover(self, recovery_point: int = 0, checked: Checked | None = None) -> CorruptRecordError | None:
        """After a crash: check every CRC past the recovery point, cut the file at the first bad batch (returned).

        What is damaged below the recovery point is no torn write: it stays, reads find it, and a line says so. The
        pages that the last process left are dropped where they are clean: after a failed fsync they may hold what the
        disk does not.
        """
        self._checked = checked or self._checked
        state = self._indexed()
        if state is not None and (state.size > self.size or state.next_offset > recovery_point):
            state = None
            self._remove_indexes()
        self.file.forget_pages(state.size if state else 0)
        end, error = self._reindex(verify=True, state=state, keep_below=recovery_point)
        if error:
            with storage(f"cannot truncate {self.path}"):
                self.file.truncate(end)
            self.size = end
        return error

    def _remove_indexes(self) -> None:
        """Those on disk may not be believed once the segment has been cut and has grown again."""
        with storage(f"cannot remove the indexes of {self.path}"):
            self._offsets.remove()
            self._times.remove()

    def _reindex(
        self, *, verify: bool, state: SegmentState | None = None, keep_below: int = 0
    ) -> tuple[int, CorruptRecordError | None]:
        """Index the batches, all or those after `state`; where the last good one ends, and the error.

        Damage at an offset below `keep_below` is passed over where something whole is behind it.
        """
        self._hints = {}
        try:
            self._begin_anew(state)
        except CorruptRecordError as error:
            _log.warning("%s; it is made anew", error)
            state = None
            self._begin_anew(state)
        end, found = self._index_from(state.size if state else 0, verify)
        while found and self.next_offset < keep_below:
            behind = self._pass_over(end, found)
            if behind is None:
                break
            end, found = self._index_from(behind, verify)
        self._close_time_index()
        return end, found

    def _index_from(self, end: int, verify: bool) -> tuple[int, CorruptRecordError | None]:
        try:
            for position, header in scan(self.file, end, self.size, verify=verify):
                self._check_order(header)
                if self.dense and header.base_offset != self.next_offset:
                    raise CorruptRecordError(f"batch at offset {header.base_offset} should begin at {self.next_offset}")
                self._index(header, position)
                self._checked.bytes += header.size
                end = position + header.size
        except CorruptRecordError as error:
            return end, error
        return end, None

    def _pass_over(self, damaged: int, error: CorruptRecordError) -> int | None:
        """Index the first whole batch behind byte `damaged`, so that readers are led past the damage; where it ends.
        None when nothing whole is behind."""
        self._damaged = True
        behind = find_whole(self.file, damaged + 1, self.size, self.next_offset)
        if behind is None:
            return None
        header = BatchHeader.parse(self.file.read(HEADER_SIZE, behind))
        if header.last_offset - self.base_offset > MAX_RELATIVE:
            return None
        _log.error(
            "%s: bytes %d to %d (offsets from %d to %d) are damaged: %s; reads of them fail, what is behind is kept",
            self.path, damaged, behind, self.next_offset, header.base_offset - 1, error,
        )  # fmt: skip
        self._unindexed = self._config.index_interval_bytes + 1
        self._index(header, behind)
        return behind + header.size

    def _begin_anew(self, state: SegmentState | None) -> None:
        if state is not None:
            self._offsets.grow()
            self._times.grow()
            self._resume(state)
            return
        self._offsets.clear()
        self._times.clear()
        self._resume(SegmentState(0, self.base_offset, NO_TIMESTAMP, self.base_offset))

    def _check_order(self, header: BatchHeader) -> None:
        if header.base_offset < self.next_offset or header.last_offset_delta < 0:
            raise CorruptRecordError(f"batch at offset {header.base_offset} follows offset {self.next_offset - 1}")
        if header.last_offset - self.base_offset > MAX_RELATIVE:
            raise CorruptRecordError(f"batch at offset {header.base_offset} is too far from {self.base_offset}")

    def _follow(self, header: BatchHeader) -> None:
        self._check_order(header)
        self.next_offset = header.next_offset
        if header.max_timestamp > self.largest.timestamp_ms:
            self.largest = LargestTimestamp(header.max_timestamp, header.last_offset)

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, batch: bytes | bytearray | memoryview, header: BatchHeader) -> None:
        """Write one batch whose offsets are set. After `StorageError` the file is as it was, if it could be cut."""
        self._check_order(header)
        self.append_next(batch, header.base_offset, header.last_offset, header.max_timestamp)

    def append_next(
        self, batch: bytes | bytearray | memoryview, base_offset: int, last_offset: int, max_timestamp: int
    ) -> None:
        """`append` of a batch that is known to follow the last. Every batch pays for this, so it is in one piece."""
        position, size = self.size, len(batch)
        try:
            fault_point("log.append.before_write")
            (self._file or self._open()).write(batch, position)
            fault_point("log.append.after_write")
        except OSError as error:
            self._undo_write(position, error)
        self.size = position + size
        hints = self._hints
        if len(hints) >= MAX_HINTS:
            hints.clear()
        hints[base_offset] = position
        if position == 0 and self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        self.next_offset = last_offset + 1
        if max_timestamp > self.largest.timestamp_ms:
            self.largest = LargestTimestamp(max_timestamp, last_offset)
        if self._unindexed > self._config.index_interval_bytes:
            self._enter(last_offset, position)
            self._unindexed = 0
        self._unindexed += size

    def _undo_write(self, position: int, error: OSError) -> None:
        with storage(f"cannot write {self.path} ({error.strerror}), nor cut off what was written"):
            self.file.truncate(position)
        if self._refused_at != position:  # once, not for every batch that comes while the disk is full
            self._refused_at = position
            _log.error("cannot write %s: %s; batches are refused until a write succeeds", self.path, error.strerror)
        raise StorageError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _index(self, header: BatchHeader, position: int) -> None:
        if self._first_timestamp is None and position == 0:
            self._first_timestamp = header.max_timestamp
        self._follow(header)
        if self._unindexed > self._config.index_interval_bytes:
            self._enter(header.last_offset, position)
            self._unindexed = 0
        self._unindexed += header.size

    def _enter(self, last_offset: int, position: int) -> None:
        self._offsets.add(last_offset, position)
        self._times.add(self.largest.timestamp_ms, self.largest.offset)

    def should_roll(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether this batch belongs into a new segment (Kafka's rule); never for an empty one."""
        return not self.has_room(header.size, header.last_offset, header.max_timestamp, now_ms)

    def has_room(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Whether a batch of `size` bytes may follow here, by Kafka's rule; any may in an empty segment."""
        if not self.size:
            return True
        config, first = self._config, self._first_timestamp
        if first is not None and first > 0 < max_timestamp:
            age_ms = max_timestamp - first
        else:
            age_ms = self._age_ms(max_timestamp, now_ms)
        return (
            self.size + size <= config.segment_bytes
            and age_ms <= config.segment_ms
            and not self._offsets.full
            and not self._times.full
            and last_offset - self.base_offset <= MAX_RELATIVE
        )

    def _age_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """By record time where the first batch and this one have one, else since the segment was opened."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = BatchHeader.parse(self.file.read(HEADER_SIZE, 0)).max_timestamp
        first = NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp
        if first > 0 < timestamp_ms:
            return timestamp_ms - first
        return now_ms - self.created_ms

    def older_than(self, age_ms: int, now_ms: int) -> bool:
        """Whether the first batch's records are that old; never for an empty segment."""
        return bool(self.size) and self._age_ms(now_ms, now_ms) > age_ms

    def seal(self) -> None:
        """No more batches for now: write the indexes. Where the disk is too full for them they stay in memory, and the
        next start makes them anew: a batch that is stored is not refused for its index."""
        self._close_time_index()
        try:
            for index in (self._offsets, self._times):
                index.seal(self._state())
        except StorageError as error:
            _log.warning("%s; the next start makes the index anew", error)

    def index_contents(self) -> list[bytes | None]:
        """The two index files for what the segment holds now; None for one that the disk has already."""
        times = self._times.encoded(self._state(), closing=self.largest if self.largest.timestamp_ms >= 0 else None)
        return [self._offsets.encoded(self._state()), times]

    def stored_index(self) -> list[tuple[int, int]]:
        """For a segment that no longer grows: last offset and position of each batch that the index file names.
        `CorruptRecordError` where one of the two files is damaged or fits another state; empty where it is in
        memory."""
        if self._offsets.in_memory or self._times.in_memory:
            return []
        for index in (self._offsets, self._times):
            if index.stored_state() != self._state():
                raise CorruptRecordError(f"{index.path} does not fit the segment")
        return [(self.base_offset + key, position) for key, position in self._offsets.stored_entries()]

    def write_indexes(self, contents: list[bytes | None]) -> None:
        """What `index_contents` gave, when it has been flushed: after a crash reading begins behind it."""
        for index, content in zip((self._offsets, self._times), contents, strict=True):
            if content is not None:
                index.write(content)

    def _state(self) -> SegmentState:
        return SegmentState(self.size, self.next_offset, self.largest.timestamp_ms, self.largest.offset)

    def _close_time_index(self) -> None:
        if self.largest.timestamp_ms >= 0:
            self._times.add(self.largest.timestamp_ms, self.largest.offset)

    def sync(self) -> None:
        with storage(f"cannot flush {self.path}"):
            self.file.sync()

    # -- finding -------------------------------------------------------------------------------------------------

    def locate(self, offset: int, *, cached_only: bool = False) -> int:
        """Position of the first batch that ends at or after `offset`; `size` when there is none.

        `NotCachedError` when `cached_only` and it takes the disk to say.
        """
        return self.locate_batch(offset, cached_only=cached_only)[0]

    def locate_batch(self, offset: int, *, cached_only: bool = False) -> tuple[int, int]:
        """As `locate`, and the offset where that batch must begin (with holes: there or later)."""
        hint = self._hints.get(offset)
        if hint is not None:
            return hint, offset
        if offset <= self.base_offset:
            return 0, self.base_offset
        if offset >= self.next_offset:
            return self.size, self.next_offset
        if cached_only and not self._offsets.in_memory:
            raise NotCachedError
        try:
            return self._find(offset, self._offsets.lookup(offset), cached_only)
        except (CorruptRecordError, StorageError) as error:
            if cached_only:
                raise NotCachedError from error
            self._rebuild_once(error)
        return self._find(offset, self._offsets.lookup(offset), cached_only)

    def _find(self, offset: int, entry: tuple[int, int] | None, cached_only: bool) -> tuple[int, int]:
        """From the batch that the index names, which must be there, along the chain of batches."""
        start = entry[1] if entry else 0
        expected = self.base_offset
        for position, header in scan(self.file, start, self.size, cached_only=cached_only):
            where = f"{self.path}, byte {position}: a batch"
            if entry and position == start:
                if header.last_offset != entry[0]:
                    raise CorruptRecordError(f"{where} ends at offset {header.last_offset}, its index says {entry[0]}")
                expected = header.base_offset
            elif header.base_offset < expected or header.last_offset_delta < 0:
                raise CorruptRecordError(f"{where} begins at offset {header.base_offset}, {expected} is expected")
            if header.last_offset >= offset:
                return position, expected
            expected = header.next_offset
        return self.size, self.next_offset

    def extent(self, start: int, end: int, expected: int) -> Extent:
        """Bytes [start, end), to be read without the log's lock; the first batch begins at offset `expected`."""
        return Extent(self.file, self.path, start, end, expected, self._hints)

    def batches_from_time(self, timestamp_ms: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of batches from the first that may hold a record of that time or later."""
        try:
            since = self._times.offset(timestamp_ms)
        except (CorruptRecordError, StorageError) as error:
            _log.warning("%s; the indexes of %s are made anew", error, self.path)
            self._reindex(verify=False, keep_below=self.base_offset + MAX_RELATIVE)
            since = self._times.offset(timestamp_ms)
        return self.batches_from(max(since, self.base_offset))

    def batches_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of the whole batches that end at or after `offset`; what is damaged is passed over."""
        try:
            start = self.locate(offset)
        except CorruptRecordError:
            start = 0
        return (found for found in scan_past_damage(self.file, start, self.size) if found[1].last_offset >= offset)

    # -- shortening and removing ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that holds `offset` or a later one."""
        position = self.locate(offset)
        self._hints = {}
        with storage(f"cannot truncate {self.path}"):
            self.file.truncate(position)
        self.size = position
        self._remove_indexes()
        self.rebuild()
        if not position:
            self._first_timestamp = None

    def mark_removed(self) -> list[Path]:
        """Rename the files so that the next start removes them; returns their paths, to be removed after the delay.

        The log file goes first: an index without a segment is swept at the next start, never used.
        """
        return self._rename_all(REMOVED)

    def set_aside(self, suffix: str) -> list[Path]:
        return self._rename_all(suffix)

    def _rename_all(self, suffix: str) -> list[Path]:
        moved = []
        for path in (self.path, self._offsets.path, self._times.path):
            target = path.with_name(path.name + suffix)
            with storage(f"cannot rename {path}"):
                if path.exists():
                    rename(path, target)
                    moved.append(target)
        # A walk that began before goes on in these files, not in new ones of the old names.
        self.path, self._offsets.path, self._times.path = (
            path.with_name(path.name + suffix) for path in (self.path, self._offsets.path, self._times.path)
        )
        self.let_go()
        return moved

    def take_names(self, directory: Path, log_file: Path) -> None:
        """The files, made under another suffix and not open for writing, get the names of the log's; OSError as is.

        The segment, which is at `log_file` by now, comes last: without it the indexes are nothing.
        """
        self._offsets.rename(segment_file(directory, self.base_offset, OFFSET_INDEX))
        self._times.rename(segment_file(directory, self.base_offset, TIME_INDEX))
        self.path = segment_file(directory, self.base_offset, LOG)
        rename(log_file, self.path)

    def discard(self) -> None:
        """Remove the files now."""
        self.let_go()
        with storage(f"cannot remove {self.path}"):
            remove(self.path)
            self._offsets.remove()
            self._times.remove()

    def retention_time_ms(self) -> int:
        """From when on retention counts: the largest timestamp of its records, or the file's time where none has one
        (Kafka's `LogSegment.largestTimestamp`)."""
        stamp = self.largest.timestamp_ms
        return stamp if stamp > 0 else self.modified_ms()

    def modified_ms(self) -> int:
        with storage(f"cannot read {self.path}"):
            return self.path.stat().st_mtime_ns // 1_000_000

    def release(self) -> None:
        """Let go of the files; what was written stays as it is."""
        self.let_go()

    def let_go(self) -> None:
        """Close the log file, once its last reader is done; the next use opens it."""
        self._file = None
        self._files.closed(self)
