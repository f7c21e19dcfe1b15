"""Record batches as Arrow columns. Needs pyarrow (the extra `arrow`)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.records.codecs import CodecTable
from klamm.core.records.decode import MAX_DECOMPRESSED, RecordColumns, decode_columns
from klamm.core.records.header import Buffer, iter_headers
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP),
        pa.field("headers", HEADERS, nullable=False),
    ]
)
"""`timestamp` is null where the record's, in ms, is out of the range of microseconds in 64 bits."""

_MOST_MS: Final = (2**63 - 1) // 1000


def decode_batches_arrow(
    buf: Buffer,
    codecs: CodecTable,
    *,
    from_offset: int = 0,
    to_offset: int | None = None,
    max_size: int = MAX_DECOMPRESSED,
    partition: TopicPartition | None = None,
) -> pa.RecordBatch:
    """The records of all whole batches in `buf` with offsets in [from_offset, to_offset), control batches left out.

    Errors as `decode_batch` raises them; `max_size` bounds each batch's records, decompressed.
    """
    joined = RecordColumns([], [], [], [], [])
    for columns in _columns(buf, codecs, from_offset, to_offset, max_size, partition):
        joined.extend(columns)
    return columns_to_arrow(joined)


def _columns(
    buf: Buffer,
    codecs: CodecTable,
    from_offset: int,
    to_offset: int | None,
    max_size: int,
    partition: TopicPartition | None,
) -> Iterator[RecordColumns]:
    for pos, header in iter_headers(buf):
        past = to_offset is not None and header.base_offset >= to_offset
        if header.is_control or past or header.last_offset < from_offset:
            continue
        columns = decode_columns(buf, pos, header, codecs, max_size, partition)
        if header.base_offset < from_offset or (to_offset is not None and header.last_offset >= to_offset):
            columns = _within(columns, from_offset, to_offset)
        yield columns


def _within(columns: RecordColumns, from_offset: int, to_offset: int | None) -> RecordColumns:
    offsets = columns.offsets
    first = sum(offset < from_offset for offset in offsets)
    last = len(offsets) if to_offset is None else sum(offset < to_offset for offset in offsets)
    return columns.part(first, last)


def columns_to_arrow(columns: RecordColumns) -> pa.RecordBatch:
    """One Arrow batch of `SCHEMA`."""
    arrays = [
        pa.array(columns.keys, pa.binary()),
        pa.array(columns.values, pa.binary()),
        pa.array(columns.offsets, pa.int64()),
        _timestamps(columns.timestamps_ms),
        _headers(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _timestamps(stamps: list[int]) -> pa.Array:
    if stamps and not -_MOST_MS <= min(stamps) <= max(stamps) <= _MOST_MS:
        in_range: list[Any] = [stamp if -_MOST_MS <= stamp <= _MOST_MS else None for stamp in stamps]
        return pc.multiply(pa.array(in_range, pa.int64()), 1000).cast(TIMESTAMP)
    return pc.multiply(pa.array(stamps, pa.int64()), 1000).cast(TIMESTAMP)


def _headers(headers: list[Headers]) -> pa.Array:
    ends = accumulate(map(len, headers), initial=0)
    names, values = [], []
    for name, value in chain.from_iterable(headers):
        names.append(name)
        values.append(value)
    items = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=HEADERS)
