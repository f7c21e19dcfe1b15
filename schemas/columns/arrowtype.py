"""The Arrow type of an Avro type, chosen so that Spark takes it as it is.

- Every column is nullable: Spark reads and writes Parquet like that, and a tombstone is a row of nulls.
- `timestamp-millis/-micros` are `timestamp[us, UTC]`, their `local-` forms without a zone, `date` is a date, `decimal`
  of up to 38 digits a decimal128; Spark has no column type for a time of day, nanoseconds, a duration or a UUID: they
  keep their stored type, and so do longer decimals.
- A union of null and one type is that type. A union of several is a struct `member0`, `member1`, … of its branches
  without null, as in Spark's own Avro. One member is set; none is set for null.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from klamm.core.errors import SchemaError

from ..avro.model import AvroType

_PRIMITIVE: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
MAX_PRECISION: Final = 38
"""Digits of Arrow's decimal128, and of Spark's."""
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": LOCAL,
    "local-timestamp-micros": LOCAL,
}


def is_decimal(avro: AvroType) -> bool:
    """Returns True for a decimal that Arrow can hold."""
    return avro.logical == "decimal" and avro.precision <= MAX_PRECISION


def arrow_type(avro: AvroType) -> pa.DataType:
    """Returns the column's type."""
    return _type(avro, _column)


def stored_type(avro: AvroType) -> pa.DataType:
    """Returns the type of a column of values as they are stored: logical types are numbers, bytes and texts."""
    return _type(avro, physical_type)


def physical_type(avro: AvroType) -> pa.DataType:
    """Returns the stored type of a primitive, an enum or a fixed."""
    return _PRIMITIVE[avro.kind]


def _column(avro: AvroType) -> pa.DataType:
    if is_decimal(avro):
        return pa.decimal128(avro.precision, avro.scale)
    return _LOGICAL.get(avro.logical, _PRIMITIVE[avro.kind])


def _type(avro: AvroType, leaf: Callable[[AvroType], pa.DataType]) -> pa.DataType:
    if avro.kind in _PRIMITIVE:
        return leaf(avro)
    if avro.kind == "array":
        return pa.list_(pa.field("element", _type(avro.inner, leaf)))
    if avro.kind == "map":
        return pa.map_(pa.string(), pa.field("value", _type(avro.inner, leaf)))
    if avro.kind == "record":
        return pa.struct([pa.field(field.name, _type(field.type, leaf)) for field in avro.fields])
    if avro.kind == "union":
        values = avro.values
        if len(values) < 2:
            return _type(values[0], leaf) if values else pa.null()
        return pa.struct([pa.field(name, _type(branch, leaf)) for name, branch in members(avro)])
    raise SchemaError(f"unknown Avro type {avro.kind!r}")


def members(avro: AvroType) -> list[tuple[str, AvroType]]:
    """Returns the struct's fields of a union of several."""
    return [(f"member{number}", branch) for number, branch in enumerate(avro.values)]
