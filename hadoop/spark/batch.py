"""`spark.read.format("klamm")`: the ranges of a batch, planned once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ..load.planning.plan import capped, split
from ..options import SourceOptions
from .cluster import connect_source, planned
from .filters import PushedFilters
from .tasks import read_task


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
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(self._options, self._schema, partition.value)


class FilteringReader(KlammReader):
    """Reads only the records that the query's filters select."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._filters.push(filters)
