"""The broker tier: follows each audited partition that this broker leads to the high watermark, on a thread of its own.

Rules:

- Its position is a committed offset of the group `GROUP`, which is also the owner in its events: the broker that leads
  a partition continues where the last one stopped. It is committed only while this broker leads the partition in the
  leader epoch of the counts, which the coordination checks: a leader that was cut off drops its counts instead. An
  offset of another topic id is void: the topic was created again, and is counted from its beginning. So are the offsets
  after the end of the leader epoch that was counted last: the log was truncated or restored, and has other records
  there.
- Batches are counted as `batch_counts` says: where `appends` has counted them as they were appended, its counts are
  taken; all others are read from the log.
- One pass reads at most `CHUNK` bytes of each partition, then publishes, then commits. The next pass follows at once if
  a log held more than the pass has read, otherwise after a pause: a log that grows constantly is counted once in
  `broker.interval.ms`, not as often as the thread can.
- A range has at most `MAX_CELLS` windows and producers, which with `MAX_OWNER_BYTES` bounds its event: it ends before a
  batch that could exceed them. A batch that exceeds them alone is not counted, and makes its range lossy.
- After a pass that could not publish or commit, nothing more is counted: the next one starts by publishing the same
  again.
- A mirror's partition is counted in the same way, and its events are of the tier `mirror`, with the id of the topic at
  the source. A gap of the mirror is a part of the range without records. The log of a mirror may be cut without a new
  leader epoch of this cluster, so each read compares the epoch that was counted last.
- Where a mirror was cut below the position, an event reports what had been counted and is lost, before anything else is
  counted (docs/audit.md, R25). The records are counted in what the broker has set aside; if it is not there, as where
  another broker has led the partition, the event is lossy.
- A batch that cannot be opened makes its range lossy, and is skipped; its CRC was checked on Produce, so the client
  wrote invalid content, or the disk is damaged. Records that retention deleted before they were counted make the range
  lossy too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from klamm.core.client.event_publisher import EventPublisher
from klamm.core.client.factory import open_client
from klamm.core.records.decode import read_area
from klamm.core.records.epoch_end import EpochEnd
from klamm.core.records.header import BatchHeader, iter_headers
from klamm.core.records.partition import some_of
from klamm.plugin import (
    AuditIdentity,
    BrokerContext,
    Buffer,
    CommittedOffset,
    ConfigError,
    CoordinationError,
    ErrorCode,
    IsolationLevel,
    KlammError,
    Publish,
    ServiceRead,
    TopicPartition,
)

from ..config import AuditConfig
from ..event import BROKER
from ..windows import clock_ms
from . import batch_counts
from .appends import AppendCounts
from .batch_counts import BatchCounter, Cells, add_cells
from .ranges import KlammRangeAudit

log = logging.getLogger(__name__)

GROUP: Final = "__klamm_audit"
CHUNK: Final = 4 * 1024 * 1024
PIECE: Final = 1024 * 1024
"""Bytes of one read: small enough that the allocator uses the same memory again. With reads of 4 MB, each of which gets
new pages from the system, a batch cost 100 µs of CPU instead of 37."""
STOP_S: Final = 10.0
MAX_BACKOFF_S: Final = 10.0
ABSENT_GRACE_S: Final = 60.0
"""Seconds after the start before topics that do not exist are logged: they may be created together with the broker."""
_MOVED: Final = frozenset(
    {ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition, ErrorCode.offset_not_available}
)
"""Errors that mean that the partition is led by another broker, or by this one in a new leader epoch, or is deleted."""

Connect = Callable[[BrokerContext], AbstractContextManager[Publish]]
"""Opens a publisher of events."""


class BrokerTier:
    """The follower's thread; see the module's rules. `problem`: why the last pass failed, None if it did not."""

    def __init__(
        self,
        audits: Callable[[str], bool],
        window_ms: int,
        config: AuditConfig,
        logs: BrokerContext,
        connect: Connect,
        clock_ms: Callable[[], int],
        absent: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """`absent` returns a line for each topic of the configuration that does not exist."""
        self._audits = audits
        self._absent = absent
        self._config = config
        self._logs = logs
        self._connect = connect
        self._identity = AuditIdentity(BROKER, GROUP, logs.host, "broker")
        self._window_ms = window_ms
        self._clock_ms = clock_ms
        self.problem: str | None = None
        self._created = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-broker-audit", daemon=True)

    def start(self) -> None:
        """Creates the audit topic and starts the thread, which tries again if that is not possible now (fewer
        brokers are live than `default.replication.factor`, or the controller does not answer). Raises `ConfigError`
        if it will never be possible."""
        try:
            self._create_topic()
        except ConfigError:
            raise
        except KlammError as error:
            self.problem = str(error)
            log.info("the audit topic is created later: %s", error)
        self._thread.start()

    def _create_topic(self) -> None:
        self._logs.ensure_topic(self._config.topic, self._config.partitions, self._config.topic_configs())
        self._created = True

    def stop(self) -> None:
        """Makes a last pass, so that a stopped broker has counted everything that it stored."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        pause = interval = self._config.broker_interval_ms / 1000
        with self._connect(self._logs) as publish:
            follower = Follower(
                KlammRangeAudit(self._identity, publish, window_ms=self._window_ms, clock_ms=self._clock_ms),
                self._logs,
                self._audits,
            )
            last = told_absent = False
            begun = time.monotonic()
            while not last:
                last = self._stopping.wait(pause)
                if not told_absent and time.monotonic() - begun >= ABSENT_GRACE_S:
                    told_absent = True
                    self._tell_absent()
                try:
                    if not self._created:
                        self._create_topic()
                    while follower.advance() and follower.behind and not self._stopping.is_set():
                        pass
                    pause = interval
                    self.problem = None
                except KlammError as error:
                    pause = min(MAX_BACKOFF_S, max(pause * 2, interval))
                    self.problem = str(error)
                    log.warning("broker audit: %s; trying again in %.1f s", error, pause)
                except Exception as error:  # an auditor that raises does not stop the broker
                    pause = MAX_BACKOFF_S
                    self.problem = repr(error)
                    log.exception("broker audit: a pass failed; trying again in %.1f s", pause)

    def _tell_absent(self) -> None:
        try:
            for line in self._absent():
                log.warning("%s", line)
        except KlammError as error:
            log.info("whether each topic of audit.topics exists is unknown: %s", error)


