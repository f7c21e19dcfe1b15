"""The Arrow type of an Avro type, chosen so that Spark takes it as it is.

- Every column is nullable: Spark reads and writes Parquet like that, and a tombstone is a row of nulls.
- `timestamp-millis/-micros` are `timestamp[us, UTC]`, their `local-` forms without a zone, `date` is a date, `decimal`
  a decimal128; Spark has no column type for a time of day, nanoseconds or a duration: they keep their stored type.
- A union of null and one type is that type. A union of several is a struct `member0`, `member1`, … of which at most
  one is set, as Spark's own Avro reader has it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from klamm.core.errors import SchemaError

from .avrotype import MAX_PRECISION, AvroType

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
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOCAL: Final = pa.timestamp("us")
LOGICAL: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): LOCAL,
    ("long", "local-timestamp-micros"): LOCAL,
}


def is_decimal(avro: AvroType) -> bool:
    """Returns True for a decimal that Arrow can hold; an invalid one is read as its bytes, as Avro requires."""
    return (
        avro.kind in ("bytes", "fixed")
        and avro.logical == "decimal"
        and 0 < avro.precision <= MAX_PRECISION
        and 0 <= avro.scale <= avro.precision
    )


def physical_type(avro: AvroType) -> pa.DataType:
    """Returns the stored type of a primitive, an enum or a fixed."""
    return _PRIMITIVE[avro.kind]


def arrow_type(avro: AvroType) -> pa.DataType:
    """Returns the column's type."""
    if is_decimal(avro):
        return pa.decimal128(avro.precision, avro.scale)
    if avro.kind in _PRIMITIVE:
        return LOGICAL.get((avro.kind, avro.logical), _PRIMITIVE[avro.kind])
    if avro.kind == "array":
        return pa.list_(pa.field("element", arrow_type(avro.inner)))
    if avro.kind == "map":
        return pa.map_(pa.string(), pa.field("value", arrow_type(avro.inner)))
    if avro.kind == "record":
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in avro.fields])
    if avro.kind == "union":
        return _union_type(avro)
    raise SchemaError(f"unknown Avro type {avro.kind!r}")


def _union_type(avro: AvroType) -> pa.DataType:
    values = avro.values
    if not values:
        return pa.null()
    if len(values) == 1:
        return arrow_type(values[0])
    return pa.struct([pa.field(f"member{i}", arrow_type(branch)) for i, branch in enumerate(values)])
