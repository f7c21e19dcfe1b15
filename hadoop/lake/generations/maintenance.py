"""Builds `klamm lake compact` and `klamm lake gc` from a lake's settings.

Both write through a publisher: on `file:` with system calls, on `hdfs:` with Hadoop's client in Spark's JVM. `gc` on
`file:` starts no JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final

from rich.console import Console

from klamm.core.extras import importing

from ...load.interrupt import Interrupt
from ...publishing.interface import Publisher
from ...publishing.schemes import publisher_for
from ..config import LakeConfig
from ..layout import TopicLayout
from .garbage import Item, collect, plan

if TYPE_CHECKING:
    from ...publishing.hdfs import HadoopJvm
    from ...session import SparkSettings
    from .compact import CompactJob, CompactResult

_SPARK: Final = "klamm[spark]"


class Maintenance:
    """Compacts and collects the garbage of one lake; a context manager. Spark is left running."""

    def __init__(self, config: LakeConfig, console: Console) -> None:
        self._config = config
        self._console = console
        self._interrupt = Interrupt()
        self.publisher: Publisher = publisher_for(config.path, self._hadoop)
        self._job: CompactJob | None = None

    def __enter__(self) -> Maintenance:
        self._interrupt.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._interrupt.remove()

    def compact(self, topic: str, target_size: int | None) -> CompactResult | None:
        """Compacts a topic as `CompactJob.run` does. `target_size` None: the configured size."""
        if self._job is None:
            self._job = self._make_job(self._config.target_file_size if target_size is None else target_size)
        return self._job.run(topic)

    def collect(self, topic: str, older_than_s: float, dry_run: bool) -> list[Item]:
        """Returns the findings of `klamm lake gc`, and removes them unless it is a dry run."""
        act: Callable[[Publisher, TopicLayout, float, float], list[Item]] = plan if dry_run else collect
        return act(self.publisher, TopicLayout(self._config.path, topic), older_than_s, self._staging_retention_s)

    @property
    def _staging_retention_s(self) -> float:
        return self._config.staging_retention_minutes * 60

    def _make_job(self, target_size: int) -> CompactJob:
        with importing("klamm lake compact", _SPARK):
            from pyspark.sql import SparkSession

            from ...load.progress import BarProgress, Progress
            from ...session import start_session
            from .compact import CompactJob, CompactSpec

        def spark() -> SparkSession:
            with self._interrupt.starting_jvm():
                return start_session(self._spark_settings())

        spec = CompactSpec(self._config.path, target_size, self._staging_retention_s)
        progress = BarProgress(self._console) if self._console.is_terminal else Progress()
        return CompactJob(spark, self.publisher, spec, progress=progress, check=self._interrupt.check)

    def _hadoop(self) -> HadoopJvm:
        with importing("a lake on hdfs:", _SPARK):
            from ...session import hadoop_jvm

        with self._interrupt.starting_jvm():
            return hadoop_jvm(self._spark_settings())

    def _spark_settings(self) -> SparkSettings:
        from ...avro.jar import with_avro
        from ...session import SparkSettings

        config = self._config
        extra = with_avro(config.spark_config, config.format)
        return SparkSettings("klamm lake", config.spark_master, config.spark_driver_memory, extra)
