"""The load job: from the last published load to the end of the topic, and out in one rename (design D11).

    plan      ranges from the last load's `_offsets.json` to the high watermark
    write     rows below `_staging/<job id>/`, clustered by directory
    count     what the written files hold
    publish   `_offsets.json`, `_audit.json`, `_SUCCESS`, then one rename to `load=<number>/`
    audit     the event, after the rename; a run that finds one missing sends it

A crash before the rename leaves nothing that a reader sees, and one after it leaves all: the next run begins where the
newest load ends. Fault points: `load.planned`, `load.written`, `load.staged`, `load.published`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from klamm.core.errors import KlammError
from klamm.core.faults import fault_point
from klamm.core.records.partition import TopicPartition
from klamm.core.seams.audit import RangeCount
from klamm.hadoop.audit import LoadAudit, LoadAuditor
from klamm.hadoop.fetch import DataLossError
from klamm.hadoop.layout import AUDIT, BAD, OFFSETS, SUCCESS, TopicLayout
from klamm.hadoop.manifest import Manifest, PartitionRange, last_manifest
from klamm.hadoop.plan import OffsetRange, capped
from klamm.hadoop.progress import Progress
from klamm.hadoop.publishing.seam import LakeError, Publisher
from klamm.hadoop.rows import RowFormat
from klamm.hadoop.session import SparkFailedError, reason_of
from klamm.hadoop.staged import FileFormat, count, decoded, load_session, total_rows, write
from klamm.hadoop.staging import Staging, sweep

DEFAULT_WINDOW_MS: Final = 600_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogEnds:
    """One partition's first offset and high watermark."""

    earliest: int
    latest: int


