"""The stream reader that Spark has: it opens `stream.KlammStreamReader` on the first call that plans.

Spark makes a reader in three kinds of Python processes: one only pickles it, one per query plans, and workers read.
Only the second imports what planning needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from .stream import KlammStreamReader


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process of the driver, reads in the tasks; only the options are pickled."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: KlammStreamReader | None = None

    @property
    def _planner(self) -> KlammStreamReader:
        if self._opened is None:
            from .stream import KlammStreamReader

            self._opened = KlammStreamReader(self._options, self._schema)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._planner.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planner.reportLatestOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._planner.latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return list(self._planner.partitions(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .tasks import read_task

        return read_task(self._options, self._schema, partition.value)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.stop()
            self._opened = None
