"""Record batches as Arrow columns. Needs pyarrow (the extra `arrow`)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from . import native
from .decode import Columns, RecordArea
from .record import Headers

if TYPE_CHECKING:  # the twin of the compiled module, which need not be loaded
    from .fallback import Column

__all__ = ["HEADERS", "SCHEMA", "TIMESTAMP", "ArrowColumns", "arrow_columns", "columns_to_arrow", "scalar"]

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
"""`timestamp` is null if the record's, in ms, is out of the range of microseconds in 64 bits."""

_MOST_MS: Final = (2**63 - 1) // 1000


_INT64_MAX: Final = 2**63 - 1


class ArrowColumns:
    """Records as Arrow columns (`batch`, of `SCHEMA`). The lists of the other columns are made when they are first
    read. `stamps` are the timestamps in ms, including those that are null in `batch`."""

    __slots__ = ("_stamps", "batch", "offsets")

    def __init__(self, batch: pa.RecordBatch, stamps: pa.Array) -> None:
        self.batch = batch
        self._stamps = stamps
        self.offsets: Sequence[int] = _numbers(batch.column("offset"))

    @property
    def timestamps_ms(self) -> Sequence[int]:
        return _numbers(self._stamps)

    @property
    def sizes(self) -> Sequence[int]:
        if not len(self.batch):
            return []
        keys, values = (_offsets(self.batch.column(name)) for name in ("key", "value"))
        return memoryview(native.lengths(keys, values)).cast("q")

    @property
    def keys(self) -> list[bytes | None]:
        return list(self.batch.column("key").to_pylist())

    @property
    def values(self) -> list[bytes | None]:
        return list(self.batch.column("value").to_pylist())

    @property
    def headers(self) -> list[Headers]:
        found = self.batch.column("headers").to_pylist()
        return [tuple((one["key"], one["value"]) for one in headers) for headers in found]

    def part(self, first: int, last: int, /) -> ArrowColumns:
        """Returns records [first, last), without a copy."""
        return ArrowColumns(self.batch[first:last], self._stamps[first:last])


def _offsets(column: pa.Array) -> memoryview[int]:
    """Returns the int32 offset buffer (rows + 1 entries) of a binary column that is not empty."""
    return memoryview(column.buffers()[1]).cast("B")[4 * column.offset : 4 * (column.offset + len(column) + 1)]


def _numbers(column: pa.Array) -> Sequence[int]:
    """Returns an int64 column without nulls as a read-only view of its memory."""
    raw = memoryview(column.buffers()[1]).toreadonly().cast("B")[8 * column.offset : 8 * (column.offset + len(column))]
    return raw.cast("q")


def arrow_columns(areas: list[RecordArea], from_offset: int = 0, to_offset: int | None = None) -> ArrowColumns:
    """Returns the records with offsets in [from_offset, to_offset). Raises `CorruptRecordError`, which names a batch by
    its base offset.
    """
    given = [(area.data, 0, len(area.data), *area[1:]) for area in areas]
    last = _INT64_MAX if to_offset is None else to_offset
    rows, keys, values, offsets, stamps, ends, names, items = native.columns(given, from_offset, last)
    times = _array(pa.int64(), rows, stamps)
    pairs = pa.StructArray.from_arrays(
        [_binary(pa.string(), len(names[1]) // 4 - 1, names), _binary(pa.binary(), len(items[1]) // 4 - 1, items)],
        fields=list(HEADERS.value_type),
    )
    headers = pa.ListArray.from_arrays(_array(pa.int32(), rows + 1, ends), pairs, type=HEADERS)
    columns = [
        _binary(pa.binary(), rows, keys),
        _binary(pa.binary(), rows, values),
        _array(pa.int64(), rows, offsets),
        _timestamps(times),
        headers,
    ]
    return ArrowColumns(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), times)


def _array(kind: pa.DataType, rows: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)])


def _binary(kind: pa.DataType, rows: int, column: Column) -> pa.Array:
    bitmap, offsets, data = column
    buffers = [None if bitmap is None else pa.py_buffer(bitmap), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, rows, buffers)


def columns_to_arrow(columns: Columns) -> pa.RecordBatch:
    """Returns one Arrow batch of `SCHEMA`."""
    if isinstance(columns, ArrowColumns):
        return columns.batch
    arrays = [
        pa.array(columns.keys, pa.binary()),
        pa.array(columns.values, pa.binary()),
        pa.array(columns.offsets, pa.int64()),
        _timestamps(pa.array(columns.timestamps_ms, pa.int64())),
        _headers(columns.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _timestamps(stamps: pa.Array) -> pa.Array:
    bounds = pc.min_max(stamps)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    if len(stamps) and not -_MOST_MS <= least <= most <= _MOST_MS:
        fits = pc.and_(pc.greater_equal(stamps, -_MOST_MS), pc.less_equal(stamps, _MOST_MS))
        stamps = pc.if_else(fits, stamps, None)
    return pc.multiply(stamps, scalar(1000, pa.int64())).view(TIMESTAMP)


def scalar(value: str | int | None, kind: pa.DataType) -> pa.Scalar:
    """Returns what `pa.scalar` returns, for strings and integers. `pa.scalar` imports pandas where it is installed,
    which costs each of Spark's Python workers 0.3 s of processor time.
    """
    if value is None:
        return pa.nulls(1, kind)[0]
    if isinstance(value, str):
        data = value.encode()
        ends = (0).to_bytes(4, sys.byteorder) + len(data).to_bytes(4, sys.byteorder)
        return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])[0]
    number = value.to_bytes(kind.bit_width // 8, sys.byteorder, signed=True)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(number)])[0]


def _headers(headers: Sequence[Headers]) -> pa.Array:
    ends = accumulate(map(len, headers), initial=0)
    names, values = [], []
    for name, value in chain.from_iterable(headers):
        names.append(name)
        values.append(value)
    items = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), pa.array(values, pa.binary())], fields=list(HEADERS.value_type)
    )
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, type=HEADERS)
