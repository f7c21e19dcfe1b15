"""The load job: loads from the end of the last published load to the end of the topic, with one rename (design D11).

    plan      ranges from the last load's `_offsets.json` to the high watermark, if the log's history is unchanged
    write     rows below `_staging/<job id>/`, clustered by directory
    count     the rows of the written files
    verify    that the topic and its history are still those of the plan
    publish   `_offsets.json`, `_audit.json`, `_SUCCESS`, then one rename to `load=<number>/`
    audit     the event, after the rename; a run that finds one missing sends it
    commit    the offsets, to a consumer group; a run that finds other offsets there commits them

A crash before the rename leaves nothing visible to readers, and one after it leaves the whole load: the next run begins
where the newest load ends. Fault points: `load.planned`, `load.written`, `load.staged`, `load.published`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from klamm.core.client.errors import DataLossError
from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.errors import KlammError
from klamm.core.faults import fault_point
from klamm.core.interfaces.audit import RangeCount
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition

from ..columnar.job import ColumnarJob
from ..jvm_zone import check_zone
from ..lake.layout import AUDIT, BAD, OFFSETS, SUCCESS, TopicLayout, is_data
from ..lake.manifest import BatchMark, LakeOrigin, Manifest, PartitionRange, check_topic, lake_origin, last_manifest
from ..lake_session import LakeSession
from ..publishing.interface import LakeError, Publisher, check_root
from .audit import LoadAudit, LoadAuditor
from .group_offsets import GroupOffsets
from .planning.history import HistoryCheck, Loaded, TopicHistory, way_out
from .planning.plan import Densities, LoadLimits, capped, capped_bytes
from .progress import Progress
from .rows import RowFormat
from .spark_writer import Counts, FileFormat, count, count_below, total_rows, write
from .staging import Staging, sweep

Reset = Literal["fail", "earliest", "latest"]
DEFAULT_WINDOW_MS: Final = 600_000
_NO_LIMITS: Final = LoadLimits()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogEnds:
    """One partition's first offset and high watermark."""

    earliest: int
    latest: int


class Topics(TopicHistory, Protocol):
    """The source of a load. `klamm.hadoop.load.topics.ClusterTopics` reads a cluster."""

    def cluster_id(self) -> str: ...

    def ends(self, topic: str) -> dict[int, LogEnds]:
        """Returns the ends of every partition; raises `KlammError` for an unknown topic."""
        ...

    def format(self, topic: str) -> RowFormat:
        """Returns the format of the topic's values, with every schema that is registered now."""
        ...

    def densities(self, ranges: Sequence[OffsetRange]) -> Densities:
        """Returns the log's bytes per offset, estimated from samples."""
        ...

    def rows(self, session: SparkSession, ranges: list[OffsetRange], format_: RowFormat) -> DataFrame:
        """Returns the lake's rows of exactly these ranges."""
        ...


