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
from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from klamm.core.errors import ConfigError

from .options import Reading, parse_options
from .spark.columns import source_columns

FILTER_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class KlammDataSource(DataSource):
    """The data source. Options are checked when the DataFrame is made; a batch's offsets are resolved once.

    Spark starts a Python process for most of these calls, and a worker for each core that runs tasks. Each imports
    this module, so it imports only what every call needs.
    """

    @classmethod
    def name(cls) -> str:
        return "klamm"

    def schema(self) -> StructType:
        options = parse_options(self.options, Reading.ANY)
        value = None
        if options.typing is not None:
            from .spark.typed import value_type

            value = value_type(options, options.typing)
        return source_columns(headers=options.headers, quarantine=options.quarantine, value=value)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader. Spark refuses a reader that accepts filters while
        `spark.sql.python.filterPushdown.enabled` is off, which is the default. The reader cannot read the setting, but
        the process that passes filters runs only if it is on.
        """
        from .spark.batch import FilteringReader, KlammReader

        kind = FilteringReader if FILTER_WORKER in sys.modules or _main_module() == FILTER_WORKER else KlammReader
        return kind(parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise ConfigError('klamm sink: a topic cannot be overwritten; use mode("append")')
        from .spark.sink import KlammWriter, sink_options

        return KlammWriter(sink_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002 - as Kafka's
        """Returns the writer. `overwrite` is the output mode complete, whose rows are appended like all others."""
        from .spark.sink import KlammStreamWriter, sink_options

        return KlammStreamWriter(sink_options(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .spark.stream_reader import StreamReader  # PySpark 4.2; the rest needs 4.1

        return StreamReader(parse_options(self.options, Reading.STREAM), schema)


def _main_module() -> str:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)
