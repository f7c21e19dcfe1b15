"""A partition's log: segments in a directory, read and appended to by offset.

Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset; each segment begins at or after
the end of the one before; only the last grows. Consumers see what lies below the high watermark, which, where
`flush.messages` or `flush.ms` is set, is held back to what has been flushed.

Blocking and thread-safe. One lock guards all state; batches are read and fsync is called outside it.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from threading import Lock, RLock
from typing import Final, NamedTuple
from uuid import UUID

from klamm.core.config.section import LONG_MAX
from klamm.core.config.topic import TopicConfig
from klamm.core.errors import CorruptRecordError, StorageError
from klamm.core.log.clock import Clock, system_clock
from klamm.core.log.errors import (
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    LogClosedError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    WouldBlockError,
)
from klamm.core.log.files import is_short, remove, storage, write_atomically
from klamm.core.log.flushing import Flushing
from klamm.core.log.loader import LoadedLog, OpenFrom, load, replay
from klamm.core.log.naming import HOLES
from klamm.core.log.open_files import OpenFiles
from klamm.core.log.plain_append import PlainAppend
from klamm.core.log.reading import BrokenChainError, ChainRules, Extent, read_extents
from klamm.core.log.retention import expired
from klamm.core.log.scan import NotCachedError
from klamm.core.log.segment import Segment
from klamm.core.log.shortening import Shortening
from klamm.core.log.timestamps import TimestampedOffset, batches_since, first_record_since
from klamm.core.log.topic_id import claim_directory
from klamm.core.log.validation import ON_LOOP_UNPACKED, AppendOrigin, Validator
from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import MAX_DECOMPRESSED
from klamm.core.records.header import NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeader, rewrite_base, rewrite_log_append_time
from klamm.core.records.partition import TopicPartition
from klamm.core.records.recompress import recompress

_log = logging.getLogger(__name__)
_NO_TIME: Final = NO_TIMESTAMP
_MAX_DAMAGED: Final = 1000


class ReadIsolation(Enum):
    """How far a read may see: followers to the end, consumers to the high watermark or the last stable offset."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    COMMITTED = "committed"


class AppendResult(NamedTuple):
    """`log_append_time_ms` is -1 unless the broker's clock stamped the batch. `duplicate`: stored before, a retry."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = _NO_TIME
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class LogRead:
    """Whole batches, the first of which holds the offset asked for unless it fell into a hole; and the log's bounds."""

    data: bytes
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int