class Topics(Protocol):
    """What a load reads from. `klamm.hadoop.topics.ClusterTopics` is the cluster."""

    def cluster_id(self) -> str: ...

    def ends(self, topic: str) -> dict[int, LogEnds]:
        """Of every partition; an unknown topic is a `KlammError`."""
        ...

    def format(self, topic: str) -> RowFormat:
        """How the topic's values are read, with every schema that is registered now."""
        ...

    def read(self, session: SparkSession, ranges: list[OffsetRange]) -> DataFrame:
        """The columns of the `klamm` source, of exactly these ranges."""
        ...


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The lake `root`, its `files`, and the limits: `max_offsets` per load, staging retention in seconds."""

    root: str
    files: FileFormat
    owner: str
    max_offsets: int | None = None
    fail_on_data_loss: bool = True
    staging_retention_s: float = 3600.0
    window_ms: int = DEFAULT_WINDOW_MS


@dataclass(frozen=True, slots=True)
class LoadResult:
    """A published load. `rows` and `files` are counted in what was written, `bad` of the rows were set aside."""

    topic: str
    load: int
    rows: int
    files: int
    bytes: int
    ranges: tuple[OffsetRange, ...]
    seconds: float


class LoadJob:
    """Loads one topic after another into one lake."""

    def __init__(
        self,
        spark: Callable[[], SparkSession],
        topics: Topics,
        publisher: Publisher,
        spec: LoadSpec,
        *,
        auditor: LoadAuditor | None = None,
        progress: Progress | None = None,
        warn: Callable[[str], None] = _log.warning,
        check: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._publisher = publisher
        self._spec = spec
        self._auditor = auditor
        self._progress = progress or Progress()
        self._warn = warn
        self._check = check
        self._now_s = now_s
        self._new_id = new_id

    @cached_property
    def _session(self) -> SparkSession:
        """Made when there is something to load: starting Spark takes seconds."""
        return load_session(self._spark(), self._spec.files.target_size)

    def run(self, topic: str) -> LoadResult | None:
        """One load; None when there is nothing new. `LoadConflictError` when another job published first."""
        started = self._now_s()
        layout = TopicLayout(self._spec.root, topic)
        sweep(self._publisher, layout, self._spec.staging_retention_s)
        self._send_audit(layout)
        last = last_manifest(self._publisher, layout)
        every = self._plan(topic, last)
        ranges = [r for r in every if r.size]
        if not ranges:
            return None
        job_id, number = self._new_id(), 1 if last is None else last.load + 1
        fault_point("load.planned")
        with Staging(self._publisher, layout, job_id) as staging:
            counts = self._write(topic, staging.path, ranges)
            self._check()
            fault_point("load.written")
            manifest = self._describe(topic, number, job_id, every, counts, staging.path)
            self._finish(staging.path, manifest, counts)
            size = sum(s for name, s in self._publisher.files(staging.path) if _is_data(name))
            fault_point("load.staged")
            self._check()  # raises where the user has given up: from here on the load is visible
            staging.publish(number)
            fault_point("load.published")
        self._send_audit(layout)
        seconds = self._now_s() - started
        return LoadResult(topic, number, manifest.rows, manifest.files, size, tuple(ranges), seconds)

    def _plan(self, topic: str, last: Manifest | None) -> list[OffsetRange]:
        """Of every partition, those without news too (their range is empty)."""
        ends, cluster_id = self._topics.ends(topic), self._topics.cluster_id()
        if last is not None and last.cluster_id != cluster_id:
            raise LakeError(
                f"{self._spec.root}/{topic} was loaded from cluster {last.cluster_id!r}, this is {cluster_id!r}; "
                "give each cluster a lake of its own"
            )
        begin = {} if last is None else last.ends()
        ranges = [self._range(TopicPartition(topic, n), log, begin.get(n)) for n, log in sorted(ends.items())]
        return capped(ranges, self._spec.max_offsets)

    def _range(self, partition: TopicPartition, log: LogEnds, begin: int | None) -> OffsetRange:
        if begin is None:
            return OffsetRange(partition, log.earliest, log.latest)
        if begin > log.latest:
            raise DataLossError(
                f"{partition}: loaded up to offset {begin}, the log ends at {log.latest}: the topic was made anew or "
                "cut; move its directory in the lake away to load it from the start"
            )
        if begin < log.earliest and self._spec.fail_on_data_loss:
            raise DataLossError(
                f"{partition}: loaded up to offset {begin}, the log begins at {log.earliest}: retention deleted what "
                "lies between; fail.on.data.loss: false goes on without it"
            )
        return OffsetRange(partition, begin, log.latest)

    def _write(self, topic: str, path: str, ranges: list[OffsetRange]) -> list[RangeCount]:
        format_ = self._topics.format(topic)
        try:
            with self._progress.watch(self._session, f"load {topic}"):
                rows = decoded(self._topics.read(self._session, ranges), format_)
                write(rows, path, self._spec.files, format_.quarantine)
            with self._progress.watch(self._session, f"count {topic}"):
                has_bad = BAD in self._publisher.names(path)
                return count(self._session, path, self._spec.files, has_bad, self._spec.window_ms, ranges)
        except KlammError:
            raise
        except PySparkException as error:
            raise SparkFailedError(reason_of(error)) from error

    def _describe(
        self, topic: str, number: int, job_id: str, every: list[OffsetRange], counts: list[RangeCount], path: str
    ) -> Manifest:
        files = [name for name, _ in self._publisher.files(path) if _is_data(name)]
        return Manifest(
            topic=topic,
            load=number,
            job_id=job_id,
            cluster_id=self._topics.cluster_id(),
            created_ms=int(self._now_s() * 1000),
            rows=total_rows(counts),
            files=len(files),
            partitions={r.partition.partition: PartitionRange.of(r.start, max(r.start, r.end)) for r in every},
        )

    def _finish(self, path: str, manifest: Manifest, counts: list[RangeCount]) -> None:
        audit = LoadAudit.of(
            self._spec.owner, manifest.topic, manifest.load, manifest.job_id, self._spec.window_ms, counts
        )
        files: Mapping[str, bytes] = {OFFSETS: manifest.to_bytes(), AUDIT: audit.to_bytes(), SUCCESS: b""}
        for name, data in files.items():
            self._publisher.write(f"{path}/{name}", data)

    def _send_audit(self, layout: TopicLayout) -> None:
        """An audit that fails never fails a load (design D7): its counts are in the lake, and sent by a later run."""
        if self._auditor is None:
            return
        try:
            self._auditor.send_missing(layout)
        except Exception as error:
            self._warn(f"{layout.topic}: an audit event is not stored ({error}); the next load sends it")


def _is_data(name: str) -> bool:
    """A file that readers, or those who look into `_bad`, see as data."""
    parts = name.split("/")
    return not parts[-1].startswith(("_", ".")) and parts[0] != "_temporary"