class TooManyBadError(KlammError):
    """More records than `max.bad.share` allows cannot be read; nothing of the load is published."""


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The lake `root`, its `files`, and staging retention in seconds."""

    root: str
    files: FileFormat
    owner: str
    timezone: str = "UTC"
    """The time zone of the directories; all loads of a topic have the same."""
    reset: Reset = "fail"
    """The action if the offset to begin at, which is 0 for a partition's first load, was deleted."""
    max_bad_share: float = 1.0
    """The share of a load's records that may be set aside, from 0 to 1."""
    staging_retention_s: float = 3600.0
    window_ms: int = DEFAULT_WINDOW_MS


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A published load. `rows` and `files` are counted in the written files.

    `lost` are the offsets of `ranges` that it left out, because they were deleted, or because of `latest`;
    `quarantined` records and batches are in `_bad`. `left`: offsets that the limits left to a later load. `log_bytes`:
    bytes of the topic's log that were read, if they were limited.
    """

    topic: str
    load: int
    rows: int
    files: int
    bytes: int
    ranges: tuple[OffsetRange, ...]
    seconds: float
    lost: tuple[OffsetRange, ...] = ()
    quarantined: int = 0
    left: int = 0
    log_bytes: int = 0

    @property
    def offsets(self) -> int:
        """The number of offsets that were read; at least as many as there were records."""
        return sum(r.size for r in self.ranges) - sum(r.size for r in self.lost)


@dataclass(frozen=True, slots=True)
class _Planned:
    """One partition: `reads` begins at `begin`, where the last load ended, or above it by `auto.offset.reset`."""

    begin: int
    reads: OffsetRange

    @property
    def covered(self) -> OffsetRange:
        return replace(self.reads, start=self.begin)

    @property
    def lost(self) -> OffsetRange:
        return replace(self.reads, start=self.begin, end=self.reads.start)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan of every partition, with and without new records; `topic_id` was read before the ends, `batches` after
    them."""

    topic_id: UUID | None
    partitions: tuple[_Planned, ...]
    batches: Mapping[TopicPartition, BatchMark]
    reset: Reset
    left: int = 0
    log_bytes: int = 0

    @property
    def reads(self) -> list[OffsetRange]:
        return [p.reads for p in self.partitions if p.reads.size]

    @property
    def has_news(self) -> bool:
        return any(p.covered.size for p in self.partitions)

    def loaded(self) -> Loaded:
        return Loaded(self.topic_id, {p.reads.partition.partition: self._range(p) for p in self.partitions})

    def _range(self, planned: _Planned) -> PartitionRange:
        lost_to, reset = (planned.lost.end, self.reset) if planned.lost.size else (None, None)
        end, batch = max(planned.begin, planned.reads.end), self.batches.get(planned.reads.partition)
        return PartitionRange(start=planned.begin, end=end, lost_to=lost_to, reset=reset, batch=batch)