@dataclass(slots=True)
class _Followed:
    """The tier's position in a partition. `known`: the partition was seen or counted before, so that records deleted
    from then on are missing from the counts. `counted` is the leader epoch of the last batch counted. `epoch`, the
    owner epoch of events, is None until the log was read. `origin`: of a mirror, its topic's id at the source."""

    topic_id: UUID | None
    position: int
    known: bool
    counted: int = -1
    epoch: int | None = None
    origin: UUID | None = None


class Follower:
    """Keeps the tier's position in each partition. Called from one thread."""

    def __init__(
        self,
        ranges: KlammRangeAudit,
        logs: BrokerContext,
        audits: Callable[[str], bool],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> None:
        """`isolation`: the records of committed transactions are counted, or all up to the high watermark."""
        self._ranges = ranges
        self._logs = logs
        self._isolation = isolation
        self._audits = audits
        self._followed: dict[TopicPartition, _Followed] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        self._counter = BatchCounter(ranges.window_ms)
        self._appends = AppendCounts(ranges.window_ms)
        logs.on_append(self._appends.appended)
        self.behind = False
        """True if a log held more than the last pass has read of it."""

    def advance(self) -> bool:
        """Makes one pass; returns whether there was anything to count. Raises the error of the log, the store or the
        publisher."""
        self._follow_leadership()
        self._commit()
        self.behind = False
        failed: KlammError | None = None
        for partition in list(self._followed):
            try:
                self._read(partition)
            except CoordinationError:
                raise
            except KlammError as error:
                if error.code in _MOVED:
                    continue  # the next pass follows the leader, which continues where this broker has committed
                log.warning("broker audit: %s: %s", partition, error)
                failed = error
        moved = bool(self._uncommitted)
        self._commit()
        if failed is not None and not moved:
            raise failed
        return moved

    def _follow_leadership(self) -> None:
        led = {p: topic_id for p, topic_id in self._logs.partitions().items() if self._audits(p.topic)}
        gone = [p for p, followed in self._followed.items() if p not in led or led[p] != followed.topic_id]
        self._leave(gone)
        self._follow({partition: led[partition] for partition in sorted(led.keys() - self._followed.keys())})

    def _follow(self, new: Mapping[TopicPartition, UUID | None]) -> None:
        sources = self._logs.mirrored(new) if new else {}
        new = {
            partition: topic_id
            for partition, topic_id in new.items()
            if partition not in sources or sources[partition] is not None
        }
        self._appends.follow(new)  # first: what is appended from here on is counted there
        stored = self._logs.committed(GROUP, new) if new else {}
        for partition, topic_id in new.items():
            found = stored.get(partition)
            if found is not None and None not in (found.topic_id, topic_id) and found.topic_id != topic_id:
                log.info("broker audit: %s was created again: it is counted from its beginning", partition)
                found = None
            followed = _Followed(topic_id, 0, known=False)
            if found is not None:
                followed = _Followed(topic_id, found.offset, True, found.leader_epoch)
            source = sources.get(partition)
            followed.origin = None if source is None else source.topic_id
            self._followed[partition] = followed

    def _leave(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops the counts that were not committed: the leader continues where this tier committed last."""
        self._ranges.stop(partitions)
        self._appends.leave(partitions)
        for partition in partitions:
            self._followed.pop(partition, None)
            self._uncommitted.pop(partition, None)

    def _read(self, partition: TopicPartition) -> None:
        for _ in range(CHUNK // PIECE):
            if not self._read_piece(partition):
                return
        self.behind = True

    def _read_piece(self, partition: TopicPartition) -> bool:
        """Counts a piece; returns True if the log may hold more that can be counted now."""
        followed = self._followed[partition]
        read = self._logs.read(partition, followed.position, 0, self._isolation)
        if read.topic_id != followed.topic_id:
            return False  # deleted and created again since this pass began: the next pass detects it
        began_again = followed.epoch not in (None, read.leader_epoch)  # perhaps another broker has led, and has counted
        if began_again or (followed.epoch is not None and self._mirror_was_cut(partition, followed)):
            self._leave([partition])
            self._follow({partition: followed.topic_id})
            return True
        if followed.epoch is None and not self._begin(partition, followed, read):
            self.behind = True
            return False
        if read.log_start_offset > followed.position or read.high_watermark < followed.position:
            self._jump(partition, followed, read)
            return False
        taken = self._take(partition, followed, read)
        if taken is not None:
            return taken
        begin = followed.position
        end = self._appends.next_begin(partition)
        read = self._logs.read(partition, followed.position, PIECE, self._isolation)
        moved = (read.topic_id, read.leader_epoch) != (followed.topic_id, followed.epoch)
        if moved or self._mirror_was_cut(partition, followed):
            self.behind = True
            return False
        for at, header in iter_headers(read.data):
            if header.next_offset > read.end or header.base_offset == end:
                break
            if header.next_offset > followed.position:
                if self._is_behind_a_cut(partition, followed, header):
                    self._leave([partition])
                    self._follow({partition: followed.topic_id})
                    return True
                if not self._count(partition, read.data, at, header, followed.position):
                    self.behind = True
                    return False
                # With each batch: after an error in the next one, this one is not counted again.
                followed.position = self._uncommitted[partition] = header.next_offset
                followed.counted = header.leader_epoch
                followed.known = True
        return begin < followed.position < read.end

    def _take(self, partition: TopicPartition, followed: _Followed, read: ServiceRead) -> bool | None:
        """Uses the counts of batches that were counted when they were appended. Returns what `_read_piece` returns;
        None if there are no such counts."""
        span = self._appends.take(partition, read.leader_epoch, followed.position, read.end)
        if span is None:
            return None
        if self._ranges.cells(partition) + len(span.cells) > batch_counts.MAX_CELLS:
            self._appends.give_back(partition, span)
            self.behind = True
            return False
        self._ranges.count_windows(partition, span.end, span.cells)
        followed.position = self._uncommitted[partition] = span.end
        followed.counted, followed.known = span.leader_epoch, True
        return span.end < read.end

    def _begin(self, partition: TopicPartition, followed: _Followed, read: ServiceRead) -> bool:
        """Starts with the first read in a leader epoch, or after a mirror was cut. Returns False if what a mirror has
        lost must be published and committed before anything is counted.

        Records that were deleted before this tier saw the partition are not counted. If the log ends at the
        position, that is published at once: the log may have been cut there after a former leader published counts
        that it could not commit, and nothing may ever be written again. A log that begins where its former epoch ends
        was perhaps cut below, and records of the present epoch were deleted since.
        """
        below, mirrors = False, followed.origin is not None
        lost: tuple[int, Cells | None] | None = None
        if not followed.known:
            followed.position = read.log_start_offset
            followed.known = True
        elif mirrors or followed.counted < read.leader_epoch:
            cut = self._mirror_cut(partition, followed) if mirrors else self._cut(partition, followed)
            if cut is not None:
                log.error(
                    "broker audit: %s was cut at offset %d, and had been counted to %d; continuing there",
                    partition, cut, followed.position,
                )  # fmt: skip
                if mirrors:
                    lost = followed.position, self._lost(partition, followed, cut)
                    followed.counted = self._epoch_before(partition, cut, followed.counted)
                followed.position, below = cut, 0 < cut <= read.log_start_offset
        followed.epoch = read.leader_epoch
        self._start(partition, followed)
        untouched = mirrors and followed.counted < 0  # it may begin at a later offset of the source
        if (read.leader_epoch > 0 or mirrors) and read.high_watermark == followed.position and not untouched:
            self._uncommitted[partition] = followed.position
            self._ranges.cut(partition)
        if below:
            self._ranges.cut(partition, below=True)
        if lost is None:
            return True
        to, cells = lost
        self._ranges.lost(partition, to, cells or {}, lossy=below or cells is None)
        self._uncommitted[partition] = followed.position
        return False

    def _start(self, partition: TopicPartition, followed: _Followed) -> None:
        epoch = -1 if followed.epoch is None else followed.epoch
        self._ranges.start(
            partition, followed.position, topic_id=followed.topic_id, epoch=epoch, origin=followed.origin
        )

    def _cut(self, partition: TopicPartition, followed: _Followed) -> int | None:
        """Returns where the log was cut below the position; None if it was not."""
        if followed.counted < 0:
            return None
        return EpochEnd(followed.counted, self._logs.epoch_end(partition, followed.counted)).cut(followed.position)

    def _mirror_was_cut(self, partition: TopicPartition, followed: _Followed) -> bool:
        return followed.origin is not None and self._cut(partition, followed) is not None

    def _is_behind_a_cut(self, partition: TopicPartition, followed: _Followed, header: BatchHeader) -> bool:
        """Returns True if the log of a mirror was cut below the position, and goes on beyond it behind a gap: then the
        epoch that was counted last seems to end there."""
        jumps = followed.origin is not None and header.base_offset > followed.position
        if not jumps or not 0 <= followed.counted < header.leader_epoch:
            return False
        return any(first < followed.position < last for first, last in self._gaps(partition))

    def _mirror_cut(self, partition: TopicPartition, followed: _Followed) -> int | None:
        """Returns where the log of a mirror was cut below the position, which is where a gap begins that follows; None
        if it was not."""
        if followed.counted < 0:
            return None
        cut = self._cut(partition, followed)
        at, within = (followed.position, 1) if cut is None else (cut, 0)
        return min((first for first, last in self._gaps(partition) if first < at <= last - within), default=cut)

    def _gaps(self, partition: TopicPartition) -> tuple[tuple[int, int], ...]:
        source = self._logs.mirrored([partition]).get(partition)
        return () if source is None else source.gaps

    def _lost(self, partition: TopicPartition, followed: _Followed, cut: int) -> Cells | None:
        """Counts the records from `cut` up to the position that a mirror has lost; None if they are not here, or cannot
        all be counted."""
        try:
            data = self._logs.set_aside(partition, cut, followed.position, followed.counted)
            if data is None:
                raise KlammError("they are not at this broker")
            return self._cells(partition, data, cut, followed.position)
        except CoordinationError:
            raise
        except KlammError as error:
            log.error("broker audit: %s: the records that were cut are counted as unknown: %s", partition, error)
            return None

    def _cells(self, partition: TopicPartition, data: Buffer, begin: int, end: int) -> Cells:
        """Counts the records of offsets [begin, end). Raises `KlammError` if one cannot be counted."""
        cells: Cells = {}
        for at, header in iter_headers(data):
            if header.is_control or header.next_offset <= begin or header.base_offset >= end:
                continue
            counted = self._counts(partition, data, at, header, begin)
            if counted is None or len(cells) + len(counted) > batch_counts.MAX_CELLS:
                raise KlammError(f"they have more than {batch_counts.MAX_CELLS} windows")
            if header.next_offset > end:
                raise KlammError(f"offset {end} is inside a batch")
            add_cells(cells, counted)
        return cells

    def _epoch_before(self, partition: TopicPartition, offset: int, otherwise: int) -> int:
        """Returns the leader epoch of the record before `offset`; `otherwise` if there is none."""
        read = self._logs.read(partition, max(offset - 1, 0), 1)
        return next((h.leader_epoch for _, h in iter_headers(read.data) if h.base_offset < offset), otherwise)

    def _jump(self, partition: TopicPartition, followed: _Followed, read: ServiceRead) -> None:
        """Handles a position outside of the log. If retention was faster, the range that was not counted becomes
        lossy. If the log ends before the counted position (it was truncated, or restored), the ranges overlap, and
        the comparison reports it. Or this broker does not know that another one leads: so it counts nothing again
        before the coordination has accepted its position."""
        start = read.log_start_offset
        self.behind = True
        if followed.origin is not None and followed.counted < 0 and start > followed.position:
            followed.position = start  # a mirror begins at the source's log start
            self._start(partition, followed)
            return
        log.warning("broker audit: %s: offset %d was deleted, continuing at %d", partition, followed.position, start)
        if start > followed.position:
            if followed.origin is not None and self._in_gap(partition, followed.position, start):
                self._ranges.count_windows(partition, start, {})  # none of these records is here
            else:
                self._ranges.uncountable(partition, start)
            followed.position = self._uncommitted[partition] = start
        elif self._logs.commit(
            GROUP,
            {partition: CommittedOffset(start, -1, topic_id=followed.topic_id)},
            {partition: read.leader_epoch},
        ):
            self.behind = False
            self._leave([partition])
        else:
            followed.position = start
            self._uncommitted.pop(partition, None)
            self._start(partition, followed)

    def _in_gap(self, partition: TopicPartition, begin: int, end: int) -> bool:
        return any(first <= begin and end <= last for first, last in self._gaps(partition))

    def _count(self, partition: TopicPartition, data: bytes, at: int, header: BatchHeader, position: int) -> bool:
        """Counts a batch. Returns False if it does not fit into the range, which must then end before it."""
        if header.is_control:
            return True
        try:
            cells = self._counts(partition, data, at, header, position)
        except KlammError as error:
            log.error("broker audit: %s: %s; its records are counted as unknown", partition, error)
            self._ranges.uncountable(partition, header.next_offset)
            return True
        if cells is None:
            log.error(
                "broker audit: %s offset %d: the batch has more than %d windows; its records are counted "
                "as unknown",
                partition, header.base_offset, batch_counts.MAX_CELLS,
            )  # fmt: skip
            self._ranges.uncountable(partition, header.next_offset)
            return True
        if self._ranges.cells(partition) + len(cells) > batch_counts.MAX_CELLS:
            return False
        self._ranges.count_windows(partition, header.next_offset, cells)
        return True

    def _counts(
        self, partition: TopicPartition, data: Buffer, at: int, header: BatchHeader, position: int
    ) -> Cells | None:
        """Counts the records of a batch from `position` on; see `BatchCounter.count`."""
        area = read_area(data, at, header, self._logs.codecs, partition=partition)
        return self._counter.count(partition, area, header.max_timestamp, position, stored=not header.codec_id)

    def _commit(self) -> None:
        """Publishes, then commits: after a crash in between, the next event with the same key replaces this one.

        It commits only in the leader epoch of the counts: the next leader may have counted further, and this broker
        may not know of it yet. An event that it publishes all the same has an older epoch than the next leader's
        events.
        """
        if not self._uncommitted:
            return
        self._ranges.publish(self._uncommitted)
        counted = {partition: self._followed[partition] for partition in self._uncommitted}
        offsets = {
            partition: CommittedOffset(to, counted[partition].counted, topic_id=counted[partition].topic_id)
            for partition, to in self._uncommitted.items()
        }
        epochs = {p: -1 if followed.epoch is None else followed.epoch for p, followed in counted.items()}
        refused = self._logs.commit(GROUP, offsets, epochs)
        if refused:
            log.info("broker audit: %s: deleted, led by another broker, or in another epoch", some_of(refused))
            self.behind = False  # it is counted again from where it is committed: not before this broker learns that
        self._ranges.committed({p: to for p, to in self._uncommitted.items() if p not in refused})
        self._uncommitted = {}
        self._leave(refused)


def connect_to_self(topic: str) -> Connect:
    """Returns a function that opens a client of this broker: events are sent by Produce, as by any client."""

    @contextmanager
    def connect(logs: BrokerContext) -> Iterator[Publish]:
        with open_client(logs, "audit") as client:
            yield EventPublisher(client, topic, clock_ms)

    return connect
