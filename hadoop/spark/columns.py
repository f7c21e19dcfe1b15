"""The columns of Spark's Kafka source.

Kept apart from `arrow`, which makes the columns: Spark starts a Python process only to ask for them, and Arrow's
imports cost it processor time.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_PAIR: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def source_columns(*, headers: bool, quarantine: bool, value: DataType | None = None) -> StructType:
    """Returns the columns of Spark's Kafka source; `value` is the type of the values if they are not bytes."""
    columns = StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", value or BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
        ]
    )
    if headers:
        columns.add("headers", ArrayType(_PAIR))
    if quarantine:
        columns.add("error", StringType()).add("endOffset", LongType())
    return columns