@dataclass(eq=False)
class LoadJob:
    """Loads one topic after another into one lake."""

    spark: Callable[[], SparkSession]
    topics: Topics
    publisher: Publisher
    spec: LoadSpec
    auditor: LoadAuditor | None = None
    committer: GroupOffsets | None = None
    columnar: ColumnarJob | None = None
    progress: Progress = field(default_factory=Progress)
    warn: Callable[[str], None] = _log.warning
    check: Callable[[], None] = lambda: None
    now_s: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex

    def __post_init__(self) -> None:
        self._session = LakeSession(self.spark, self.publisher, self.spec.root, self.spec.files.target_size)
        self._history = HistoryCheck(self.topics)

    def run(self, topic: str, limits: LoadLimits = _NO_LIMITS) -> LoadResult | None:
        """Makes one load; returns None when there is nothing new.

        Raises `LoadConflictError` when another job published first, `NoLakeError` if the lake's path is a file,
        `LakeError` if the topic's directory is one.
        """
        started = self.now_s()
        layout = TopicLayout(self.spec.root, topic)
        check_root(self.publisher, self.spec.root)
        check_topic(self.publisher, layout)
        sweep(self.publisher, layout, self.spec.staging_retention_s)
        self._send_audit(layout)
        plan = self._plan(layout, last := last_manifest(self.publisher, layout), limits)
        if last is not None:
            self._commit(last)
        starts_at_end = last is None and self.spec.reset == "latest"
        # otherwise a load is published even without records: the next load must know where to begin
        if not plan.has_news and not starts_at_end:
            return None
        job_id, number = self.new_id(), 1 if last is None else last.load + 1
        lake = lake_origin(self.publisher, layout, last, uuid.uuid4().hex)
        fault_point("load.planned")
        with Staging(self.publisher, layout, job_id) as staging:
            format_ = self._format(topic) if plan.reads else None  # otherwise all new records were deleted
            counts = Counts([], {}, []) if format_ is None else self._write(format_, staging.path, plan.reads)
            self.check()
            fault_point("load.written")
            self._check_bad(topic, counts)
            plan = self._with_late_losses(topic, plan, counts, staging.path)
            self._history.verify(layout, plan.loaded())
            manifest = self._describe(topic, number, job_id, plan, counts, staging.path, lake)
            if format_ is not None:
                manifest = manifest.model_copy(update={"avro_schema": format_.reader})
            self._finish(staging.path, manifest, plan, counts)
            size = sum(s for name, s in self.publisher.files(staging.path) if is_data(name))
            fault_point("load.staged")
            self.check()  # raises if the user has interrupted: from here on the load is visible
            if last is None or last.lake != lake:
                self._announce(manifest, lake)
            staging.publish(number)
            fault_point("load.published")
        self._send_audit(layout)
        self._commit(manifest)
        lost = tuple(p.lost for p in plan.partitions if p.lost.size)
        why = "are not loaded: auto.offset.reset is latest"
        if self.spec.reset != "latest":
            why = "were deleted before they could be loaded"
        for gap in lost:
            self.warn(f"{gap.partition}: offsets {gap.start} to {gap.end} {why}")
        for bad in counts.unopened:
            self.warn(
                f"{TopicPartition(topic, bad.partition)}: the batch of the offsets {bad.start} to {bad.end} cannot be "
                f"opened and is set aside in {layout.load(number)}/{BAD}: {bad.reason}"
            )
        covered = tuple(p.covered for p in plan.partitions if p.covered.size)
        seconds = self.now_s() - started
        quarantined = counts.bad + len(counts.unopened)
        return LoadResult(
            topic, number, manifest.rows, manifest.files, size, covered, seconds, lost, quarantined, plan.left,
            plan.log_bytes,
        )  # fmt: skip

    def last_load_ms(self, topic: str) -> int:
        """Returns when the newest load of a topic was made, in ms since the epoch; 0 without one."""
        last = last_manifest(self.publisher, TopicLayout(self.spec.root, topic))
        return 0 if last is None else last.created_ms

    def _plan(self, layout: TopicLayout, last: Manifest | None, limits: LoadLimits) -> _Plan:
        topic = layout.topic
        topic_id, cluster_id = self.topics.topic_id(topic), self.topics.cluster_id()
        ends = self.topics.ends(topic)
        if last is not None:
            self._verify(layout, last, cluster_id, ends)
        known = {} if last is None else last.partitions
        found = [
            self._partition(TopicPartition(topic, n), log, known.get(n), last is None)
            for n, log in sorted(ends.items())
        ]
        reads, log_bytes = capped([p.reads for p in found], limits.records), 0
        if limits.bytes is not None:
            reads, log_bytes = capped_bytes(reads, self.topics.densities(reads), limits.bytes)
        left = sum(p.reads.size for p in found) - sum(r.size for r in reads)
        partitions = tuple(replace(p, reads=r) for p, r in zip(found, reads, strict=True))
        wanted = {p.reads.partition: max(p.begin, p.reads.end) for p in partitions}
        batches = self.topics.last_batches(wanted)
        kept = {
            tp: mark
            for tp, end in wanted.items()
            if (before := known.get(tp.partition)) and before.end == end and (mark := before.batch) is not None
        }
        return _Plan(topic_id, partitions, kept | batches, self.spec.reset, left, log_bytes)

    def _verify(self, layout: TopicLayout, last: Manifest, cluster_id: str, ends: Mapping[int, LogEnds]) -> None:
        """Checks that the last load's offsets still refer to the same records."""
        if last.cluster_id != cluster_id:
            raise LakeError(
                f"{layout.base} was loaded from cluster {last.cluster_id!r}, this cluster is {cluster_id!r}; "
                "give each cluster a lake of its own"
            )
        if last.timezone != self.spec.timezone:
            raise LakeError(
                f"{layout.base} was loaded with timezone: {last.timezone}, it is now {self.spec.timezone}: a day "
                "would mean two things; keep the zone, or load into another path"
            )
        self._history.verify_topic(layout, last.topic_id)
        for number, loaded in sorted(last.partitions.items()):
            log, partition = ends.get(number), TopicPartition(layout.topic, number)
            if log is None or loaded.end > log.latest:
                now = "the topic has no such partition now" if log is None else f"the log ends at {log.latest} now"
                raise DataLossError(
                    f"{partition}: loaded up to offset {loaded.end}, {now}: the topic was deleted and created again, "
                    f"or its log was cut; {way_out(layout)}"
                )
        self._history.verify(layout, Loaded(last.topic_id, last.partitions))

    def _partition(
        self, partition: TopicPartition, log: LogEnds, loaded: PartitionRange | None, first: bool
    ) -> _Planned:
        """Plans one partition. `first`: no load of the topic is published yet.

        A partition that was added later begins at offset 0 with `latest` too: unlike in a consumer, its first records
        are not skipped.
        """
        begin, reset = 0 if loaded is None else loaded.end, self.spec.reset
        deleted = begin < log.earliest
        if deleted and reset == "fail":
            if loaded is not None:
                raise DataLossError(
                    f"{partition}: loaded up to offset {begin}, but the log begins at {log.earliest}: retention "
                    "deleted the records between; auto.offset.reset: earliest continues without them"
                )
            raise DataLossError(
                f"{partition}: the log begins at offset {log.earliest}: the records below it were deleted and never "
                "loaded; auto.offset.reset: earliest begins at the first record left"
            )
        at_end = reset == "latest" and (deleted or first)
        start = log.latest if at_end else max(begin, log.earliest)
        return _Planned(begin, OffsetRange(partition, start, log.latest))

    def _with_late_losses(self, topic: str, plan: _Plan, counts: Counts, path: str) -> _Plan:
        """Returns the plan with the records that retention deleted after planning, before a task could read them.

        Raises `DataLossError` if records may be lost after others that were read: a manifest can have a gap only at the
        beginning of a range.
        """
        if self.spec.reset == "fail":
            return plan  # the task has failed
        ends = self.topics.ends(topic)
        first = dict(counts.first)
        for batch in counts.unopened:
            first[batch.partition] = min(first.get(batch.partition, batch.start), batch.start)
        partitions, deleted = [], []
        for planned in plan.partitions:
            reads = planned.reads
            log = ends.get(reads.partition.partition)
            if reads.size and log is not None and log.earliest > reads.start:
                end = min(log.earliest, reads.end)
                held = replace(reads, start=min(first.get(reads.partition.partition, reads.end), end))
                planned = replace(planned, reads=held)
                deleted.append(replace(held, end=end))
            partitions.append(planned)
        self._check_whole([r for r in deleted if r.size], counts, path)
        return replace(plan, partitions=tuple(partitions))

    def _check_whole(self, ranges: Sequence[OffsetRange], counts: Counts, path: str) -> None:
        """Checks that each offset of these ranges, whose records are now deleted, was read before."""
        if not ranges:
            return
        bounds = {r.partition.partition: r.end for r in ranges}
        has_bad = BAD in self.publisher.names(path)
        with self._session.running() as session:
            below = count_below(session, path, self.spec.files, has_bad, bounds)
        for r in ranges:
            number = r.partition.partition
            aside = sum(max(min(b.end, r.end) - b.start, 0) for b in counts.unopened if b.partition == number)
            if below[number] + aside < r.size:
                raise DataLossError(
                    f"{r.partition}: the load has {below[number] + aside} of the offsets {r.start} to {r.end}, which "
                    "retention deleted while it read them; nothing is published; the next run continues with the rest"
                )

    def _format(self, topic: str) -> RowFormat:
        """Raises `SchemaError` before a record is read if no lake can hold the record type."""
        format_ = self.topics.format(topic)
        format_.schema()
        return format_

    def _write(self, format_: RowFormat, path: str, ranges: list[OffsetRange]) -> Counts:
        topic = format_.topic
        if self.columnar is not None:
            with self._session.as_it_is() as spark:
                if self.columnar.serves(spark.sparkContext, format_):
                    return self.columnar.write(spark, path, ranges, format_)
        with self._session.running() as session:
            check_zone(session, [self.spec.files.name])
            with self.progress.watch(session, f"load {topic}"):
                rows = self.topics.rows(session, ranges, format_)
                write(rows, path, self.spec.files, format_.quarantine)
            with self.progress.watch(session, f"count {topic}"):
                has_bad = BAD in self.publisher.names(path)
                return count(session, path, self.spec.files, has_bad, self.spec.window_ms, ranges)

    def _check_bad(self, topic: str, counts: Counts) -> None:
        bad, of = counts.bad_share
        if bad and bad > self.spec.max_bad_share * of:
            raise TooManyBadError(
                f"topic {topic}: {bad} of {of} records cannot be read, which is more than max.bad.share: "
                f"{self.spec.max_bad_share:g} allows; the first is in partition {counts.first_bad}; nothing is loaded"
            )

    def _describe(
        self, topic: str, number: int, job_id: str, plan: _Plan, counts: Counts, path: str, lake: LakeOrigin
    ) -> Manifest:
        files = [name for name, _ in self.publisher.files(path) if is_data(name)]
        loaded = plan.loaded()
        return Manifest(
            topic=topic,
            topic_id=loaded.topic_id,
            load=number,
            job_id=job_id,
            cluster_id=self.topics.cluster_id(),
            created_ms=int(self.now_s() * 1000),
            rows=total_rows(counts.ranges),
            files=len(files),
            partitions=dict(loaded.partitions),
            quarantined=counts.bad,
            isolation_level=IsolationLevel.READ_COMMITTED.name.lower(),
            timezone=self.spec.timezone,
            unopened=counts.unopened,
            lake=lake,
        )

    def _finish(self, path: str, manifest: Manifest, plan: _Plan, counts: Counts) -> None:
        """Writes the manifest, the audit's counts and the marker of success. A lost range is a separate range without
        records, so that the audit reports its records as missing.
        """
        lost = [RangeCount(p.lost.partition, p.lost.start, p.lost.end, ()) for p in plan.partitions if p.lost.size]
        begins = {p.reads.partition: p.reads.start for p in plan.partitions}
        held = [replace(c, from_offset=begins[c.partition]) for c in counts.ranges]
        topic = manifest.topic, manifest.topic_id
        audit = LoadAudit.of(self.spec.owner, topic, manifest.load, manifest.job_id, self.spec.window_ms, held, lost)
        audit = audit.model_copy(update={"watermark_ms": self._watermark_ms(audit, manifest.lake)})
        files: Mapping[str, bytes] = {OFFSETS: manifest.to_bytes(), AUDIT: audit.to_bytes(), SUCCESS: b""}
        for name, data in files.items():
            self.publisher.write(f"{path}/{name}", data)

    def _watermark_ms(self, audit: LoadAudit, lake: LakeOrigin) -> int | None:
        """Computes the watermark; None if that fails: a failing audit never fails a load (design D7)."""
        if self.auditor is None:
            return None
        with self._warning(f"{audit.topic}: the watermark is not known", f"the load's {AUDIT} has none"):
            return self.auditor.watermark_ms(audit, lake)
        return None

    def _announce(self, manifest: Manifest, lake: LakeOrigin) -> None:
        """Announces a new lake to the audit. A failing audit never fails a load (design D7)."""
        if self.auditor is None or not manifest.partitions:
            return
        then = "until this load's event is stored it counts an earlier lake of the sink"
        with self._warning(f"{manifest.topic}: the audit does not know this lake yet", then):
            self.auditor.announce(manifest.topic, manifest.topic_id, min(manifest.partitions), lake)

    def _send_audit(self, layout: TopicLayout) -> None:
        """Sends the missing audit events. A failing audit never fails a load (design D7): the counts are in the lake,
        and a later run sends them.
        """
        if self.auditor is not None:
            with self._warning(f"{layout.topic}: an audit event is not stored", "the next load sends it"):
                self.auditor.send_missing(layout)

    def _commit(self, manifest: Manifest) -> None:
        """Commits the offsets to the group. A failing commit never fails a load: the manifest determines where the next
        one begins.
        """
        if self.committer is not None:
            what = f"{manifest.topic}: the offsets of load {manifest.load} are not committed to the group "
            with self._warning(what + self.committer.group, "the next run commits them"):
                self.committer.commit(manifest)

    @contextmanager
    def _warning(self, what: str, then: str) -> Iterator[None]:
        """A context whose error becomes a warning: what does not work, and what happens then."""
        try:
            yield
        except Exception as error:
            self.warn(f"{what} ({error}); {then}")
