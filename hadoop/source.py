"""`klamm`, a Spark data source: topics as DataFrames, in batches and as streams, with the options and columns of
Spark's Kafka source and sink.

    spark.dataSource.register(KlammDataSource)
    spark.read.format("klamm").option("kafka.bootstrap.servers", "…").option("subscribe", "flights").load()

A record without a timestamp, or with one that microseconds since the epoch cannot hold, has a null `timestamp`.

With `onBadRecord` quarantine there are two more columns, null for a record: a batch that cannot be opened is one row,
with the reason in `error`, the offsets [`offset`, `endOffset`) and the batch's bytes in `value`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from klamm.core.errors import ConfigError

from .load.planning.plan import capped, split
from .options import Reading, SourceOptions, parse_options
from .spark.cluster import connect_source, planned
from .spark.columns import source_columns
from .spark.filters import PushedFilters
from .spark.sink import KlammStreamWriter, KlammWriter, sink_options
from .spark.tasks import RangePartition, read_task
from .spark.typed import value_type

FILTER_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class KlammDataSource(DataSource):
    """Options are checked when the DataFrame is made; a batch's offsets are resolved once."""

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType:
        options = parse_options(self.options, Reading.ANY)
        value = None if options.typing is None else value_type(options, options.typing)
        return source_columns(headers=options.headers, quarantine=options.quarantine, value=value)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader. Spark refuses a reader that accepts filters while
        `spark.sql.python.filterPushdown.enabled` is off, which is the default. The reader cannot read the setting, but
        the process that passes filters runs only if it is on.
        """
        kind = FilteringReader if FILTER_WORKER in sys.modules or _main_module() == FILTER_WORKER else KlammReader
        return kind(parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError('klamm sink: a topic cannot be overwritten; use mode("append")')
        return KlammWriter(sink_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002 - as Kafka's
        """Returns the writer. `overwrite` is the output mode complete, whose rows are appended like all others."""
        return KlammStreamWriter(sink_options(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .spark.stream import KlammStreamReader  # PySpark 4.2; the rest needs 4.1

        return KlammStreamReader(parse_options(self.options, Reading.STREAM), schema)


class KlammReader(DataSourceReader):
    """Plans in the driver, reads in the tasks; only the options are pickled."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with connect_source(options) as client:
            ranges = self._filters.narrow(client, planned(client, options))
        tasks = split(capped(ranges, options.limit), options.min_tasks, options.max_offsets_per_task)
        return [RangePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._schema, partition.value)


class FilteringReader(KlammReader):
    """Reads only the records that the query's filters select."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._filters.push(filters)


def _main_module() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)
