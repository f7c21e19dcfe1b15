"""The log of one partition: appends batches to the segments in a directory and reads them by offset.

Invariants: log_start_offset <= last_stable_offset <= high_watermark <= log_end_offset; each segment starts at or
after the end of the one before it; only the last one grows. Consumers see records below the high watermark. If
`flush.messages` or `flush.ms` is set, the high watermark does not pass the flushed records.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from struct import Struct
from threading import Lock, RLock
from typing import Final, NamedTuple, cast
from uuid import UUID

from ..config.section import LONG_MAX
from ..config.sections.topic import TopicConfig
from ..errors import CorruptRecordError, KlammError, LogEndMovedError, StorageError
from ..records.chain import Chain, check_chain, split_chain
from ..records.checked_batch import CheckedBatch
from ..records.codecs import CodecTable
from ..records.control import TransactionMarker, encode_marker, read_marker
from ..records.decode import MAX_DECOMPRESSED
from ..records.epoch_end import EpochRange
from ..records.header import LENGTH_OVERHEAD, NO_PRODUCER_ID, NO_TIMESTAMP, TRANSACTIONAL, BatchHeader, rewrite_base
from ..records.isolation import AbortedTransaction, IsolationLevel
from ..records.offset_and_epoch import OffsetAndEpoch
from ..records.partition import TopicPartition, counted
from .cleanup.retention import expired
from .cleanup.swap import begin_swap
from .damage import DamagedPlaces
from .errors import (
    FencedLeaderEpochError,
    InvalidRecordError,
    LogClosedError,
    MirrorLogError,
    NoSpaceError,
    OffsetOutOfRangeError,
    WouldBlockError,
)
from .flusher import Flusher, PendingFlush
from .recovery.loader import LoadedLog, OpenFrom, load
from .role import ANY_EPOCH, RESTING, STANDALONE, LogRole
from .segment.file_operations import OpenFile, is_short, remove, storage
from .segment.open_files import OpenFiles
from .segment.reading import BrokenChainError, ChainRules, Extent, read_extents
from .segment.scan import NotCachedError
from .segment.segment import DamagedIndexError, Segment
from .segment.time_search import TimestampedOffset, batches_since, first_record_since
from .segment.transaction_index import AbortedEntry
from .state.clock import Clock, system_clock
from .state.producer_state import BatchEntry, LastBatch
from .state.topic_id import claim_directory, sync_claim
from .state.transactions import STABLE
from .validation import AppendOrigin, Validator

__all__ = ["TO_HIGH_WATERMARK", "AppendResult", "CheckpointedOffsets", "LogRead", "PartitionLog", "ReadIsolation"]

TO_HIGH_WATERMARK: Final = -1
_log = logging.getLogger(__name__)
_terms: Final = itertools.count(1)
"""Numbers the terms of following of all logs, so that a log that is opened again does not repeat one."""
_FRONT: Final = Struct(">qii")
_HELD: Final = "another thread changes the log, and may wait for the disk"
"""The first fields of a batch: base offset, batch length, leader epoch."""


class ReadIsolation(Enum):
    """The upper bound of a read: the log end for followers, the high watermark or last stable offset for consumers
    (Kafka's FetchIsolation)."""

    LOG_END = "log_end"
    HIGH_WATERMARK = "high_watermark"
    COMMITTED = "committed"

    @classmethod
    def of(cls, level: int) -> ReadIsolation:
        """Returns the bound for consumers with this `IsolationLevel`; as in Kafka, any number but 1 is 0."""
        return cls.COMMITTED if level == IsolationLevel.READ_COMMITTED else cls.HIGH_WATERMARK


class AppendResult(NamedTuple):
    """The place of an appended batch. `log_append_time_ms`: the time that the broker set as the batch's timestamp, -1
    if it set none. `duplicate`: the batch was a retry, and the offsets are those of the stored batch.
    `high_watermark_advanced`: the append advanced the high watermark."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int = NO_TIMESTAMP
    duplicate: bool = False
    high_watermark_advanced: bool = False


class CheckpointedOffsets(NamedTuple):
    """The offsets of a log in the checkpoints of its log directory."""

    log_start_offset: int
    recovery_point: int
    high_watermark: int


_new_result: Final = cast(Callable[[type[AppendResult], tuple[int, int, int, bool, bool]], AppendResult], tuple.__new__)
"""Builds an `AppendResult` from all its fields at half the cost of calling the class: every append builds one."""


class LogRead(NamedTuple):
    """Whole batches and the log's bounds. The first batch contains the requested offset; if that lies in a gap between
    batches, the first batch is the next one. `aborted`: the aborted transactions with records in `data`, for a read
    with `ReadIsolation.COMMITTED`, in the order of their first offsets."""

    data: bytes
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()


class PartitionLog:
    """The facade over a log's parts: `LogSegments`, `LeaderEpochs`, `ProducerStateManager`, `Flusher`, `Validator`.

    The facade's own state: the log's offsets (start, end, replicated end), its configuration, and its offline reason.
    Each part owns its state, knows nothing of the facade and is called under the lock unless it says otherwise.

    Blocking and thread-safe. `_lock` guards all state; it is not held while segments are flushed, while batches are
    read from files, or during `on_visible`. The offsets are read without it. `_flush_lock` is held during a whole
    flush, truncation or swap of compacted segments, so that these never overlap. It is acquired before `_lock`, never
    after. `_watermark_lock`, acquired last and never for long, guards the replicated end and the unfinished
    transactions: a leader advances the high watermark while another thread appends.
    """

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
        *,
        verify_on_read: bool,
        decompressed_max_bytes: int,
    ) -> None:
        """Use `open`."""
        self.files = files
        self.directory = directory
        self.tp = tp
        self.topic_id = topic_id
        self.on_visible: Callable[[TopicPartition], None] | None = None
        """Called when more records are, or may be (a flush), visible to consumers, except by an append with
        `commit`; must not block. The broker sets it when it starts to lead the partition."""
        self.on_truncating: Callable[[PartitionLog, int], None] | None = None
        """Called before a truncation or restart removes anything, without the lock, with an offset at or above the
        end that the log will have, even if a crash interrupts it. The manager sets it to lower its checkpoints to
        that offset."""
        self.on_truncated: Callable[[PartitionLog, bool], None] | None = None
        """Called after a truncation or restart, without the lock; True if it is one of the `truncations`. The manager
        sets it to correct the checkpoint of the cleaner."""
        self.on_stable: Callable[[TopicPartition], None] | None = None
        """Called, perhaps with the lock, when the end of a transaction raises the last stable offset; must not block.
        A marker may make more records visible to a `READ_COMMITTED` reader than it has bytes."""
        self.on_flush_failed: Callable[[], None] | None = None
        """Called after a flush has failed, including that of a truncation. The manager sets it to record that in the
        directory's data identity."""
        self.on_no_space: Callable[[TopicPartition, NoSpaceError], None] | None = None
        """Called, with the lock, after an append has failed because the disk is full; must not block. The manager
        sets it."""
        self.verify_on_read = verify_on_read
        self.decompressed_max_bytes = decompressed_max_bytes
        self._clock = clock
        self._reading = storage(f"cannot read {tp}")
        self._codecs = codecs
        self._lock = RLock()
        self._flush_lock = Lock()
        self._watermark_lock = Lock()
        self._closed: str | None = None
        self._is_claimed = True
        self._role: LogRole = STANDALONE
        self._term = 0
        self._truncations = 0
        self._truncating: list[int] = []
        """The ends of truncations in progress: one of a leader epoch may start while one of an earlier epoch still
        waits."""
        self.recovery_cut_more = loaded.cut_more
        """True if flushed or acknowledged records may be lost: recovery has cut more than one unfinished write, or the
        log ends before an offset in the checkpoints."""
        self._damage = DamagedPlaces(tp)
        self._segments = loaded.segments
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._end = end = loaded.segments.active.next_offset
        if end < max(known.recovery_point, known.high_watermark, known.log_start_offset):
            self.recovery_cut_more = True
            _log.error(
                "%s: the log ends at offset %d, but by the checkpoints it was longer (recovery point %d, high "
                "watermark %d, log start %d): the records from offset %d on are lost here. Another replica that has "
                "them leads first, and they are copied from it; if there is none, the partition goes on without them",
                tp, end, known.recovery_point, known.high_watermark, known.log_start_offset, end,
            )  # fmt: skip
        first = max(known.log_start_offset, loaded.segments.first_offset, loaded.epochs_start)
        self._start = start = min(first, end)
        self._replicated = min(max(known.high_watermark, start), end)
        self._unstable = STABLE
        self._has_aborted = any(segment.has_aborted for segment in loaded.segments)
        """True if the log may have an aborted transaction; it stays True until the log is opened again."""
        self._replaced = 0
        """Counts the changes that remove entries of transaction indexes: deleted, replaced and truncated segments."""
        recovery_point = end if known.clean else min(max(known.recovery_point, start), end)
        self._flusher = Flusher(tp, directory, recovery_point, clock())
        self._set_config(config)
        self._unstable = loaded.producers.state.transactions.first_unstable(self.high_watermark)

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
        on_visible: Callable[[TopicPartition], None] | None = None,
        verify_on_read: bool = False,
        decompressed_max_bytes: int = MAX_DECOMPRESSED,
    ) -> PartitionLog:
        """Opens or creates the log; `loader` says what is checked and repaired. Raises `StorageError` if the directory
        belongs to another topic.

        `files` bounds the open files of all logs that share it. With `verify_on_read` reads check the CRC of every
        batch (`log.verify.on.read`). `decompressed_max_bytes`: upper bound of one decompressed batch.
        """
        known, files = known or OpenFrom(), OpenFiles() if files is None else files
        is_claimed = claim_directory(directory, topic_partition, topic_id, durable=known.durable)
        loaded = load(topic_partition, directory, config, known, clock(), files)
        log = cls(
            directory, topic_partition, topic_id, config, loaded, known, clock, codecs, files,
            verify_on_read=verify_on_read, decompressed_max_bytes=decompressed_max_bytes,
        )  # fmt: skip
        log._is_claimed = is_claimed
        if log._held_back and log._end > log.recovery_point:
            log.flush()  # recovery has checked the unflushed batches, so they may become visible
        log.on_visible = on_visible
        return log

    def __repr__(self) -> str:
        """Takes no lock: another thread may hold it for long."""
        return (
            f"PartitionLog({self.tp}, offsets=[{self._start}, {self._end}), high_watermark={self.high_watermark}, "
            f"recovery_point={self.recovery_point}, leader_epoch={self._epochs.latest}, "
            f"segments={len(self._segments)}, {'online' if self._closed is None else repr(self._closed)})"
        )

    # -- configuration -------------------------------------------------------------------------------------------

    def reconfigure(self, config: TopicConfig) -> None:
        """Replaces the configuration; the next append, flush and retention use the new one."""
        with self._lock:
            self._set_config(config)
            self._segments.reconfigure(config)

    def _set_config(self, config: TopicConfig) -> None:
        if config.compacts:
            self._segments.allow_gaps()  # it may fail, and is tried again as long as `config` is another one
        self.config = config
        """Set by `reconfigure` only."""
        self._validator = Validator(self.tp, config, self._codecs)
        self._held_back = config.flush_messages < LONG_MAX or config.flush_ms < LONG_MAX
        """True if consumers see flushed records only."""
        self._stores_as_sent = (
            config.compression_type == "producer"
            and config.message_timestamp_type != "LogAppendTime"
            and not (config.compacts or self._held_back)
        )
        """True if batches are stored as they are sent and become visible at once."""

    # -- bounds --------------------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read; earlier records are deleted."""
        return self._start

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._end

    @property
    def flushes(self) -> bool:
        """True if consumers see flushed records only, so that an append may wait for the disk."""
        return self._held_back

    @property
    def reported_end_offset(self) -> int:
        """The end that this replica reports for its records: the flushed end where the topic shows flushed records
        only."""
        return min(self._end, self._flusher.recovery_point) if self._held_back else self._end

    @property
    def high_watermark(self) -> int:
        """Records below this offset are visible to consumers."""
        return min(self._replicated, self._flusher.recovery_point) if self._held_back else self._replicated

    @property
    def last_stable_offset(self) -> int:
        """No transaction is open below this offset, nor ended by a marker that is not below the high watermark
        (docs/transactions.md, T11). Takes no lock: the high watermark is read first, since a transaction is known
        before the high watermark passes it."""
        high_watermark = self.high_watermark
        return high_watermark if high_watermark <= self._unstable else max(self._start, self._unstable)

    @property
    def recovery_point(self) -> int:
        """All records below this offset are on disk."""
        return self._flusher.recovery_point

    @property
    def checkpointed(self) -> CheckpointedOffsets:
        """The offsets for the checkpoints. During a truncation none of them is above the end that a crash may leave."""
        offsets = CheckpointedOffsets(self.log_start_offset, self.recovery_point, self.high_watermark)
        bound = min(self._truncating, default=None)
        return offsets if bound is None else CheckpointedOffsets(*(min(offset, bound) for offset in offsets))

    @property
    def size(self) -> int:
        """The size of all segments in bytes."""
        with self._lock:
            return self._segments.size

    @property
    def segment_count(self) -> int:
        """The number of segments, at least one."""
        return len(self._segments)

    @property
    def truncations(self) -> int:
        """The number of truncations since the log was opened that removed batches of sealed segments, which compaction
        may have read, or made a sealed segment the active one again, which then grows."""
        return self._truncations

    @property
    def highest_producer_id(self) -> int:
        """The highest producer id in the producer state; -1 if none."""
        return self._producers.state.highest_id

    def advance_high_watermark(self, offset: int) -> bool:
        """Advances the high watermark to `offset`, because all in-sync replicas have the records below it. Returns True
        if it advanced: a lower offset changes nothing; only `truncate_to` lowers it. Does not wait for an append."""
        advanced = offset > self._replicated and self._advance_high_watermark(offset)
        if advanced and self.on_visible is not None:
            self.on_visible(self.tp)
        return advanced

    def _advance_high_watermark(self, offset: int) -> bool:
        with self._watermark_lock:
            before = self.high_watermark
            self._replicated = max(self._replicated, min(offset, self._end))
            shown = self.high_watermark
            is_raised = before < shown > self._unstable and self._settle()
        if is_raised and self.on_stable is not None:
            self.on_stable(self.tp)
        return shown > before

    def _settle(self) -> bool:
        """Forgets the transactions whose marker is below the high watermark; returns True if the last stable offset
        rises. The caller holds `_watermark_lock`."""
        before = self._unstable
        self._unstable = self._producers.state.transactions.first_unstable(self.high_watermark)
        return self._unstable > before

    # -- the role ------------------------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> None:
        """Accepts clients' appends of this epoch only (docs/replication.md, R11). Starts the epoch at the log end
        offset unless it has started."""
        with self._lock:
            self._epochs.begin(leader_epoch, self._end, durable=False)
            self._role = LogRole(leads=leader_epoch)

    def follow(self, leader_epoch: int) -> int:
        """Accepts what a follower stores in this epoch, and nothing else (R11). Returns the number of this term of
        following: changes of an earlier term are refused, even in the same epoch."""
        with self._lock:
            self._role = LogRole(follows=leader_epoch)
            self._term = next(_terms)
            return self._term

    def mirror(self, leader_epoch: int) -> int:
        """Accepts what the leader of a mirror stores in this epoch, and nothing else (docs/mirror.md, M3). Returns the
        number of this term, as `follow` does."""
        with self._lock:
            self._role = LogRole(mirrors=leader_epoch)
            self._term = next(_terms)
            return self._term

    def rest(self) -> None:
        """Accepts no append (R11)."""
        with self._lock:
            self._role = RESTING

    def _check_follows(self, leader_epoch: int, term: int | None = None) -> None:
        self._check_open()
        if term is not None and term != self._term:
            raise FencedLeaderEpochError(
                f"{self.tp}: a change under leader epoch {leader_epoch} in an earlier term of following"
            )
        if not self._role.may_follow(leader_epoch):
            raise FencedLeaderEpochError(
                f"{self.tp}: a change under leader epoch {leader_epoch}, but the log {self._role}"
            )

    # -- leader epochs -------------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The latest leader epoch; -1 if none."""
        return self._epochs.latest

    @property
    def last_record_epoch(self) -> int:
        """The epoch of the last record; -1 if there is none. Unlike `leader_epoch`, it does not count an epoch
        without records."""
        with self._lock:
            return self._epochs.epoch_at(self._end - 1) if self._end > self._start else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Returns the largest known epoch up to `epoch` and its end offset (KIP-101); (-1, -1) if unknown."""
        with self._lock:
            return self._epochs.end_offset(epoch, self._end)

    def epoch_ranges(self, *, exact: bool) -> tuple[EpochRange, ...]:
        """Returns the epochs that have records, in order. Each ends where the next begins; with `exact` it ends with
        its last batch, which is earlier where the log has a gap: a read for each epoch, which may block."""
        with self._lock:
            epochs, starts = self._epochs.columns()
            ends = [*starts, self._end][1:]
            if exact:
                ends = [self._segments.end_below(end) for end in ends]
            found = map(EpochRange, epochs, starts, ends)
            return tuple(each for each in found if each.start < each.end)

    def begin_leader_epoch(self, epoch: int, *, durable: bool = True) -> None:
        """Stores that `epoch` starts at the log end offset, so the first append need not write it.

        Without `durable` the caller makes the epochs of many logs durable together (`make_durable`) before it
        appends: no CRC covers the epoch in a batch, so the epoch file must contain every epoch that a batch has. On
        a full disk the file is written before the first batch.
        """
        with self._lock:
            self._check_open()
            self._epochs.begin(epoch, self._end, durable=durable)

    @property
    def is_claimed(self) -> bool:
        """True if the topic id of the directory is on disk."""
        return self._is_claimed

    @property
    def is_durable(self) -> bool:
        """True if the topic id and all epochs of the log are on disk."""
        return self._is_claimed and self._epochs.durable

    @property
    def leader_epoch_changes(self) -> int:
        """How often the epochs have changed since the log was opened."""
        return self._epochs.changes

    def make_durable(self, *, written: int = -1) -> None:
        """Makes the topic id and the epochs durable. `written`: the number of `leader_epoch_changes` when the caller
        last synced the whole file system, so that nothing is written if there are no more; -1: it has synced the
        parent directory at most."""
        with self._lock:
            if not self._is_claimed:
                if written < 0:
                    sync_claim(self.directory)
                self._is_claimed = True
            self._epochs.sync(written=written)

    # -- appending -----------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        batch: bytearray | memoryview | CheckedBatch,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        on_loop: bool = False,
        commit: bool = False,
        after: OffsetAndEpoch | None = None,
        raises_epoch: bool = False,
    ) -> AppendResult:
        """Stores exactly one batch at the log end offset; sets its base offset and `leader_epoch` in place.

        A batch that was checked when its request was read usually needs no header object. With `commit` the high
        watermark advances to the new end in the same step, without waiting for followers; the caller wakes parked
        fetches. With `on_loop` the caller must not block: raises `WouldBlockError` if the append would wait for the
        disk or another thread, or read too many records. With `after` the batch is stored only if the log ends there:
        raises `LogEndMovedError`. `raises_epoch`, for markers, is passed to `ProducerState.check_marker`.

        Also raises the errors of `validation` and `producer_state`, `FencedLeaderEpochError` and `StorageError`.
        Nothing is stored if it raises.
        """
        now_ms = self._clock()
        if isinstance(batch, tuple):
            if (
                after is None
                and (stored := self._append_checked(batch, leader_epoch, now_ms, commit, on_loop)) is not None
            ):
                return stored
            batch = batch[0]
        if not on_loop:
            return self._prepare_and_append(
                batch, leader_epoch, origin, now_ms,
                on_loop=False, commit=commit, after=after, raises_epoch=raises_epoch,
            )  # fmt: skip
        if self.append_may_block(batch):
            raise WouldBlockError(f"{self.tp}: the append reads the records of the batch or waits for the disk")
        if not self._lock.acquire(blocking=False):  # before the batch is prepared, which may change its header in place
            raise WouldBlockError(f"{self.tp}: {_HELD}")
        try:
            return self._prepare_and_append(
                batch, leader_epoch, origin, now_ms,
                on_loop=True, commit=commit, after=after, raises_epoch=raises_epoch,
            )  # fmt: skip
        finally:
            self._lock.release()

    def _check_ends(self, expected: OffsetAndEpoch) -> None:
        """Raises `LogEndMovedError` if the log ends elsewhere, or the record before the end has another epoch: it
        may then be another record than the caller has read."""
        end = OffsetAndEpoch(self._end, self._epochs.epoch_at(self._end - 1))
        if not expected.is_end(end):
            raise LogEndMovedError(f"{self.tp}: the log ends at {end}, not at {expected}")

    def _prepare_and_append(
        self,
        batch: bytearray | memoryview,
        leader_epoch: int,
        origin: AppendOrigin,
        now_ms: int,
        *,
        on_loop: bool,
        commit: bool,
        after: OffsetAndEpoch | None,
        raises_epoch: bool,
    ) -> AppendResult:
        """The general case of `append_as_leader`."""
        batch, header, append_time = self._validator.prepare(
            batch, origin, now_ms, self.decompressed_max_bytes, on_loop=on_loop
        )
        marker = read_marker(batch, 0, header) if header.is_marker else None
        with self._lock:
            self._check_may_lead(leader_epoch)
            if after is not None:
                self._check_ends(after)
            retried: BatchEntry | None = None
            if marker is not None:
                self._producers.state.check_marker(header, marker, raises_epoch=raises_epoch)
            elif header.producer_id != NO_PRODUCER_ID:
                retried = self._producers.state.check(header)
            if retried is None:
                rewrite_base(batch, 0, self._end, leader_epoch)
                header = header.rebased(self._end, leader_epoch)
                try:
                    self._store(batch, header, marker, now_ms)
                except NoSpaceError as error:
                    self._ran_out_of_space(error)
                    raise
            advanced = commit and self._advance_high_watermark(self._end)
            flush = self._held_back and self._must_flush()
        if flush:  # a retry too: its batch may not be on disk yet
            self.flush()
        if retried:
            append_time = append_time if append_time == NO_TIMESTAMP else retried.timestamp_ms
            return AppendResult(
                retried.base_offset, retried.last_offset, append_time, duplicate=True, high_watermark_advanced=advanced
            )
        return AppendResult(header.base_offset, header.last_offset, append_time, high_watermark_advanced=advanced)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        leader_epoch: int,
        *,
        raises_epoch: bool = False,
        commit: bool = False,
    ) -> AppendResult:
        """Stores the marker that ends the producer's transaction, also if none is open: it then carries the epoch to
        the partition. `raises_epoch`: the marker is of transaction version 2.

        Raises what `append_as_leader` raises, and what `ProducerState.check_marker` does. May block.
        """
        batch = encode_marker(producer_id, producer_epoch, marker, self._clock())
        return self.append_as_leader(
            batch, leader_epoch, origin=AppendOrigin.INTERNAL, commit=commit, raises_epoch=raises_epoch
        )

    def abort_transactions(self, before_epoch: int, leader_epoch: int) -> int:
        """Ends each open transaction that began before the leader epoch `before_epoch`, by a marker that aborts it;
        returns their number. For a log that another cluster wrote: its coordinator ends nothing here (docs/mirror.md,
        M12).

        Raises what `append_marker` raises. May block.
        """
        with self._lock:
            self._check_may_lead(leader_epoch)
            _, first_own = self._epochs.end_offset(before_epoch - 1, self._end)
            wanted = [each for each in self._producers.state.open_transactions() if each.first_offset < first_own]
        for each in wanted:
            marker = TransactionMarker(False, each.coordinator_epoch)
            self.append_marker(each.producer_id, each.producer_epoch, marker, leader_epoch)
        return len(wanted)

    def abort_in_gap(self, end: int, epoch: int, leader_epoch: int, term: int | None = None) -> int:
        """Ends open transactions by markers that abort them, at the last offsets below `end`, one for each, in the
        leader epoch `epoch`; returns their number. If the log end leaves fewer offsets, the oldest transactions are
        ended. For a mirror whose source has deleted the markers that lay between the log end and `end`
        (docs/mirror.md, M7).

        A marker has the timestamp of its producer's last batch: neither retention nor a lookup by time sees another
        time than the source's. Raises what `append_as_follower` raises. May block.
        """
        markers = bytearray()
        with self._lock:
            self._check_follows(leader_epoch, term)
            aborted = self._producers.state.open_transactions()[: end - self._end]
            for offset, each in enumerate(aborted, end - len(aborted)):
                abort = TransactionMarker(False, each.coordinator_epoch)
                marker = encode_marker(each.producer_id, each.producer_epoch, abort, each.timestamp_ms)
                rewrite_base(marker, 0, offset, epoch)
                markers += marker
        if markers:
            self.append_as_follower(markers, leader_epoch, term)
            _log.warning(
                "%s: %s aborted in the gap below offset %d: the source has deleted what may have ended them",
                self.tp, counted(len(aborted), "open transaction"), end,
            )  # fmt: skip
        return len(aborted)

    def append_as_follower(
        self, records: bytes | bytearray | memoryview, leader_epoch: int, term: int | None = None
    ) -> int:
        """Stores whole batches as the leader has stored them, with their offsets and epochs; returns the log end
        offset.

        A run of batches costs one check of the chain with its CRCs and one write. The high watermark does not
        advance: the caller passes the leader's to `advance_high_watermark`. The first batch starts at the log end
        offset; it may start later, since the leader's log may have been compacted, and earlier only in an empty log,
        whose start lies within the batch. Raises `FencedLeaderEpochError` unless the log follows in `leader_epoch`
        (and in `term`, if given), `InvalidRecordError` for batches that do not continue the log,
        `CorruptRecordError` and `StorageError`. May block.
        """
        now_ms, start = self._clock(), self._start
        chain, dense = self._check_run(records)
        if start == self._end and chain.batches and chain.first_offset < start < chain.next_offset:
            # It ends before its checkpoints until the batch is stored.
            self.restart_at(chain.first_offset, leader_epoch, term)
        with self._lock:
            self._check_follows(leader_epoch, term)
            if chain.end != len(records) or not chain.batches:
                raise CorruptRecordError(f"{self.tp}: the leader's answer ends within a batch")
            if leader_epoch != ANY_EPOCH and chain.epochs[-1][0] > leader_epoch:
                raise InvalidRecordError(
                    f"{self.tp}: the leader of epoch {leader_epoch} sent a batch of epoch {chain.epochs[-1][0]}"
                )
            self._check_continues(chain)
            try:
                if not dense or chain.first_offset > self._end:
                    self._segments.allow_gaps()
                for epoch, base in chain.epochs:
                    self._epochs.assign(epoch, base, durable=self._epochs.unwritten)
                self._store_run(records, chain, now_ms)
            except StorageError as error:
                self._forget_unwritten_epochs()
                if isinstance(error, NoSpaceError):
                    self._ran_out_of_space(error)
                raise
            if self._start < start:
                self.advance_log_start(start)
            flush = self._held_back and self._must_flush()
        if flush:
            self.flush()
        return self._end

    def _check_run(self, records: bytes | bytearray | memoryview) -> tuple[Chain, bool]:
        """Checks the batches and their CRCs. Returns True if no offset is missing between two of them, False if one may
        be: a log without gaps must then allow gaps before it stores them."""
        if self._segments.dense:
            try:
                return check_chain(records, dense=True, verify=True), True
            except CorruptRecordError:
                pass  # a gap, or damage: the check of a log with gaps decides
        return check_chain(records, verify=True), False

    def _forget_unwritten_epochs(self) -> None:
        """Removes epochs that start above the log end: their batches were not stored, and they would not agree with
        any other log."""
        if self._closed is None:
            try:
                self._epochs.truncate_end(self._end + 1)
            except StorageError as error:
                self._fail(f"its leader epochs could not be corrected ({error})")

    def _check_continues(self, chain: Chain) -> None:
        """Checks that the batches continue the log."""
        if chain.first_offset < self._end:
            raise InvalidRecordError(
                f"{self.tp}: the leader's batch begins at offset {chain.first_offset}, "
                f"before the log end offset {self._end}"
            )
        if chain.epochs[0][0] < self._epochs.latest or sorted(chain.epochs) != chain.epochs:
            raise InvalidRecordError(
                f"{self.tp}: the leader's batches have the epochs {[epoch for epoch, _ in chain.epochs]}, "
                f"after epoch {self._epochs.latest}"
            )

    def _store_run(self, records: bytes | bytearray | memoryview, chain: Chain, now_ms: int) -> None:
        """Writes the batches in pieces of which each gets at most one entry of an index, and as many of them at once as
        the segments allow."""
        view, room = memoryview(records), self.config.index_interval_bytes
        pieces, done, last = split_chain(records, room), 0, chain.next_offset - 1
        while done < len(pieces):
            first = pieces[done]
            active, first_ms = self._segments.active, first.first_max_timestamp
            if not active.has_space(max(first.first_size, room), last, first_ms, now_ms):
                active = self._roll(first.base_offset, now_ms, active.fill_level(first_ms, now_ms))
            single = len(pieces) == 1
            run = pieces if single else pieces[done : done + active.run_length(pieces, done, room, last, now_ms)]
            try:
                if single and first.first_size == len(view):  # one batch, as of a follower that is not behind
                    active.append_next(view, first.base_offset, last, first.max_timestamp)
                else:
                    active.append_run(view, run)
            except StorageError as error:
                self._write_failed(active, error)
                raise
            for piece in run:
                for position in piece.producers:
                    header = BatchHeader.parse(view, position)
                    if header.attributes & TRANSACTIONAL:
                        self._update_transactions(active, header, self._producers.marker(view, position, header))
                    else:
                        self._producers.state.update(header)
                self._end = piece.last_offset + 1
            done += len(run)

    def _append_checked(
        self, checked: CheckedBatch, leader_epoch: int, now_ms: int, commit: bool, on_loop: bool
    ) -> AppendResult | None:
        """The fast case of `append_as_leader`: a batch that is stored as sent, under the latest epoch, in the active
        segment.

        Returns None and changes nothing in all other cases: the topic decompresses batches, sets their timestamp or
        shows flushed records only; the batch breaks a rule of the topic, is a retry, begins a leader epoch or needs a
        new segment.
        """
        if not self._stores_as_sent or not self._validator.passes(checked, now_ms):
            return None
        batch, count, _, largest_ms, _, producer_id, _ = checked
        size = len(batch)
        header = None if producer_id == NO_PRODUCER_ID else BatchHeader.parse(batch)
        if not self._lock.acquire(not on_loop):
            raise WouldBlockError(f"{self.tp}: {_HELD}")
        try:
            base = self._end
            last = base + count - 1
            active, leads = self._segments.active, self._role.leads
            if (
                self._closed is not None
                or leader_epoch != self._epochs.latest
                or self._epochs.unwritten
                or (leads != leader_epoch and leads != ANY_EPOCH)
                or active.next_offset > base
                or not active.has_space(size, last, largest_ms, now_ms)
            ):
                return None
            if header is not None:
                if self._producers.state.check(header):
                    return None
                header = header.rebased(base, leader_epoch)
            _FRONT.pack_into(batch, 0, base, size - LENGTH_OVERHEAD, leader_epoch)
            try:
                active.append_next(batch, base, last, largest_ms)
            except StorageError as error:
                self._write_failed(active, error)
                if isinstance(error, NoSpaceError):
                    self._ran_out_of_space(error)
                raise
            if header is not None:
                self._producers.state.update(header)
            self._end = last + 1
            if commit:
                with self._watermark_lock:
                    self._replicated = last + 1
                    if self._unstable < base and self._settle() and self.on_stable is not None:
                        self.on_stable(self.tp)
        finally:
            self._lock.release()
        return _new_result(AppendResult, (base, last, NO_TIMESTAMP, False, commit))

    def append_may_block(self, batch: bytes | bytearray | memoryview) -> bool:
        """True if the append reads the records or waits for the disk, and so must not run on an event loop."""
        if self.config.flush_messages < LONG_MAX or self._epochs.unwritten:
            return True
        try:
            return self._validator.may_block(BatchHeader.parse(batch))
        except CorruptRecordError:
            return False  # the append raises this error without blocking

    def _check_may_lead(self, leader_epoch: int) -> None:
        self._check_open()
        if self._role.mirrors == leader_epoch:
            raise MirrorLogError(
                f"{self.tp} mirrors a topic of another cluster: write it there, or promote it (klamm mirror promote)"
            )
        if leader_epoch < self._epochs.latest:
            raise FencedLeaderEpochError(
                f"{self.tp}: append under leader epoch {leader_epoch}, but the latest epoch is {self._epochs.latest}"
            )
        if not self._role.may_lead(leader_epoch):
            raise FencedLeaderEpochError(
                f"{self.tp}: append under leader epoch {leader_epoch}, but the log {self._role}"
            )

    def _must_flush(self) -> bool:
        """True if `flush.messages` records or more are not flushed."""
        return self._end - self._flusher.recovery_point >= self.config.flush_messages

    def _store(
        self, batch: bytearray | memoryview, header: BatchHeader, marker: TransactionMarker | None, now_ms: int
    ) -> None:
        self._epochs.assign(header.leader_epoch, header.base_offset)
        active = self._segments.active
        if not active.has_space(header.size, header.last_offset, header.max_timestamp, now_ms):
            active = self._roll(header.base_offset, now_ms, active.fill_level(header.max_timestamp, now_ms))
        try:
            active.append(batch, header)
        except StorageError as error:
            self._write_failed(active, error)
            raise
        if header.attributes & TRANSACTIONAL:
            self._update_transactions(active, header, marker)
        else:
            self._producers.state.update(header)
        self._end = header.next_offset

    def _update_transactions(self, active: Segment, header: BatchHeader, marker: TransactionMarker | None) -> None:
        """Records a transactional batch that was stored in `active`, before the log end offset passes it."""
        with self._watermark_lock:
            ended = self._producers.state.update(header, marker)
            self._settle()
        if ended is None or ended.commit:
            return
        self._has_aborted = True
        try:
            active.add_aborted(AbortedEntry._make(ended[:4]))
        except CorruptRecordError as error:
            self._producers.index_again(active, self._segments, error)

    def _roll(self, base_offset: int, now_ms: int, reason: str) -> Segment:
        """Starts a new segment; maintenance flushes the old one."""
        sealed = self._segments.active
        sealed.seal()
        self._producers.take_snapshot(base_offset, durable=False)
        active = self._segments.roll(base_offset, now_ms)
        _log.info(
            "%s: rolled a new segment at offset %d: the segment at offset %d %s",
            self.tp, base_offset, sealed.base_offset, reason,
        )  # fmt: skip
        return active

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def offline(self) -> str | None:
        """The reason why the log refuses all requests; None while it is online."""
        return self._closed

    def check_files(self) -> None:
        """Takes the log offline if another process has removed or truncated the file of its active segment: records
        appended to it would be lost when this process ends."""
        with self._lock:
            active = self._segments.active
            if self._closed is None and is_short(active.path, active.size):
                self._fail(f"{active.path} was removed or truncated by another process")

    def close(self, *, clean: bool = True) -> None:
        """Closes the log, in this order: flushes all records; writes the indexes; writes the snapshot of the producer
        state; refuses every later request; closes the files.

        Without `clean` it does the last two steps only and leaves the files as a crash would. If a step raises, the
        later steps are not done, and the caller must not count the stop as clean.
        """
        if not clean:
            with self._lock:
                self._close_files()
            return
        if self._closed is None:
            self.flush()  # the longest step, without the lock: appends go on
        with self._flush_lock, self._lock:
            if self._closed is None:
                if self._has_unflushed():  # appended since that flush
                    self._flush(snapshot=False)
                self._segments.seal()
                self._producers.take_snapshot(self._end, durable=True)
                self._close_files()

    def _close_files(self) -> None:
        if self._closed is None:
            self._closed = "the log is closed"
            self._segments.close_files()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise LogClosedError(f"{self.tp}: {self._closed}")

    def _fail(self, why: str) -> None:
        """Takes the log offline until it is opened again, because it is unknown which bytes are on disk."""
        self._closed = f"the log is offline, {why}; restart the broker to recover it"
        _log.error("%s: %s", self.tp, self._closed)

    def _write_failed(self, active: Segment, error: StorageError) -> None:
        """Takes the log offline unless the failed write has left the segment unchanged."""
        if active.next_offset != self._end or active.file.size() != active.size:
            self._fail(f"a write failed ({error})")

    def _ran_out_of_space(self, error: NoSpaceError) -> None:
        if self.on_no_space is not None:
            self.on_no_space(self.tp, error)

    # -- flushing ------------------------------------------------------------------------------------------------

    def flush(self, *, snapshot: bool = False) -> None:
        """Flushes all records that are in the log now. A failure takes the log offline, because it is unknown which
        bytes a failed fsync has stored.

        `snapshot`: also writes the indexes of the active segment and the producer state as of this moment, so that
        crash recovery reads later records only.
        """
        with self._flush_lock:
            more = self._flush(snapshot=snapshot)
        if more and self.on_visible is not None:
            self.on_visible(self.tp)

    def _flush(self, *, snapshot: bool) -> bool:
        """Carries out `flush` for a caller that holds `_flush_lock`. Returns True if more records may be visible
        now: if consumers see flushed records only, a leader's own end is its flushed end, and the followers may have
        reported theirs before, so that nothing else would raise the high watermark."""
        with self._lock:
            self._check_open()
            self._epochs.sync()  # before the batches: a batch of an epoch that is not in the file counts as damaged
            pending = self._flusher.begin(self._segments, self._end, self._producers.state if snapshot else None)
        self._sync(pending)
        with self._lock:
            before = self._flusher.recovery_point
            self._flusher.finish(pending, self._end, self._clock())
            taken = pending.snapshot
            # A segment rolled in the meantime has written its own indexes.
            if taken and self._closed is None and taken.segment is self._segments.active:
                self._flusher.write_snapshot(taken, self._producers)
            advanced = self._held_back and self._flusher.recovery_point > before
            with self._watermark_lock:
                is_raised = advanced and self._unstable < self.high_watermark and self._settle()
        if is_raised and self.on_stable is not None:
            self.on_stable(self.tp)
        return advanced

    def _sync(self, pending: PendingFlush) -> None:
        try:
            self._flusher.sync(pending, self._file_to_flush)
        except BaseException as error:  # any error: `begin` has marked the directory as flushed
            with self._lock:
                self._fail(f"a flush failed ({str(error) or type(error).__name__})")
            if self.on_flush_failed is not None:
                self.on_flush_failed()
            raise

    def _file_to_flush(self, segment: Segment) -> OpenFile | None:
        with self._lock:
            return segment.file if segment in self._segments else None

    @property
    def last_flush_ms(self) -> int:
        """The time at which the log was last flushed or opened, by the broker's clock."""
        return self._flusher.last_flush_ms

    def flush_is_due(self, now_ms: int) -> bool:
        """True if `flush.ms` has passed or a segment before the active one is not flushed."""
        with self._lock:
            return self._has_unflushed() and self._flusher.is_due(self.config.flush_ms, self._segments.active, now_ms)

    def recovery_point_is_due(self, now_ms: int, interval_ms: int) -> bool:
        """True if there are unflushed records and the last flush was at least `interval_ms` ago."""
        with self._lock:
            return self._has_unflushed() and not self._flusher.flushed_within(interval_ms, now_ms)

    def rescan_exceeds(self, size: int) -> bool:
        """True if crash recovery would re-scan more than `size` flushed bytes."""
        with self._lock:
            return self._flusher.rescan_exceeds(size, self._segments.active)

    def _has_unflushed(self) -> bool:
        return self._closed is None and self._end > self._flusher.recovery_point

    # -- reading -------------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK,
        min_one: bool = True,
    ) -> LogRead:
        """Returns whole batches from the one that contains `offset`, up to `max_bytes` and the bound of `isolation`.

        With `min_one` the first batch is returned whatever its size (KIP-74). Raises `OffsetOutOfRangeError` outside
        [log start offset, log end offset].
        """
        while True:
            extents, bounds, replaced = self._plan(offset, max_bytes, isolation)
            data = self._read(extents, max_bytes, min_one, cached_only=False) or b""
            if not self._has_aborted or isolation is not ReadIsolation.COMMITTED or not data:
                return LogRead(data, *bounds)
            aborted = self._aborted(offset, data, replaced)
            if aborted is not None:
                return LogRead(data, *bounds, aborted)

    def read_cached(
        self,
        offset: int,
        max_bytes: int,
        *,
        isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK,
        min_one: bool = True,
    ) -> LogRead | None:
        """Reads as `read` does, without waiting: returns None unless all bytes are in the page cache, and while another
        thread changes the log."""
        try:
            extents, bounds, replaced = self._plan(offset, max_bytes, isolation, cached_only=True)
            data = self._read(extents, max_bytes, min_one, cached_only=True)
            if not data or not self._has_aborted or isolation is not ReadIsolation.COMMITTED:
                return None if data is None else LogRead(data, *bounds)
            aborted = self._aborted(offset, data, replaced, cached_only=True)
            return None if aborted is None else LogRead(data, *bounds, aborted)
        except NotCachedError:
            return None

    def _plan(
        self, offset: int, max_bytes: int, isolation: ReadIsolation, *, cached_only: bool = False
    ) -> tuple[list[Extent], tuple[int, int, int], int]:
        """Returns the byte ranges to read, whose objects keep the files open, the log's bounds, and `_replaced`."""
        if not self._lock.acquire(not cached_only):
            raise NotCachedError
        try:
            self._check_open()
            if not self._start <= offset <= self._end:
                raise OffsetOutOfRangeError(f"{self.tp}: offset {offset} is not in [{self._start}, {self._end}]")
            shown = self.high_watermark
            stable = shown if shown <= self._unstable else min(self.last_stable_offset, shown)
            end = self._end if isolation is ReadIsolation.LOG_END else shown
            if isolation is ReadIsolation.COMMITTED:
                end = stable
            try:
                extents = self._segments.extents(offset, end, max_bytes, cached_only=cached_only)
            except BrokenChainError as broken:
                self.report(broken)
                raise
            return extents, (shown, self._start, stable), self._replaced
        finally:
            self._lock.release()

    def _aborted(
        self, offset: int, data: bytes, replaced: int, *, cached_only: bool = False
    ) -> tuple[AbortedTransaction, ...] | None:
        """Returns the aborted transactions of a read at `offset` that returned `data` (docs/transactions.md, T12); None
        if entries of transaction indexes have been removed since `replaced`, so that the read must be repeated."""
        end = check_chain(data).next_offset
        if not self._lock.acquire(not cached_only):
            raise NotCachedError
        try:
            if self._replaced != replaced:
                return None
            found = self._found_aborted(offset, end, cached_only=cached_only)
        finally:
            self._lock.release()
        return tuple(AbortedTransaction(entry.producer_id, entry.first_offset) for entry in found)

    def _found_aborted(self, offset: int, end: int, *, cached_only: bool) -> list[AbortedEntry]:
        """Rebuilds the transaction indexes that are damaged, unless `cached_only`."""
        while True:
            try:
                return self._segments.aborted(offset, end, cached_only=cached_only)
            except DamagedIndexError as damaged:
                if cached_only:
                    raise NotCachedError from damaged
                self._producers.index_again(damaged.segment, self._segments, damaged)

    def _read(self, extents: list[Extent], max_bytes: int, min_one: bool, *, cached_only: bool) -> bytes | None:
        """Returns the bytes before a damaged batch. Raises `CorruptRecordError` if the first batch is damaged."""
        rules = self.chain_rules(verify=self.verify_on_read)
        with self._reading:
            data, broken = read_extents(extents, max_bytes, min_one, rules, cached_only=cached_only)
        if broken is not None:
            self.report(broken)
            if not data:
                raise broken
        return data

    def chain_rules(self, *, verify: bool) -> ChainRules:
        """Returns the rules by which a read checks the log's batches. `verify`: the CRC of each batch too."""
        return ChainRules(self._segments.dense, verify, *self._epochs.columns())

    def report(self, broken: BrokenChainError) -> None:
        """Logs and counts a damaged place, once for each place."""
        self._damage.report(broken)

    @property
    def corrupt_batches(self) -> int:
        """Damaged places found since the log was opened."""
        return self._damage.count

    # -- finding by time -----------------------------------------------------------------------------------------

    def offset_for_timestamp(
        self, timestamp_ms: int, *, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK
    ) -> TimestampedOffset | None:
        """Returns the first visible record with this timestamp or a later one. Reads and decompresses a batch, so it
        must not run on an event loop."""
        with self._lock:
            self._check_open()
            segments, start, bound = list(self._segments), self._start, self.end_for(isolation)
        with self._reading:
            return self._first_since(segments, timestamp_ms, start, bound)

    def offset_of_largest_timestamp(
        self, *, isolation: ReadIsolation = ReadIsolation.HIGH_WATERMARK
    ) -> TimestampedOffset | None:
        """Returns the first visible record with the largest timestamp (ListOffsets -3), or marker, as Kafka does: a
        segment knows one largest timestamp, and after a transaction that is the marker's. Reads and decompresses a
        batch."""
        with self._lock:
            self._check_open()
            segments, start, bound = list(self._segments), self._start, self.end_for(isolation)
            largest = max(s.largest.timestamp_ms for s in segments)
        with self._reading:
            return self._first_since(segments, largest, start, bound, markers=True) if largest >= 0 else None

    def end_for(self, isolation: ReadIsolation) -> int:
        """Returns the offset below which a read with this isolation returns records. Takes no lock."""
        if isolation is ReadIsolation.LOG_END:
            return self._end
        return self.high_watermark if isolation is ReadIsolation.HIGH_WATERMARK else self.last_stable_offset

    def _first_since(
        self, segments: list[Segment], timestamp_ms: int, start: int, bound: int, *, markers: bool = False
    ) -> TimestampedOffset | None:
        with self._lock:  # the lookup may rebuild an index
            found = iter(batches_since(segments, timestamp_ms, start, bound, markers=markers))
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

    # -- retention, truncation, DeleteRecords --------------------------------------------------------------------

    def apply_retention(self, now_ms: int) -> int:
        """Deletes the segments that `retention.ms`, `retention.bytes` or the log start offset exclude; returns their
        number. `remove_expired_files` removes their files after `file.delete.delay.ms`."""
        with self._lock:
            self._check_open()
            count, reason = expired(list(self._segments), self.config, now_ms, self.high_watermark, self._start)
            if count == len(self._segments):
                self._roll(self._end, now_ms, "holds only records that retention deletes")
            if count:
                before = len(self._segments)
                try:
                    self._segments.delete_oldest(count, now_ms + self.config.file_delete_delay_ms)
                finally:  # a failed deletion may have deleted some of them
                    self._replaced += 1
                    self._start = max(self._start, self._segments.first_offset)
                    _log.info(
                        "%s: retention deleted %s (%s); the log start offset is %d",
                        self.tp, counted(before - len(self._segments), "segment"), reason, self._start,
                    )  # fmt: skip
                self._epochs.truncate_start(self._start)
            return count

    def remove_expired_files(self, now_ms: int) -> int:
        """Removes the files of segments deleted `file.delete.delay.ms` ago; returns the number of files.

        If some cannot be removed, the others are removed all the same; the next call tries the rest again. Raises
        `StorageError` for the first of them.
        """
        with self._lock:
            due = self._segments.deleted_files(now_ms)
        removed: set[Path] = set()
        failed: StorageError | None = None
        for path in due:
            try:
                with storage(f"{self.tp}: cannot remove {path}"):
                    remove(path)
                removed.add(path)
            except StorageError as error:
                failed = failed or error
        if removed:
            with self._lock:
                self._segments.forget_deleted(removed, now_ms)
        if failed is not None:
            raise failed
        return len(removed)

    def delete_records_before(self, offset: int) -> int:
        """Raises the log start offset to `offset` (-1: the high watermark) and returns it.

        Earlier records can no longer be read; `LogManager.delete_records` makes that durable. The next retention
        deletes the segments that contain none of the remaining records. Raises `OffsetOutOfRangeError` above the high
        watermark.
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
                _log.info("%s: the log start offset is %d: a client deleted the records before it", self.tp, wanted)
            return self._start

    def truncate_to(self, offset: int, leader_epoch: int = ANY_EPOCH, term: int | None = None) -> None:
        """Removes every batch that contains `offset` or a later one; lowers the high watermark to the new end if it
        is above it.

        Removes epochs that start there as well, even if there is no batch to remove: otherwise an epoch without
        records that the leader does not have would never agree with the leader's epochs (KIP-101). With
        `leader_epoch`, raises `FencedLeaderEpochError` unless the log follows in that epoch, and in `term` if it is
        given (R11): the call may have waited for a flush since.

        The checkpoints are lowered first: a log that ends before an offset in them counts as one that has lost
        records. The removal is on disk before a later epoch is written: a power loss would otherwise bring the
        removed batches back as batches of that epoch. Waits for the disk if there is a batch to remove.
        """
        with self._flush_lock, self._lock:
            if not self._must_truncate(offset, leader_epoch, term):
                return
            end = self._segments.end_after_truncation(offset)
        with self._lowered_checkpoints(end):
            self._flush_kept(offset)
            sealed = self._truncate_to(offset, leader_epoch, term)
        if self.on_truncated is not None:
            self.on_truncated(self, sealed)

    def _must_truncate(self, offset: int, leader_epoch: int, term: int | None) -> bool:
        """Returns False if there is no batch to remove; it then removes the epochs that start at the end or later."""
        self._check_follows(leader_epoch, term)
        if offset >= self._end:
            self._epochs.truncate_end(self._end)
            return False
        if offset < self._start:
            raise OffsetOutOfRangeError(f"{self.tp}: cannot truncate to {offset}, the log starts at {self._start}")
        return True

    @contextmanager
    def _lowered_checkpoints(self, end: int) -> Iterator[None]:
        """Keeps the checkpoints of this log at or below `end` during the block. If the block fails they stay so
        until the log is opened again, since it is then unknown where the log ends."""
        self._truncating.append(end)
        try:
            if self.on_truncating is not None:
                self.on_truncating(self, end)
            yield
        finally:
            if self._closed is None:
                self._truncating.remove(end)

    def _flush_kept(self, offset: int) -> None:
        """Flushes the segments that a truncation to `offset` keeps: the longest step, without the lock. The last one is
        on disk after the cut: a power loss would leave a hole before it."""
        with self._flush_lock:
            with self._lock:
                last, flushed = self._segments.last_kept(offset), self._flusher.recovery_point
                kept = [each for each in self._segments if each.base_offset <= last.base_offset]
                pending = PendingFlush(offset, [each for each in kept if each.next_offset > flushed], False, None)
                closed = self._closed is not None
            if not closed:
                self._sync(pending)

    def _truncate_to(self, offset: int, leader_epoch: int, term: int | None) -> bool:
        """Carries out `truncate_to`. Returns True if it counts in `truncations`."""
        with self._flush_lock, self._lock:
            if not self._must_truncate(offset, leader_epoch, term):
                return False
            before = self._end
            sealed = self._segments.last_kept(offset) is not self._segments.active
            if sealed:
                self._truncations += 1
            try:
                with storage(f"cannot truncate {self.tp}"):
                    self._replaced += 1
                    self._segments.truncate_to(offset, min(offset, self._flusher.recovery_point))
                    end = self._segments.active.next_offset
                    self._producers.reload(end, self._segments)
                    self._lower_end(end)
                    self._sync_cut()
                    self._epochs.truncate_end(self._end)
            except KlammError as error:  # the files and the state in memory may differ
                self._fail(f"a truncation to offset {offset} failed ({error})")
                raise
            _log.info(
                "%s: truncated from offset %d to %d, because the leader's log differs from offset %d on",
                self.tp, before, self._end, offset,
            )  # fmt: skip
            return sealed

    def _lower_end(self, end: int) -> None:
        """Sets the offsets of a log that was truncated to `end`, after its producer state. Between the steps the last
        stable offset, which is read without a lock, is not above what it was or will be (KAFKA-12153)."""
        with self._watermark_lock:
            unstable = self._producers.state.transactions.first_unstable(min(self._replicated, end))
            self._unstable = min(self._unstable, unstable)
            self._end = end
            self._flusher.truncate_to(end)
            self._replicated = min(self._replicated, end)
            self._settle()

    def restart_at(self, offset: int, leader_epoch: int = ANY_EPOCH, term: int | None = None) -> None:
        """Removes all records: start, end and high watermark become `offset`, and no epoch is known (KAFKA-9491).

        The checkpoints are lowered and the newest segment is removed first, so that a crash leaves a log that ends
        earlier. Raises as `truncate_to` does.
        """
        with self._lock:
            self._check_follows(leader_epoch, term)
            end = min(self._segments.first_offset, offset)
        with self._lowered_checkpoints(end):
            self._restart_at(offset, leader_epoch, term)
        if self.on_truncated is not None:
            self.on_truncated(self, True)

    def _restart_at(self, offset: int, leader_epoch: int, term: int | None) -> None:
        with self._flush_lock, self._lock:
            self._check_follows(leader_epoch, term)
            before = (self._start, self._end)
            self._truncations += 1
            try:
                with storage(f"cannot restart {self.tp}"):
                    self._replaced += 1
                    self._epochs.clear()
                    self._producers.clear()
                    self._segments.restart_at(offset, self._clock())
                    self._sync_cut()
                    with self._watermark_lock:
                        self._start = self._end = self._replicated = offset
                        self._flusher.restart_at(offset)
                        self._settle()
            except KlammError as error:
                self._fail(f"a restart at offset {offset} failed ({error})")
                raise
            _log.info(
                "%s: restarted at offset %d, because the leader's log does not continue offsets %d to %d",
                self.tp, offset, *before,
            )  # fmt: skip

    def _sync_cut(self) -> None:
        """Makes a truncation or restart durable, for a caller that takes the log offline if it raises."""
        try:
            self._segments.sync_cut()
        except StorageError:  # unflushed batches before the cut may be lost, as after a failed flush
            if self.on_flush_failed is not None:
                self.on_flush_failed()
            raise

    def advance_log_start(self, offset: int) -> None:
        """Raises the log start offset to `offset`, at most to the log end, and the high watermark with it if that is
        lower: the leader has deleted the records below, so they were committed and are never shown here."""
        with self._lock:
            offset = min(offset, self._end)
            if self._closed is not None or offset <= self._start:
                return
            self._epochs.truncate_start(offset)
            self._start = offset
            with self._watermark_lock:
                self._replicated = max(self._replicated, offset)
                self._settle()

    # -- producers -----------------------------------------------------------------------------------------------

    def expire_producers(self, passed_ms: int, expiration_ms: int) -> int:
        """Removes producers that have sent nothing for longer than `expiration_ms` (`producer.id.expiration.ms`);
        returns their number. `passed_ms`: the time since the last call."""
        with self._lock:
            return self._producers.state.expire(passed_ms, expiration_ms)

    def last_sequence(self, producer_id: int) -> tuple[int, int] | None:
        """Returns the epoch of a producer and the last sequence that is stored in it; None if the log does not know
        the producer. Takes no lock and does not block: while another thread appends, it may return the earlier
        state, or None."""
        return self._producers.state.last_sequence(producer_id)

    def has_of_latest_epoch(self, producer_id: int) -> bool:
        """Returns True if the last batch of the producer was stored in the latest leader epoch. Takes no lock, as
        `last_sequence`."""
        last, (_, starts) = self._producers.state.last_offset(producer_id), self._epochs.columns()
        return last is not None and (not starts or last >= starts[-1])

    @property
    def first_offsets_of_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction by producer id."""
        with self._watermark_lock:
            return dict(self._producers.state.transactions.first_offsets)

    def last_batches_of_producers(self) -> dict[int, LastBatch]:
        """Returns the last batch of each producer, by producer id."""
        with self._lock:
            return self._producers.state.last_batches()

    # -- compaction and scrubbing --------------------------------------------------------------------------------

    def sealed_segments(self) -> list[Segment]:
        """Returns the segments before the active one that end at or below the high watermark."""
        with self._lock:
            self._check_open()
            return self._segments.sealed(self.high_watermark)

    def cleanable_segments(self) -> list[Segment]:
        """Returns the segments before the active one that end at or below the last stable offset: all transactions
        with records in them have ended."""
        with self._lock:
            self._check_open()
            return self._segments.sealed(self.last_stable_offset)

    def aborted_transactions(self, offset: int, end: int) -> list[AbortedEntry]:
        """Returns the aborted transactions with records in [offset, end), wherever they begin and end, by their first
        offsets."""
        with self._lock:
            self._check_open()
            return self._found_aborted(offset, end, cached_only=False) if self._has_aborted else []

    def sealed_end(self, sealed: Sequence[Segment]) -> int:
        """Returns the base offset of the segment after `sealed`, a result of `sealed_segments`."""
        with self._lock:
            following = self._segments.base_after(sealed[-1].base_offset if sealed else -1)
            return self._end if following is None else following

    def file_of(self, segment: Segment) -> OpenFile:
        """Returns the segment's open file, which may be read without the lock. Raises `LogClosedError` if the segment
        is not in the log any more."""
        with self._lock:
            self._check_open()
            if segment not in self._segments:
                raise LogClosedError(f"{self.tp}: the segment at offset {segment.base_offset} was removed")
            segment.used()
            return segment.file

    def roll_when_older(self, age_ms: int, now_ms: int) -> None:
        """Rolls the active segment if its first record is older than `age_ms`, so that it can be compacted."""
        with self._lock:
            self._check_open()
            if self._segments.active.older_than(age_ms, now_ms):
                self._roll(self._end, now_ms, f"is older than {age_ms} ms and must be compacted")

    def replace_segments(self, old: Sequence[Segment], cleaned: Segment, truncations: int) -> bool:
        """Replaces `old` by `cleaned`. Returns False and changes nothing if some of `old` are no longer in the log,
        or if `truncations` has changed: some of `old` may have grown since they were read, and records that
        superseded others may have been removed."""
        with self._flush_lock, self._lock:
            self._check_open()
            if truncations != self._truncations or not self._segments.holds_sealed(old):
                return False
            begin_swap(self.directory, cleaned)
            try:
                self._replaced += 1
                self._segments.replace(old, cleaned, self._clock() + self.config.file_delete_delay_ms)
            except BaseException as error:  # any error: the next start finishes the swap, of unchanged segments
                self._fail(f"a compaction could not be finished ({str(error) or type(error).__name__})")
                raise
            return True
