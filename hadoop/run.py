"""The parts of a load put together from the settings: session, cluster, lake, audit."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from pyspark.sql import SparkSession
from rich.console import Console

from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError
from klamm.hadoop.audit import LoadAuditor
from klamm.hadoop.interrupt import Interrupt
from klamm.hadoop.job import DEFAULT_WINDOW_MS, LoadJob, LoadResult, LoadSpec
from klamm.hadoop.plan import OffsetRange
from klamm.hadoop.progress import BarProgress, Progress
from klamm.hadoop.publishing.hdfs import HadoopJvm
from klamm.hadoop.publishing.schemes import publisher_for
from klamm.hadoop.session import SparkSettings, hadoop_jvm, start_session
from klamm.hadoop.source import connect
from klamm.hadoop.staged import FileFormat
from klamm.hadoop.topics import ClusterTopics
from klamm.plugins.sinks.hadoop import HadoopSinkConfig


class Loader:
    """Loads topics of one sink; a context manager. Spark is left running: its session may be the caller's."""

    def __init__(self, settings: Settings, sink: str, console: Console) -> None:
        config = settings.sink(sink).choice.config
        if not isinstance(config, HadoopSinkConfig):
            raise ConfigError(f"{settings.source}: sinks.{sink}: `klamm load` fills sinks with `plugin: hadoop` only")
        settings.check_sink(sink)
        bad = settings.sink(sink).on_bad_record
        self._interrupt = interrupt = Interrupt()
        spark_settings = SparkSettings(
            f"klamm load {sink}", config.spark_master, config.spark_driver_memory, config.spark_config
        )

        def hadoop() -> HadoopJvm:
            with interrupt.deferred():
                return hadoop_jvm(spark_settings)

        publisher = publisher_for(config.path, hadoop)
        self._topics = ClusterTopics(settings, config, quarantine=bad == "quarantine")
        audit = settings.make_audit()
        bootstrap, plugins = self._topics.bootstrap, settings.plugins
        auditor = LoadAuditor(audit, sink, lambda: connect(bootstrap, plugins), publisher) if audit else None
        progress = BarProgress(console) if console.is_terminal else Progress()

        def spark() -> SparkSession:
            with interrupt.deferred():
                return start_session(spark_settings)

        def warn(text: str) -> None:
            console.print(f"klamm: {text}", highlight=False, markup=False, soft_wrap=True)

        spec = _spec(sink, config, audit.window_ms if audit else DEFAULT_WINDOW_MS)
        self._job = LoadJob(spark, self._topics, publisher, spec, auditor=auditor, progress=progress, warn=warn,
                            check=interrupt.check)  # fmt: skip

    def __enter__(self) -> Loader:
        self._interrupt.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._interrupt.remove()
        self._topics.close()

    def load(self, topic: str) -> str:
        """One load; its line."""
        result = self._job.run(topic)
        return f"load topic={topic} rows=0: nothing new" if result is None else line(result)


def line(result: LoadResult) -> str:
    """`load topic=flights load=3 rows=… files=… offsets=0:10-20,1:5-9 …`."""
    offsets = _spans(result.ranges)
    lost = f" lost={_spans(result.lost)}" if result.lost else ""
    return (
        f"load topic={result.topic} load={result.load} rows={result.rows} files={result.files} "
        f"bytes={result.bytes} offsets={offsets}{lost} seconds={result.seconds:.1f}"
    )


def _spans(ranges: Iterable[OffsetRange]) -> str:
    return ",".join(f"{r.partition.partition}:{r.start}-{r.end}" for r in ranges)


def _spec(sink: str, config: HadoopSinkConfig, window_ms: int) -> LoadSpec:
    return LoadSpec(
        root=config.path,
        files=FileFormat(config.format, config.partition_by, config.target_file_size),
        owner=sink,
        max_offsets=config.max_offsets_per_load,
        fail_on_data_loss=config.fail_on_data_loss,
        from_earliest=config.starting_offsets == "earliest",
        staging_retention_s=config.staging_retention_minutes * 60,
        window_ms=window_ms,
    )
