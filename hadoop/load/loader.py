"""Builds a load from the settings: session, cluster, lake, audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

from klamm.core.cli.output import say_on
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError, KlammError

from ..avro.jar import with_avro
from ..columnar.job import ColumnarJob
from ..lake.config import LakeConfig
from ..publishing.hdfs import HadoopJvm
from ..publishing.interface import NoLakeError
from ..publishing.schemes import publisher_for
from ..session import SparkSettings, hadoop_jvm, reason_of, start_session, submitted
from ..spark.cluster import connect
from .audit import LoadAuditor
from .group_offsets import GroupOffsets
from .interrupt import Interrupt
from .job import DEFAULT_WINDOW_MS, LoadJob, LoadResult, LoadSpec
from .planning.pace import Pace
from .planning.plan import LoadLimits
from .progress import BarProgress, Progress
from .report import RunReport, TopicReport
from .spark_writer import FileFormat
from .topics import ClusterTopics


class Loader:
    """Loads topics of one sink; a context manager. Spark is left running: its session may be the caller's."""

    def __init__(
        self,
        settings: Settings,
        sink: str,
        console: Console,
        *,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        config = settings.sink(sink).choice.config
        if not isinstance(config, LakeConfig):
            raise ConfigError(f"{settings.source}: sinks.{sink}: `klamm load` fills sinks with `plugin: hadoop` only")
        settings.check_sink(sink)
        self._section = settings.sink(sink)
        group, bad = self._section.group_id, self._section.on_bad_record
        self._sink = sink
        self._where = f"{settings.source}: sinks.{sink}"
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._limits = LoadLimits(config.max_records, config.max_bytes)
        self._first = config.max_offsets_per_task
        self._duration_s = None if config.max_duration_ms is None else config.max_duration_ms / 1000
        self._interrupt = interrupt = Interrupt()
        extra = config.spark_config if submitted() else with_avro(config.spark_config, config.format)
        spark_settings = SparkSettings(
            f"klamm load {sink}", config.spark_master, config.spark_driver_memory, extra, self._where
        )

        def hadoop() -> HadoopJvm:
            with interrupt.starting_jvm():
                return hadoop_jvm(spark_settings)

        publisher = publisher_for(config.path, hadoop)
        self._topics = ClusterTopics(settings, config, quarantine=bad == "quarantine")
        audit = settings.make_audit()
        bootstrap, plugins = self._topics.bootstrap, settings.plugins
        auditor = None
        if audit is not None:
            auditor = LoadAuditor(
                audit, sink, lambda: connect(bootstrap, plugins), publisher, watermarks=config.audit_watermark
            )
        progress = BarProgress(console) if console.is_terminal else Progress()

        def spark() -> SparkSession:
            with interrupt.starting_jvm():
                return start_session(spark_settings)

        def warn(text: str) -> None:
            say_on(console, f"klamm: {text}")

        spec = LoadSpec(
            root=config.path,
            files=FileFormat(config.format, config.partition_by, config.target_file_size),
            owner=sink,
            timezone=config.timezone,
            reset=config.auto_offset_reset,
            max_bad_share=config.max_bad_share,
            staging_retention_s=config.staging_retention_minutes * 60,
            window_ms=audit.window_ms if audit else DEFAULT_WINDOW_MS,
        )
        committer = GroupOffsets(self._topics.client, group) if group else None
        columnar = ColumnarJob(publisher, spec.files, self._topics.tasks, window_ms=spec.window_ms, progress=progress)
        self._job = LoadJob(spark, self._topics, publisher, spec, auditor=auditor, committer=committer,
                            columnar=columnar, progress=progress, warn=warn, check=interrupt.check)  # fmt: skip

    def __enter__(self) -> Loader:
        self._interrupt.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._interrupt.remove()
        self._topics.close()

    def loads(self, topic: str, until_s: float | None = None) -> Iterator[LoadResult]:
        """Yields the loads of one topic in one run, each when it is published; none if there is nothing new.

        Without a time limit there is at most one. `until_s`: the end of the topic's share of the run, if that is not
        the whole run.
        """
        limits = self._limits
        if until_s is None and self._duration_s is not None:
            until_s = self._monotonic_s() + self._duration_s
        pace = None if until_s is None else Pace(until_s, self._first, self._monotonic_s)
        while True:
            fits = None if pace is None else pace.next()
            if pace is not None and fits is None:
                return
            began = self._monotonic_s()
            result = self._job.run(topic, limits if fits is None else limits.records_at_most(fits))
            if result is None:
                return
            yield result
            limits = limits.without(result.offsets, result.log_bytes)
            if pace is None or not result.left or limits.exhausted:
                return
            pace.took(result.offsets, self._monotonic_s() - began)

    def load(self, topic: str, until_s: float | None = None) -> TopicReport:
        """Loads one topic in one run. Errors are in the report; raises `NoLakeError` if no topic can be loaded."""
        started = self._monotonic_s()
        published: list[LoadResult] = []
        error: str | None = None
        try:
            published.extend(self.loads(topic, until_s))
        except NoLakeError:
            raise
        except KlammError as failed:
            error = str(failed)
        except (PySparkException, Py4JError, OSError) as failed:  # Spark's JVM itself, for instance after its exit
            error = reason_of(failed)
        return TopicReport(topic, tuple(published), self._monotonic_s() - started, error)

    def topics(self) -> list[str]:
        """The topics of the sink; for a pattern, those that exist now. Raises `KlammError` if there is none."""
        if self._section.topics_regex is None:
            return list(self._section.topics)
        found = self._topics.matching(self._section.topics_regex)
        if not found:
            raise KlammError(f"sinks.{self._sink}.topics.regex: no topic matches {self._section.topics_regex!r}")
        return found

    def run(self, only: Sequence[str] = (), tell: Callable[[TopicReport], None] = lambda _: None) -> RunReport:
        """Loads one topic after another, all or `only` some; a topic that fails does not prevent the others from
        being loaded.

        `tell` is called after each topic. With a time limit each topic gets an even share of the remaining time, and
        the topic with the oldest last load comes first. Raises `ConfigError` if no lake can exist because its path
        is a file.
        """
        started, before = self._now_s(), self._monotonic_s()
        reports: list[TopicReport] = []
        error = None
        try:
            topics = only or self.topics()
            if self._duration_s is not None:
                topics = sorted(topics, key=self._last_load_ms)
            for index, topic in enumerate(topics):
                reports.append(report := self._in_time(topic, before, len(topics) - index))
                tell(report)
        except NoLakeError as failed:
            raise ConfigError(f"{self._where}.path: {failed}") from failed
        except KlammError as failed:
            error = str(failed)
        return RunReport(self._sink, started, self._monotonic_s() - before, tuple(reports), error)

    def _in_time(self, topic: str, began_s: float, topics_left: int) -> TopicReport:
        if self._duration_s is None:
            return self.load(topic)
        now = self._monotonic_s()
        left_s = began_s + self._duration_s - now
        if left_s <= 0:
            return TopicReport(topic, (), 0.0, postponed=True)
        return self.load(topic, now + left_s / topics_left)

    def _last_load_ms(self, topic: str) -> int:
        try:
            return self._job.last_load_ms(topic)
        except KlammError:  # its own load will report it
            return 0
