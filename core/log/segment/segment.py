"""One segment of a log: a file of whole record batches in offset order, with its indexes.

Invariants: `size` is the end of the last whole batch; every offset in the file lies in [base_offset, next_offset); only
the last segment of a log grows. Not thread-safe: the log's lock guards everything except reads of an `OpenFile`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ... import faults
from ...config.sections.topic import TopicConfig
from ...errors import CorruptRecordError, KlammError, NoSpaceError, StorageError
from ...faults import fault_point
from ...records.chain import Piece
from ...records.header import HEADER_SIZE, NO_TIMESTAMP, BatchHeader
from ...records.partition import TopicPartition
from ..recovery.resync import is_unfinished, scan_past_damage
from .file_operations import OpenFile, remove, rename, storage, storage_error, sync_directory, write_atomically
from .index_builder import BuiltIndexes, Checked, IndexBuilder, check_follows
from .index_file import IndexFile, SegmentState
from .log_file import LogFile
from .naming import LOG, REMOVED, segment_file
from .offset_index import MAX_RELATIVE
from .open_files import OpenFiles
from .reading import MAX_HINTS, Extent, forget_older_hints
from .scan import NotCachedError, scan
from .segment_indexes import LargestTimestamp, SegmentIndexes, new_largest
from .transaction_index import AbortedEntry

_log = logging.getLogger(__name__)
_MOST_WRITTEN = 1024 * 1024
"""Upper bound of one write, so that one that fails on a full disk leaves the rest of a large run."""


class DamagedIndexError(CorruptRecordError):
    """The transaction index of `segment` is damaged; the batches of earlier segments are needed to build it again."""

    def __init__(self, segment: Segment, what: str) -> None:
        super().__init__(what)
        self.segment = segment


class Segment:
    """Owns the bounds of its batches and the parts `LogFile` and `SegmentIndexes`. `IndexBuilder` builds the indexes
    and the bounds from the batches."""

    def __init__(
        self,
        tp: TopicPartition,
        directory: Path,
        base_offset: int,
        config: TopicConfig,
        now_ms: int,
        files: OpenFiles,
        suffix: str = "",
        *,
        dense: bool = False,
    ) -> None:
        """Opens or creates the log file. For a file that existed before, `load`, `rebuild` or `recover` must follow.

        `suffix` ends the names of files that are not yet part of the log. `dense`: offsets have no gaps, so a batch
        that does not begin exactly at the end of the one before it is damaged.
        """
        self.base_offset = base_offset
        self._log_file = LogFile(segment_file(directory, base_offset, LOG + suffix), files)
        self._indexes = SegmentIndexes(directory, base_offset, config.segment_index_bytes, suffix)
        self.next_offset = base_offset
        """The offset after the last record. Set by this class only; no property, because every append reads it."""
        self.largest = LargestTimestamp(NO_TIMESTAMP, base_offset)
        """Set by this class only; no property, because every append reads it."""
        self._tp = tp
        self._size = self._log_file.open(create=True).size()
        self._created_ms = now_ms
        self._dense = dense
        self._config = config
        self._first_timestamp: int | None = None
        self._hints: dict[int, int] = {}
        """Maps base offsets to positions, for the batches that readers and the writer have used last."""
        self.cut_more = False
        """True if recovery has cut more than one unfinished write. Set by this class only."""
        self.unindexed_from: int | None = None
        """The offset of the first marker that its transaction index lacks: a pass over the batches of this segment has
        built the others. Set by this class only."""
        self._refused_at = -1
        self._damaged = False

    def __repr__(self) -> str:
        state = f"size={self._size}, largest_ms={self.largest.timestamp_ms}{', damaged' if self._damaged else ''}"
        return f"Segment({self._tp}, offsets=[{self.base_offset}, {self.next_offset}), {state})"

    @property
    def size(self) -> int:
        """The end of the last whole batch, in bytes."""
        return self._size

    @property
    def path(self) -> Path:
        return self._log_file.path

    @property
    def file(self) -> OpenFile:
        """The open file. Hold the object, not its number, while using it: `OpenFiles` may close it here at any time."""
        return self._log_file.open()

    def used(self) -> None:
        """Marks the file as the most recently used, so `OpenFiles` closes it last."""
        self._log_file.used()

    def close_file(self) -> None:
        """Closes the log file once its last reader is done; the next use opens it again."""
        self._log_file.close_file()

    def reconfigure(self, config: TopicConfig) -> None:
        """Replaces the configuration, from the next append on."""
        self._config = config

    def allow_gaps(self) -> None:
        """Permits gaps between the offsets of batches. Only `LogSegments.allow_gaps` calls it."""
        self._dense = False

    # -- opening -------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Uses the index files if they match the segment, otherwise rebuilds them; raises what `rebuild` raises."""
        state = self._indexed()
        if state is None or state.size != self._size:
            if state is not None:
                _log.warning("%s: the indexes of %s do not match it and are rebuilt", self._tp, self.path)
            self.rebuild()
            return
        self.next_offset = state.next_offset
        self.largest = LargestTimestamp(state.largest_ms, state.largest_offset)

    def _indexed(self, *, after_crash: bool = False) -> SegmentState | None:
        """Loads the indexes. Returns the state of the segment when they were written; None, with a line in the log,
        if they cannot be used. `after_crash`: the segment may have grown since, so indexes may be missing."""
        try:
            state = self._indexes.load()
            if state is not None:
                return state
            if self._size:
                _log.log(
                    logging.DEBUG if after_crash else logging.INFO,
                    "%s: an index of %s is missing, or its indexes do not match each other: all are rebuilt",
                    self._tp, self.path,
                )  # fmt: skip
        except (CorruptRecordError, StorageError) as error:
            _log.warning("%s: %s; all indexes of the segment are rebuilt", self._tp, error)
        self._indexes.clear()
        return None

    def rebuild(self, keep_below: int = 0) -> None:
        """Rebuilds the indexes from the batch headers; raises `CorruptRecordError` at the first damaged one that is
        not below the offset `keep_below`. Never changes the log file."""
        built = self._build(keep_below=keep_below)
        if built.error:
            raise built.error
        self._take_bounds(built)

    def rebuild_around_damage(self) -> None:
        """Rebuilds the indexes without the damaged batches, and logs their positions. Only for a segment that no
        longer grows.

        The log file is not changed. `size` becomes the end of the last whole batch.
        """
        built = self._build(verify=True, keep_below=self.base_offset + MAX_RELATIVE)
        self._take_bounds(built)
        if built.error:
            _log.error(
                "%s: %s contains no complete batch from byte %d of %d (offset %d) on: %s; reads of these offsets fail, "
                "later segments are kept",
                self._tp, self.path, built.end, self._size, self.next_offset, built.error,
            )  # fmt: skip
            self._size = built.end

    def recover(self, recovery_point: int = 0, checked: Checked | None = None) -> CorruptRecordError | None:
        """Checks, after a crash, every CRC past the recovery point; truncates the file at the first bad batch and
        returns the error.

        Damage below the recovery point is not a torn write: the batches stay, reads of them fail, and the log says so.
        The clean pages of the last process are dropped from the page cache, because after a failed fsync they may
        differ from the disk.
        """
        state = self._indexed(after_crash=True)
        if state is not None and (state.size > self._size or state.next_offset > recovery_point):
            state = None
            self._remove_indexes()
        self.file.forget_pages(state.size if state else 0)
        built = self._build(verify=True, state=state, keep_below=recovery_point, checked=checked)
        self._take_bounds(built)
        if built.error:
            self.cut_more = not is_unfinished(self.file, built.end, self._size, built.next_offset)
            with storage(f"cannot truncate {self.path}"):
                self.file.truncate(built.end)
            self._size = built.end
        return built.error

    def _build(
        self,
        *,
        verify: bool = False,
        state: SegmentState | None = None,
        keep_below: int = 0,
        checked: Checked | None = None,
    ) -> BuiltIndexes:
        """Builds the indexes. Does not change the bounds of the segment, because there may be readers; the caller
        changes them if there are none."""
        self._hints = {}
        builder = IndexBuilder(
            self._tp, self._log_file, self._indexes, self.base_offset, self._size, self._config.index_interval_bytes,
            checked or Checked(), dense=self._dense, verify=verify,
        )  # fmt: skip
        built = builder.build(state, keep_below)
        self._damaged = self._damaged or built.damaged
        if self._first_timestamp is None:
            self._first_timestamp = built.first_timestamp
        return built

    def _take_bounds(self, built: BuiltIndexes) -> None:
        self.next_offset, self.largest = built.next_offset, built.largest
        self.unindexed_from = built.first_marker

    def _remove_indexes(self) -> None:
        """Removes the index files, because they would be wrong once the truncated segment has grown again."""
        with storage(f"cannot remove the indexes of {self.path}"):
            self._indexes.remove()

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, batch: bytes | bytearray | memoryview, header: BatchHeader) -> None:
        """Appends one batch whose offsets are set. Raises `CorruptRecordError` if it does not follow the last one, and
        `StorageError`, after which the file is unchanged if it could be truncated."""
        check_follows(header, self.base_offset, self.next_offset)
        self.append_next(batch, header.base_offset, header.last_offset, header.max_timestamp)

    def append_next(
        self,
        batch: bytes | bytearray | memoryview,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
    ) -> None:
        """Appends a batch that is known to follow the last one. It is one function because it runs for every batch that
        is produced; `append_run` does the same for many batches."""
        position, size = self._size, len(batch)
        log_file, indexes = self._log_file, self._indexes
        try:
            if faults.hook:
                fault_point("log.append.before_write")
            (log_file.opened or log_file.open()).write(batch, position)
            if faults.hook:
                fault_point("log.append.after_write")
        except OSError as error:
            self._undo_write(position, error)
        self._size = position + size
        hints = self._hints
        if len(hints) >= MAX_HINTS:
            forget_older_hints(hints)
        hints[base_offset] = position
        if position == 0 and self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        self.next_offset = last_offset + 1
        if max_timestamp > self.largest.timestamp_ms:
            self.largest = new_largest(LargestTimestamp, (max_timestamp, last_offset))
        if indexes.bytes_since_entry > self._config.index_interval_bytes:
            try:
                indexes.add(last_offset, position, self.largest)
            except CorruptRecordError as error:  # the first addition reads the entries of the file
                self._rebuild_under_readers(error)
        indexes.bytes_since_entry += size

    def run_length(self, pieces: Sequence[Piece], at: int, room: int, last_offset: int, now_ms: int) -> int:
        """Returns how many of the pieces from `pieces[at]` on fit and may be appended in one write: at least 1. A batch
        takes `room` bytes at least; `last_offset` is the last of all pieces."""
        if not self._size:  # it accepts any batch
            return 1
        start, end = pieces[at].start, at + 1
        most = min(len(pieces), at + self._indexes.entries_left)
        while end < most and pieces[end].end - start <= _MOST_WRITTEN:
            piece = pieces[end]
            size = piece.start - start + max(piece.first_size, room)
            if not self.has_space(size, last_offset, piece.first_max_timestamp, now_ms):
                break
            end += 1
        return end - at

    def append_run(self, data: memoryview, pieces: Sequence[Piece]) -> None:
        """Appends, in one write, pieces of `data` that are known to follow the last batch and one another. The indexes
        name at most one batch of each piece: the first one, and the first with its largest timestamp."""
        position, start = self._size, pieces[0].start
        run = data[start : pieces[-1].end]
        try:
            fault_point("log.append.before_write")
            self._log_file.open().write(run, position)
            fault_point("log.append.after_write")
        except OSError as error:
            self._undo_write(position, error)
        if position == 0 and self._first_timestamp is None:
            self._first_timestamp = pieces[0].max_timestamp
        indexes, interval, shift = self._indexes, self._config.index_interval_bytes, position - start
        for piece in pieces:
            if piece.max_timestamp > self.largest.timestamp_ms:
                self.largest = LargestTimestamp(piece.max_timestamp, piece.max_timestamp_last)
            self._size, self.next_offset = piece.end + shift, piece.last_offset + 1
            if indexes.bytes_since_entry > interval:
                try:
                    indexes.add(piece.first_last_offset, piece.start + shift, self.largest)
                except CorruptRecordError as error:  # the first addition reads the entries of the file
                    self._rebuild_under_readers(error)  # with this piece
                    indexes = self._indexes
                    continue
            indexes.bytes_since_entry += piece.end - piece.start
        hints = self._hints
        for piece in pieces[-MAX_HINTS // 2 :]:
            if len(hints) >= MAX_HINTS:
                forget_older_hints(hints)
            hints[piece.base_offset] = piece.start + shift

    def _undo_write(self, position: int, error: OSError) -> None:
        with storage(f"cannot write {self.path} ({error.strerror}), nor truncate it to its former size"):
            self.file.truncate(position)
        failed = storage_error(f"cannot write {self.path}", error)
        if self._refused_at != position and not isinstance(failed, NoSpaceError):  # logged once, not for every batch
            self._refused_at = position
            _log.error(
                "%s: cannot write %s: %s; batches are refused until a write succeeds",
                self._tp, self.path, error.strerror,
            )  # fmt: skip
        raise failed from error

    def has_space(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """True if a batch of `size` bytes may be appended, by Kafka's rule. An empty segment accepts any batch."""
        if not self._size:
            return True
        config, first = self._config, self._first_timestamp
        if first is not None and first > 0 < max_timestamp:
            age_ms = max_timestamp - first
        else:
            age_ms = self._age_ms(max_timestamp, now_ms)
        return (
            self._size + size <= config.segment_bytes
            and age_ms <= config.segment_ms
            and not self._indexes.full
            and last_offset - self.base_offset <= MAX_RELATIVE
        )

    def _age_ms(self, timestamp_ms: int, now_ms: int) -> int:
        """Returns the age in ms: `timestamp_ms` minus the timestamp of the first batch if both are set, otherwise the
        time since the segment was opened."""
        if self._first_timestamp is None and self._size:
            self._first_timestamp = BatchHeader.parse(self.file.read(HEADER_SIZE, 0)).max_timestamp
        first = NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp
        if first > 0 < timestamp_ms:
            return timestamp_ms - first
        return now_ms - self._created_ms

    def fill_level(self, timestamp_ms: int, now_ms: int) -> str:
        """Returns a phrase for a log line with the value and the limit of each rule in `has_space`."""
        config, age_ms = self._config, self._age_ms(timestamp_ms, now_ms)
        return (
            f"has {self._size} bytes (segment.bytes={config.segment_bytes}), "
            f"is {age_ms} ms old (segment.ms={config.segment_ms}), "
            f"spans {self.next_offset - self.base_offset} offsets (at most {MAX_RELATIVE + 1}), "
            f"and its indexes are {'full' if self._indexes.full else 'not full'}"
        )

    def older_than(self, age_ms: int, now_ms: int) -> bool:
        """True if the first batch is older than `age_ms`; False for an empty segment."""
        return bool(self._size) and self._age_ms(now_ms, now_ms) > age_ms

    def seal(self) -> None:
        """Writes the indexes, because no batch is expected for now. If they cannot be written, they stay in memory and
        the next start rebuilds them: no batch is refused because of an index."""
        self._indexes.close(self.largest)
        try:
            self._indexes.seal(self._state())
        except StorageError as error:
            _log.warning("%s: %s; the next start rebuilds this index", self._tp, error)

    def index_contents(self) -> list[bytes | None]:
        """Returns the contents of the index files for the current state; None for a file that has it already."""
        return self._indexes.contents(self._state())

    def write_indexes(self, contents: list[bytes | None]) -> None:
        """Writes the result of `index_contents`. Call it once the segment is flushed: recovery after a crash then reads
        later batches only."""
        self._indexes.write(contents)

    def stored_index(self) -> list[tuple[int, int]]:
        """Returns last offset and position of each batch that the offset index's file names; empty if an index is in
        memory. Only for a segment that no longer grows. Raises `CorruptRecordError` if one of the files is damaged or
        has another state of the segment."""
        return self._indexes.stored_entries(self._state())

    def _state(self) -> SegmentState:
        largest, aborted = self.largest, len(self._indexes.transactions)
        return SegmentState(self._size, self.next_offset, largest.timestamp_ms, largest.offset, aborted)

    # -- finding -------------------------------------------------------------------------------------------------

    def locate(self, offset: int, *, cached_only: bool = False) -> int:
        """Returns the position of the first batch that ends at or after `offset`; `size` if there is none.

        `NotCachedError` if `cached_only` and the disk would have to be read.
        """
        return self.locate_batch(offset, cached_only=cached_only)[0]

    def locate_batch(self, offset: int, *, cached_only: bool = False) -> tuple[int, int]:
        """Returns the result of `locate`, and the offset at which that batch must begin (with gaps: there or later)."""
        hint = self._hints.get(offset)
        if hint is not None:
            return hint, offset
        if offset <= self.base_offset:
            return 0, self.base_offset
        if offset >= self.next_offset:
            return self._size, self.next_offset
        if cached_only and not self._indexes.offsets.in_memory:
            raise NotCachedError
        try:
            entry = self._indexes.offsets.lookup(offset)
        except (CorruptRecordError, StorageError) as error:
            entry = self._lookup_anew(offset, error, cached_only)
        try:
            return self._find(offset, entry, cached_only)
        except CorruptRecordError as error:
            return self._find(offset, self._lookup_anew(offset, error, cached_only), cached_only)
        except StorageError as error:  # of the log file: the indexes are right
            if cached_only:
                raise NotCachedError from error
            raise

    def _lookup_anew(self, offset: int, error: KlammError, cached_only: bool) -> tuple[int, int] | None:
        """Rebuilds the indexes because of `error` and returns the index entry for `offset`; None, which means a
        search from the start, if the segment cannot be read to its end."""
        if cached_only:
            raise NotCachedError from error
        if self._damaged:
            raise error  # the indexes were already rebuilt without the damaged batches
        try:
            self._rebuild_under_readers(error)
        except StorageError as unreadable:
            _log.warning("%s: the indexes of %s are not rebuilt: %s", self._tp, self.path, unreadable)
            return None
        return self._indexes.offsets.lookup(offset)

    def _find(self, offset: int, entry: tuple[int, int] | None, cached_only: bool) -> tuple[int, int]:
        """Scans from the batch that the index entry names to the one that ends at or after `offset`. Raises
        `CorruptRecordError` if the entry is wrong or a batch does not follow the one before it."""
        start = entry[1] if entry else 0
        expected, path = self.base_offset, self.path
        for position, header in scan(self.file, start, self._size, cached_only=cached_only):
            if entry and position == start:
                if header.last_offset != entry[0]:
                    raise CorruptRecordError(
                        f"{path}, byte {position}: a batch ends at offset {header.last_offset}, "
                        f"but the index has {entry[0]}"
                    )
                expected = header.base_offset
            elif header.base_offset < expected or header.last_offset_delta < 0:
                raise CorruptRecordError(
                    f"{path}, byte {position}: a batch begins at offset {header.base_offset}, expected {expected}"
                )
            if header.last_offset >= offset:
                return position, expected
            expected = header.next_offset
        return self._size, self.next_offset

    def _rebuild_under_readers(self, error: Exception) -> None:
        """Rebuilds the indexes because an entry was wrong or the segment is damaged. Damaged batches get no entries;
        the bounds do not change, because there are readers. If the segment cannot be read to its end, `StorageError`
        and the indexes stay: without the later entries the batches behind that place could not be found."""
        _log.warning("%s: %s; the indexes of %s are rebuilt", self._tp, error, self.path)
        former, self._indexes = self._indexes, self._indexes.emptied()
        try:
            self._build(keep_below=self.base_offset + MAX_RELATIVE)
        except BaseException:
            self._indexes = former
            raise

    # -- transactions --------------------------------------------------------------------------------------------

    @property
    def has_aborted(self) -> bool:
        """True if a marker in this segment aborts a transaction."""
        return len(self._indexes.transactions) > 0

    def add_aborted(self, entry: AbortedEntry) -> None:
        """Adds a transaction that the last marker has aborted. Raises `CorruptRecordError` if the index is damaged."""
        self._indexes.transactions.add(entry)

    def set_aborted(self, entries: Iterable[AbortedEntry]) -> None:
        """Replaces the transaction index by one that is complete, in memory."""
        self._indexes.transactions.replace(entries)
        self.unindexed_from = None

    def indexed(self) -> None:
        """Records that the transactions of all markers have been added."""
        self.unindexed_from = None

    def aborted(self) -> list[AbortedEntry]:
        """Returns the aborted transactions whose marker is in this segment, in the markers' order. Raises
        `CorruptRecordError` if the index is damaged."""
        return self._indexes.transactions.entries()

    def aborted_since(self, offset: int, *, cached_only: bool) -> Iterator[AbortedEntry]:
        """Yields those whose marker is at `offset` or later. Raises `CorruptRecordError` if the index is damaged, and
        `NotCachedError` if `cached_only` and its file would have to be read."""
        index = self._indexes.transactions
        if cached_only and not index.in_memory:
            raise NotCachedError
        return index.since(offset)

    # -- reading -------------------------------------------------------------------------------------------------

    def extent(self, start: int, end: int, expected: int) -> Extent:
        """Returns the byte range [start, end), which can be read without the log's lock; its first batch begins at
        offset `expected`. Marks the file as used."""
        log_file = self._log_file
        file = log_file.opened or log_file.open()
        log_file.used()
        return Extent(file, log_file.path, start, end, expected, self._hints)

    def batches_from_time(self, timestamp_ms: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yields position and header of each batch, from the first one that may have a record with this timestamp or a
        later one."""
        try:
            since = self._indexes.times.offset(timestamp_ms)
        except (CorruptRecordError, StorageError) as error:
            self._rebuild_under_readers(error)
            since = self._indexes.times.offset(timestamp_ms)
        return self.batches_from(max(since, self.base_offset))

    def end_below(self, offset: int) -> int:
        """Returns the end of the last batch that begins below `offset`; the segment's start if there is none. Raises
        `CorruptRecordError` and `StorageError`."""
        if offset >= self.next_offset:
            return self.next_offset
        entry = self._indexes.offsets.lookup(offset - 1)
        end = self.base_offset
        for _, header in scan(self.file, entry[1] if entry else 0, self._size):
            if header.base_offset >= offset:
                break
            end = header.next_offset
        return end

    def batches_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yields position and header of each whole batch that ends at or after `offset`; skips damaged places."""
        try:
            start = self.locate(offset)
        except CorruptRecordError:
            start = 0
        return (found for found in scan_past_damage(self.file, start, self._size) if found[1].last_offset >= offset)

    # -- truncating and removing ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int, keep_below: int = 0) -> None:
        """Removes every batch that contains `offset` or a later one, and rebuilds the indexes. `sync_cut` makes it
        durable. Raises `CorruptRecordError` if a batch that is not below `keep_below` is damaged."""
        position = self.locate(offset)
        try:
            aborted = self.aborted() if self.unindexed_from is None else None
        except CorruptRecordError:
            aborted = None
        self._hints = {}
        with storage(f"cannot truncate {self.path}"):
            self.file.truncate(position)
        self._size = position
        self._remove_indexes()
        self.rebuild(keep_below)
        if aborted is not None:
            self.set_aborted(entry for entry in aborted if entry.last_offset < self.next_offset)
        if not position:
            self._first_timestamp = None

    def sync_cut(self) -> None:
        """Makes a truncation durable, and the removal of other files of the log. If it raises, it is unknown which
        bytes are on disk."""
        with storage(f"cannot flush {self.path}"):
            self.file.sync()
            sync_directory(self.path.parent)

    def mark_removed(self) -> list[Path]:
        """Renames the files so that the next start removes them; returns their paths, to be removed after the delay.

        The log file is renamed first: the next start removes an index without a segment and never uses it.
        """
        return self.set_aside(REMOVED)

    def set_aside(self, suffix: str) -> list[Path]:
        """Adds `suffix` to the names of the files, the log file first, and closes it; returns the new paths of
        those that exist.

        After `StorageError` each part has the name that its file has now, so reads still find the segment. A second
        call renames the rest and returns all paths.
        """
        moved: list[Path] = []
        parts: tuple[LogFile | IndexFile, ...] = (self._log_file, *self._indexes.files)
        for part in parts:
            path = part.path
            target = path if path.name.endswith(suffix) else path.with_name(path.name + suffix)
            with storage(f"cannot rename {path}"):
                if path.exists():
                    if path != target:
                        rename(path, target)
                    moved.append(target)
            # A scan in progress continues in this file, not in a new file of the old name.
            part.path = target
        self.close_file()
        return moved

    def take_names(self, directory: Path, log_file: Path) -> None:
        """Renames files that were written under another suffix, and are not open for writing, to the names of the log;
        raises OSError.

        The log file, now at `log_file`, is renamed last: indexes without a log file are ignored.
        """
        self._indexes.take_names(directory)
        self._log_file.path = segment_file(directory, self.base_offset, LOG)
        rename(log_file, self.path)

    def discard(self) -> None:
        """Removes the files at once."""
        self.close_file()
        with storage(f"cannot remove {self.path}"):
            remove(self.path)
            self._indexes.remove()

    def empty(self, target: Path) -> None:
        """Replaces the log file by an empty one, which is then renamed to `target`, and removes the indexes.

        A read in progress continues in the old file. The segment must not be used any more.
        """
        self.close_file()
        write_atomically(self.path, b"", durable=False)
        with storage(f"cannot begin {target}"):
            self._indexes.remove()
            if target != self.path:
                rename(self.path, target)

    def retention_time_ms(self) -> int:
        """Returns the time from which retention counts: the largest timestamp of the records, or the file's
        modification time if no record has a timestamp (Kafka's `LogSegment.largestTimestamp`)."""
        stamp = self.largest.timestamp_ms
        return stamp if stamp > 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """Returns the modification time of the log file."""
        with storage(f"cannot read {self.path}"):
            return self.path.stat().st_mtime_ns // 1_000_000
