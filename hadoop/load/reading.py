"""The work of a load's tasks: reads offset ranges from the brokers and makes the lake's rows of them, in one Python
worker.

With the `klamm` source the records would go from one worker through the JVM to a second one, which decodes them, and
Spark would start three more processes to get the source's schema and its tasks, which a load has already planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from klamm.core.client.reader.range_reader import OffsetRange

from ..options import ReadOptions
from ..spark.ranges import read_range
from .rows import TIMESTAMP, RowFormat, RowMaker

RECORDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", TIMESTAMP),
)
_UNREADABLE = (pa.field("error", pa.string()), pa.field("endOffset", pa.int64()))


class RangeRows:
    """Yields the rows of the ranges whose numbers it receives (column `id`); the function for `mapInArrow`."""

    def __init__(self, options: ReadOptions, ranges: Sequence[OffsetRange], format_: RowFormat) -> None:
        self._options = options
        self._ranges = ranges
        self._format = format_

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        maker = RowMaker(self._format)
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                records = read_records(self._options, self._ranges[number], quarantine=self._format.quarantine)
                yield from map(maker.rows, records)


def read_records(options: ReadOptions, range_: OffsetRange, *, quarantine: bool) -> Iterator[pa.RecordBatch]:
    """Yields the records in the columns of which rows are made."""
    return read_range(options, range_, pa.schema([*RECORDS, *(_UNREADABLE if quarantine else ())]))