class PartitionLog(Shortening, Flushing, PlainAppend):
    def __init__(
        self,
        directory: Path,
        tp: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        loaded: LoadedLog,
        known: OpenFrom,
        clock: Clock,
        codecs: CodecTable,
        files: OpenFiles,
    ) -> None:
        """Use `open`."""
        self.files = files
        self.directory = directory
        self.tp = tp
        self.topic_id = topic_id
        self.on_visible: Callable[[TopicPartition], None] | None = None
        """Called, without the lock, when consumers can see more than before; must return at once."""
        self.verify_on_read = False
        self.decompressed_max_bytes = MAX_DECOMPRESSED
        """Whether reads check the CRC of every batch (`log.verify.on.read`)."""
        self.corrupt_batches = 0
        """Places found damaged since the log was opened."""
        self._damaged: set[tuple[str, int]] = set()
        self._dense = not (directory / HOLES).exists()
        self._clock = clock
        self._codecs = codecs
        self._lock = RLock()
        self._flush_lock = Lock()
        self._closed: str | None = None
        self._segments = loaded.segments
        self._bases = [segment.base_offset for segment in loaded.segments]
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._end = loaded.segments[-1].next_offset
        if known.log_start_offset > self._end:
            _log.error(
                "%s: the log ends at %d, before its start %d in the checkpoint: what lay there is lost",
                tp, self._end, known.log_start_offset,
            )  # fmt: skip
        self._start = min(max(known.log_start_offset, self._bases[0]), self._end)
        self._flushed = min(max(known.recovery_point, self._start), self._end) if not known.clean else self._end
        self._replicated = min(max(known.high_watermark, self._start), self._end)
        self._last_flush_ms = clock()
        self._kept = (None, 0)
        self._directory_dirty = True
        self._removed: list[tuple[int, Path]] = []
        self._set_config(config)

    @classmethod
    def open(
        cls,
        directory: Path,
        topic_partition: TopicPartition,
        topic_id: UUID,
        config: TopicConfig,
        clock: Clock = system_clock,
        *,
        codecs: CodecTable,
        known: OpenFrom | None = None,
        files: OpenFiles | None = None,
    ) -> PartitionLog:
        """Open or create; checks and repairs as `loader` says. `StorageError` when the directory is another topic's.
        `files` bounds the open files of all logs that share it."""
        known, files = known or OpenFrom(), OpenFiles() if files is None else files
        claim_directory(directory, topic_partition, topic_id)
        loaded = load(directory, config, known, clock(), files)
        log = cls(directory, topic_partition, topic_id, config, loaded, known, clock, codecs, files)
        if log._held_back and log._end > log._flushed:
            log.flush()  # what a crash left unflushed has been checked, and may be seen
        return log

    # -- configuration -------------------------------------------------------------------------------------------

    @property
    def config(self) -> TopicConfig:
        return self._config

    def reconfigure(self, config: TopicConfig) -> None:
        """Takes effect with the next append, flush and retention."""
        with self._lock:
            self._set_config(config)
            for segment in self._segments:
                segment.reconfigure(config)

    def _set_config(self, config: TopicConfig) -> None:
        self._config = config
        self._validator = Validator(config, self._codecs)
        if config.compacts:
            self._allow_holes()
        self._held_back = config.flush_messages < LONG_MAX or config.flush_ms < LONG_MAX
        self._log_append_time = config.message_timestamp_type == "LogAppendTime"
        self._as_sent = config.compression_type == "producer" and not config.compacts
        self._takes_plain = self._as_sent and not self._held_back and not self._log_append_time

    def _allow_holes(self) -> None:
        """Offsets may have gaps from now on, after a change of `cleanup.policy` too: reads check the rest."""
        if self._dense:
            write_atomically(self.directory / HOLES, b"offsets have gaps: this log was compacted, or is a replica\n")
            self._dense = False
            for segment in self._segments:
                segment.dense = False

    def append_may_block(self, batch: bytes | bytearray | memoryview) -> bool:
        """Whether appending opens the batch or waits for the disk, so that it does not belong on an event loop."""
        if self._config.flush_messages < LONG_MAX:
            return True
        try:
            return self._validator.may_block(BatchHeader.parse(batch))
        except CorruptRecordError:
            return False  # append says what is wrong, at once

    # -- bounds --------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self._start

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._end

    @property
    def high_watermark(self) -> int:
        """Consumers see what lies below."""
        return min(self._replicated, self._flushed) if self._held_back else self._replicated

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open. Transactional batches are refused, so none ever is."""
        return self.high_watermark

    @property
    def recovery_point(self) -> int:
        """All below is on disk."""
        return self._flushed

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def leader_epoch(self) -> int:
        """The last epoch written under; -1 when none."""
        return self._epochs.latest

    @property
    def highest_producer_id(self) -> int:
        """The highest producer id among those whose retries are known here; -1 when none."""
        return self._producers.highest_id

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Largest known epoch up to `epoch` and its end offset (KIP-101); (-1, -1) when not known."""
        with self._lock:
            return self._epochs.end_offset(epoch, self._end)

    def begin_leader_epoch(self, epoch: int, *, durable: bool = True) -> None:
        """This broker leads from here on under `epoch`: note it now, on disk, so that the first append need not.
        Without `durable` the caller makes many logs' epochs durable together (`sync_leader_epochs`) before it appends:
        no CRC covers the epoch in a batch, so that the file must never know less than the batches."""
        with self._lock:
            self._check_open()
            self._epochs.assign(epoch, self._end, durable=durable)

    @property
    def leader_epochs_durable(self) -> bool:
        """Whether the epochs that have begun would be known after a power cut."""
        return self._epochs.durable

    def sync_leader_epochs(self, *, written: bool = False) -> None:
        """`written`: the caller has synced the whole file system since the epoch began."""
        with self._lock:
            self._epochs.sync(written=written)

    def advance_high_watermark(self, offset: int) -> bool:
        """All replicas have what lies below `offset`; whether consumers see more now. It never falls but by
        `truncate_to`."""
        with self._lock:
            before = self.high_watermark
            self._replicated = max(self._replicated, min(offset, self._end))
            advanced = self.high_watermark > before
        self._tell(advanced)
        return advanced

    def _tell(self, advanced: bool) -> None:
        if advanced and self.on_visible is not None:
            self.on_visible(self.tp)

    # -- appending -----------------------------------------------------------------------------------------------

    def append(
        self,
        batch: bytearray | memoryview,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        leader_epoch: int = 0,
        on_loop: bool = False,
    ) -> AppendResult:
        """Store exactly one batch; its base offset and leader epoch are set in place (a replica's are kept).

        `on_loop`: the caller must not wait; `WouldBlockError` where the records are to be read for longer than that
        allows. Raises what `validation` and `producer_state` say, `FencedLeaderEpochError` or `StorageError`; nothing
        is then stored.
        """
        now_ms = self._clock()
        append_time = _NO_TIME
        try:
            header = self._validator.check(batch, origin, now_ms)
            if origin is not AppendOrigin.REPLICA and self._validator.requires_open(header):
                batch, header = self._opened(batch, header, now_ms, on_loop)
        except InvalidTimestampError as error:
            if on_loop:
                raise WouldBlockError(f"{self.tp}: the records are read to name those that are wrong") from error
            raise self._validator.with_records(error, batch, self.decompressed_max_bytes, now_ms) from None
        if origin is not AppendOrigin.REPLICA and self._log_append_time:
            header = rewrite_log_append_time(batch, 0, header, now_ms)
            append_time = now_ms
        with self._lock:
            self._check_open()
            if leader_epoch < self._epochs.latest:
                raise FencedLeaderEpochError(
                    f"{self.tp}: append under leader epoch {leader_epoch}, {self._epochs.latest} has begun"
                )
            if origin is AppendOrigin.REPLICA:
                self._check_follows(header)
            elif header.producer_id != NO_PRODUCER_ID:
                stored = self._producers.check(header)
                if stored:
                    append_time = append_time if append_time == _NO_TIME else stored.timestamp_ms
                    return AppendResult(stored.base_offset, stored.last_offset, append_time, duplicate=True)
            if origin is not AppendOrigin.REPLICA:
                rewrite_base(batch, 0, self._end, leader_epoch)
                header = header.rebased(self._end, leader_epoch)
            self._store(batch, header, now_ms)
            flush = self._end - self._flushed >= self._config.flush_messages
        if flush:
            self.flush()
        return AppendResult(header.base_offset, header.last_offset, append_time)

    def _opened(
        self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int, on_loop: bool
    ) -> tuple[bytearray | memoryview, BatchHeader]:
        """The batch as it is stored, its records read; see `append_may_block`."""
        most = self.decompressed_max_bytes
        try:
            opened = self._validator.open(batch, header, min(most, ON_LOOP_UNPACKED) if on_loop else most, now_ms)
        except MessageTooLargeError as error:
            if on_loop and most > ON_LOOP_UNPACKED:
                raise WouldBlockError(f"{self.tp}: {error}") from error
            raise
        if self._config.compacts:
            self._validator.check_keys(opened)
        stored = self._validator.stored_codec(header)
        if stored == header.codec_id:
            return batch, opened.header
        return recompress(opened.header, opened.records, self._codecs.by_id(stored))

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosedError(f"{self.tp}: {self._closed}")

    def _check_follows(self, header: BatchHeader) -> None:
        if header.base_offset < self._end:
            raise InvalidRecordError(f"{self.tp}: the leader's batch at {header.base_offset} is before {self._end}")
        if header.base_offset > self._end:
            self._allow_holes()

    def _store(self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
        self._epochs.assign(header.leader_epoch, header.base_offset)
        active = self._segments[-1]
        if active.should_roll(header, now_ms):
            active = self._roll(header.base_offset, now_ms)
        try:
            active.append(batch, header)
        except StorageError as error:
            self._write_failed(active, error)
            raise
        self._producers.update(header, now_ms)
        self._end = header.next_offset

    def _write_failed(self, active: Segment, error: StorageError) -> None:
        if active.next_offset != self._end or active.file.size() != active.size:
            self._fail(f"a write failed ({error})")

    def _fail(self, why: str) -> None:
        """What the disk holds is not known any more: refuse everything until the log is opened again."""
        self._closed = f"the log is offline, {why}; restart the broker to recover it"
        _log.error("%s: %s", self.tp, self._closed)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        """Begin a new segment; the old one is flushed by maintenance."""
        sealed = self._segments[-1]
        sealed.seal()
        self._snapshots.write(self._producers, base_offset, durable=False)
        segment = Segment(self.directory, base_offset, self._config, now_ms, self.files)
        segment.dense = self._dense
        self._segments.append(segment)
        sealed.used()
        self._bases.append(base_offset)
        self._directory_dirty = True
        return segment

    # -- reading -------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK,
        min_one: bool = True,
    ) -> LogRead:
        """Whole batches from the one that holds `offset`, up to `max_bytes` and to the isolation's bound.

        With `min_one` the first batch is returned however large. `OffsetOutOfRangeError` outside [log start, log end].
        """
        extents, bounds = self._plan(offset, max_bytes, isolation)
        data = self._read(extents, max_bytes, min_one, cached_only=False)
        return LogRead(data or b"", *bounds)

    def _read(self, extents: list[Extent], max_bytes: int, min_one: bool, *, cached_only: bool) -> bytes | None:
        """What lies before a broken place is served, and the next read is refused; `CorruptRecordError`."""
        rules = self.chain_rules(verify=self.verify_on_read)
        with storage(f"cannot read {self.tp}"):
            data, broken = read_extents(extents, max_bytes, min_one, rules, cached_only=cached_only)
        if broken is not None:
            self.report(broken)
            if not data:
                raise broken
        return data

    def chain_rules(self, *, verify: bool) -> ChainRules:
        """What its batches must be like, now."""
        return ChainRules(self._dense, verify, *self._epochs.columns())

    def report(self, broken: BrokenChainError) -> None:
        """Say once what is damaged where, and count it."""
        place = broken.path.name, broken.position
        if place not in self._damaged and len(self._damaged) < _MAX_DAMAGED:
            self._damaged.add(place)
            self.corrupt_batches += 1
            _log.error("%s: %s; it is not served", self.tp, broken)

    def read_cached(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK,
        min_one: bool = True,
    ) -> LogRead | None:
        """As `read`, without ever waiting for the disk: None when not all is in the page cache."""
        try:
            extents, bounds = self._plan(offset, max_bytes, isolation, cached_only=True)
        except NotCachedError:
            return None
        data = self._read(extents, max_bytes, min_one, cached_only=True)
        return None if data is None else LogRead(data, *bounds)

    def _plan(
        self, offset: int, max_bytes: int, isolation: ReadIsolation, *, cached_only: bool = False
    ) -> tuple[list[Extent], tuple[int, int, int]]:
        """Which bytes of which files; the files are held open by the extents."""
        with self._lock:
            self._check_open()
            bounds = (self.high_watermark, self._start, self.last_stable_offset)
            if not self._start <= offset <= self._end:
                raise OffsetOutOfRangeError(f"{self.tp}: offset {offset} is not in [{self._start}, {self._end}]")
            bound = self._bound(isolation)
            extents: list[Extent] = []
            index = bisect_right(self._bases, offset) - 1
            wanted = 0
            while offset < bound and index < len(self._segments) and wanted < max(max_bytes, 1):
                segment = self._segments[index]
                start, expected = segment.locate_batch(offset, cached_only=cached_only)
                end = segment.size
                if bound < segment.next_offset:
                    end = segment.locate(bound, cached_only=cached_only)
                if end > start:
                    extents.append(segment.extent(start, end, expected))
                    segment.used()
                    wanted += end - start
                index += 1
                if index < len(self._segments) and self._ends_early(segment, self._bases[index], bool(extents)):
                    break
                offset = max(offset, segment.next_offset)
            return extents, bounds

    def _ends_early(self, segment: Segment, following: int, found: bool) -> bool:
        """Whether offsets are missing behind a segment, so that a read may not go on in the next; `BrokenChainError`
        where it has `found` nothing before."""
        if not self._dense or segment.next_offset >= following:
            return False
        if found:
            return True
        missing = f"offsets {segment.next_offset} to {following - 1} are damaged or missing"
        broken = BrokenChainError(segment.path, segment.size, missing)
        self.report(broken)
        raise broken

    def _bound(self, isolation: ReadIsolation) -> int:
        if isolation is ReadIsolation.LOG_END:
            return self._end
        return self.high_watermark if isolation is ReadIsolation.HIGH_WATERMARK else self.last_stable_offset

    # -- finding by time -----------------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK
    ) -> TimestampedOffset | None:
        """The first record of that time or later that a reader may see. Opens a batch: not on an event loop."""
        with self._lock:
            self._check_open()
            segments, start, bound = list(self._segments), self._start, self._bound(isolation)
        with storage(f"cannot read {self.tp}"):
            return self._first_since(segments, timestamp_ms, start, bound)

    def offset_of_largest_timestamp(
        self, *, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK
    ) -> TimestampedOffset | None:
        """The first record with the largest timestamp of all (ListOffsets -3). Opens a batch."""
        with self._lock:
            self._check_open()
            segments, start, bound = list(self._segments), self._start, self._bound(isolation)
            largest = max((s.largest.timestamp_ms for s in segments), default=_NO_TIME)
        with storage(f"cannot read {self.tp}"):
            return self._first_since(segments, largest, start, bound) if largest >= 0 else None

    def _first_since(
        self, segments: list[Segment], timestamp_ms: int, start: int, bound: int
    ) -> TimestampedOffset | None:
        with self._lock:  # the walk may rebuild an index
            found = iter(batches_since(segments, timestamp_ms, start, bound))
        while True:
            with self._lock:
                batch = next(found, None)
                if batch:
                    batch.segment.used()
            if batch is None:
                return None
            record = first_record_since(batch, timestamp_ms, start, bound, self._codecs, self.tp)
            if record:
                return record

    # -- retention and truncation --------------------------------------------------------------------------------

    def apply_retention(self, now_ms: int) -> int:
        """Take the segments whose time or room is over out of the log; returns how many. Files go after
        `file.delete.delay.ms`, by `remove_expired_files`."""
        with self._lock:
            self._check_open()
            count = expired(self._segments, self._config, now_ms, self.high_watermark, self._start)
            if count == len(self._segments):
                self._roll(self._end, now_ms)
            for segment in self._segments[:count]:
                due = now_ms + self._config.file_delete_delay_ms
                self._removed += [(due, path) for path in segment.mark_removed()]
            if count:
                del self._segments[:count], self._bases[:count]
                self._start = max(self._start, self._bases[0])
                self._epochs.truncate_start(self._start)
            return count

    def remove_expired_files(self, now_ms: int) -> int:
        """Remove files of segments taken out `file.delete.delay.ms` ago; returns how many."""
        if not self._removed:
            return 0
        with self._lock:
            due = [path for at, path in self._removed if at <= now_ms]
            self._removed = [(at, path) for at, path in self._removed if at > now_ms]
        with storage(f"cannot remove files of {self.tp}"):
            for path in due:
                remove(path)
        return len(due)

    def expire_producers(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers silent for `producer.id.expiration.ms`; returns how many."""
        with self._lock:
            return self._producers.expire(now_ms - expiration_ms)

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that holds `offset` or a later one; the watermark falls where it must."""
        with self._flush_lock, self._lock:
            self._check_open()
            if offset >= self._end:
                return
            if offset < self._start:
                raise OffsetOutOfRangeError(f"{self.tp}: cannot truncate to {offset}, the log starts at {self._start}")
            while len(self._segments) > 1 and self._bases[-1] >= offset:
                self._bases.pop()
                self._segments.pop().discard()
            self._segments[-1].truncate_to(offset)
            self._kept = (None, 0)
            self._end = self._segments[-1].next_offset
            self._flushed = min(self._flushed, self._end)
            self._replicated = min(self._replicated, self._end)
            self._epochs.truncate_end(self._end)
            self._snapshots.drop_after(self._end)
            self._producers, at = self._snapshots.latest()
            replay(self._segments, at, self._producers, self._clock())

    def close(self, *, clean: bool = True) -> None:
        """Flush, write the producers' snapshot and close. Not `clean`: let go of the files as a crash would."""
        if clean and self._closed is None:
            self.flush()
        with self._lock:
            if self._closed is not None:
                return
            if clean:
                for segment in self._segments:
                    segment.seal()
                self._snapshots.write(self._producers, self._end, durable=True)
            self._closed = "the log is closed"
            for segment in self._segments:
                segment.release()

    def check_files(self) -> None:
        """Take the log offline where the file that it writes was removed or cut by somebody else: what is acknowledged
        then would be gone with the process."""
        with self._lock:
            active = self._segments[-1]
            if self._closed is None and is_short(active.path, active.size):
                self._fail(f"{active.path} was removed or cut while it was written")

    @property
    def offline(self) -> str | None:
        """Why the log refuses everything; None while it serves."""
        return self._closed
