"""The source of a load: a cluster, its topics, and the schemas that their values were written with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from klamm.core.client.reader.range_reader import OffsetRange
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError, SchemaError
from klamm.core.interfaces.envelope import HeaderEnvelope
from klamm.core.interfaces.serde import SerdeContext
from klamm.core.records.header import BatchHeader
from klamm.core.records.isolation import IsolationLevel
from klamm.core.records.partition import TopicPartition
from klamm.schemas.options import AvroOptions
from klamm.schemas.registry.registry import SchemaRegistry, Writers, open_registry
from klamm.schemas.serdes.avro import AvroSerde

from ..columnar.job import ReadTasks
from ..lake.config import LakeConfig
from ..lake.local_time import micros
from ..options import ReadOptions
from ..spark.cluster import Ends, connect
from .job import LogEnds
from .planning.cluster_history import ClusterHistory
from .planning.plan import Densities, split
from .reading import RangeRows
from .rows import RowFormat

AVRO: Final = "avro"
_SAMPLES: Final = 8
"""The number of places of a range at which the size of batches is sampled."""


class ClusterTopics(ClusterHistory):
    """`job.Topics` on a cluster; owns its client, `close` when done. `quarantine`: unreadable records are set aside."""

    def __init__(self, settings: Settings, config: LakeConfig, *, quarantine: bool) -> None:
        self._settings = settings
        self._config = config
        self._quarantine = quarantine
        self.bootstrap = settings.consumer.bootstrap_servers
        super().__init__(connect(self.bootstrap, settings.plugins))

    def close(self) -> None:
        self.client.close()

    def cluster_id(self) -> str:
        return self.client.metadata([]).cluster_id or ""

    def matching(self, pattern: str) -> list[str]:
        """Returns the topics whose whole name matches, sorted, without internal ones (which begin with _)."""
        wanted = re.compile(pattern)
        names = self.client.metadata().topics
        return sorted(name for name in names if not name.startswith("_") and wanted.fullmatch(name))

    def ends(self, topic: str) -> dict[int, LogEnds]:
        partitions = self.client.partitions(topic)
        ends = Ends.of(self.client, partitions, IsolationLevel.READ_COMMITTED)
        return {tp.partition: LogEnds(ends.earliest[tp], ends.latest[tp]) for tp in partitions}

    def densities(self, ranges: Sequence[OffsetRange]) -> Densities:
        found: dict[TopicPartition, list[float | None]] = {r.partition: [] for r in ranges if r.size}
        for place in range(_SAMPLES):
            at = {r.partition: r.start + r.size * place // _SAMPLES for r in ranges if r.size}
            for tp, sample in self.headers_at(at).items():
                found[tp].append(_density(sample))
        return found

    def format(self, topic: str) -> RowFormat:
        reader, writers = self._schemas(topic)
        said = self._settings.topics.get(topic)
        return RowFormat(
            topic=topic,
            partition_by=self._config.partition_by,
            reader=reader,
            writers=writers,
            envelope=said.envelope if said else "",
            plugins=self._settings.plugins,
            min_us=micros(self._config.timestamp_min),
            max_us=micros(self._config.timestamp_max),
            quarantine=self._quarantine,
            timezone=self._config.timezone,
        )

    def _schemas(self, topic: str) -> tuple[str | None, Writers]:
        """Returns the schema of the lake's columns (None if the values are bytes), and all of the cluster for this
        topic. They are read after the ranges were planned, so that their writers' schemas are registered.
        """
        serde = self._settings.serde_name(topic)
        if serde is None:
            return None, {}
        if serde != AVRO:
            raise ConfigError(f"topics.{topic}.serde: a load reads avro, or raw bytes without a serde; not {serde}")
        said = self._settings.topic_format(topic)
        if isinstance(said.envelope, HeaderEnvelope):
            raise ConfigError(
                f"topics.{topic}.envelope: a load reads the schema's id in values; {said.envelope.name} has it in the "
                f"header {said.envelope.header}"
            )
        context = SerdeContext(self.bootstrap, self._settings.make_coordination, self._settings.topic_format)
        options = AvroOptions.model_validate(dict(said.options))
        registry = open_registry(options, lambda: self.client, context.coordination)
        subject = AvroSerde(options, context, registry).subject(topic)
        return said.schema or _latest(topic, subject, registry), registry.writers(subject)

    def tasks(self, ranges: list[OffsetRange]) -> ReadTasks:
        options = ReadOptions(
            self.bootstrap, self._settings.plugins, self._config.auto_offset_reset == "fail", self._quarantine
        )
        return ReadTasks(options, split(ranges, max_offsets=self._config.max_offsets_per_task))

    def rows(self, session: SparkSession, ranges: list[OffsetRange], format_: RowFormat) -> DataFrame:
        tasks = self.tasks(ranges)
        numbers = session.range(0, len(tasks.ranges), 1, len(tasks.ranges))
        work = RangeRows(tasks.options, tasks.ranges, format_)
        return numbers.mapInArrow(work, from_arrow_schema(format_.schema()))


def _density(headers: Sequence[BatchHeader]) -> float | None:
    if not headers:
        return None
    return sum(h.size for h in headers) / (headers[-1].next_offset - headers[0].base_offset)


def _latest(topic: str, subject: str, registry: SchemaRegistry) -> str:
    for version in registry.newest_first(subject):
        try:
            return registry.read(version).text
        except SchemaError as error:
            raise SchemaError(
                f"topic {topic}: {error}; name a schema that can be read in topics.{topic}.schema"
            ) from error
    raise SchemaError(f"topic {topic}: no schema is registered as {subject}; name its file in topics.{topic}.schema")
