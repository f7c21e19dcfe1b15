"""Converts the batches read of a partition to the columns of Spark's Kafka source (`columns`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.client.reader.batch_decoder import ReadBatch
from klamm.core.records.arrow import columns_to_arrow, scalar
from klamm.core.records.partition import TopicPartition

MAX_ROWS: Final = 131_072
"""The most rows of one Arrow batch that is passed to Spark."""


Values = Callable[[pa.RecordBatch, pa.DataType], pa.Array]
"""Converts the values of a batch to a type."""


def spark_batches(
    batches: Iterator[ReadBatch], partition: TopicPartition, schema: pa.Schema, values: Values | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields batches with the columns of `schema`, `source_columns` in Arrow; without `values` the values stay
    bytes.
    """
    for read in batches:
        found = _columns(read, partition, schema, values)
        for first in range(0, found.num_rows, MAX_ROWS):
            yield found.slice(first, MAX_ROWS)


def _columns(read: ReadBatch, partition: TopicPartition, schema: pa.Schema, values: Values | None) -> pa.RecordBatch:
    batch = columns_to_arrow(read.columns)
    rows = batch.num_rows
    made = {
        "topic": lambda kind: _repeated(partition.topic, kind, rows),
        "partition": lambda kind: _repeated(partition.partition, kind, rows),
        "timestamp": lambda kind: _since_1970(batch.column("timestamp"), kind),
        "timestampType": lambda kind: _repeated(int(read.log_append_time), kind, rows),
        "headers": lambda kind: _headers(batch.column("headers"), kind),
        "error": lambda kind: _repeated(read.unreadable.reason if read.unreadable else None, kind, rows),
        "endOffset": lambda kind: _repeated(read.unreadable.end if read.unreadable else None, kind, rows),
    }
    if values is not None:
        made["value"] = lambda kind: values(batch, kind)
    columns = [
        made[field.name](field.type) if field.name in made else batch.column(field.name)  # key, value, offset
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _repeated(value: str | int | None, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(scalar(value, kind), rows)


def _since_1970(stamps: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the timestamps, with null for a record without one, which has -1; Kafka has no times before 1970."""
    numbers = stamps.view(pa.int64())
    if rows_below(numbers, 0):
        numbers = pc.if_else(pc.less(numbers, 0), pa.scalar(None, pa.int64()), numbers)
    return numbers.view(kind)


def rows_below(numbers: pa.Array, bound: int) -> bool:
    least = pc.min(numbers).as_py()
    return least is not None and least < bound


def _headers(headers: pa.ListArray, kind: pa.ListType) -> pa.Array:
    """Returns the headers with Spark's names for the parts of the type; a record without headers has an empty list."""
    pairs = headers.flatten()
    fields = [pairs.field(0), pairs.field(1)]
    structs = pa.StructArray.from_arrays(fields, fields=list(kind.value_type))
    offsets = headers.offsets
    first = offsets[0].as_py() if len(offsets) else 0
    return pa.ListArray.from_arrays(pc.subtract(offsets, first) if first else offsets, structs, type=kind)
