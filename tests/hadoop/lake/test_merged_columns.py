"""Columns of older and newer loads as one: a type that holds the values of both as they are, or an error."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from klamm.core.errors import SchemaError
from klamm.hadoop.lake.columns import merged

INT, LONG, FLOAT, DOUBLE = IntegerType(), LongType(), FloatType(), DoubleType()


@pytest.mark.parametrize(
    ("newer", "older", "expected"),
    [
        (LONG, INT, LONG),
        (INT, LONG, LONG),
        (DOUBLE, LONG, DOUBLE),  # as readers of the newer schema have it
        (FLOAT, INT, FLOAT),
        (INT, FLOAT, DOUBLE),
        (INT, DOUBLE, DOUBLE),
        (FLOAT, DOUBLE, DOUBLE),
        (LONG, DOUBLE, None),
        (LONG, FLOAT, None),
        (StringType(), BinaryType(), StringType()),
        (DecimalType(10, 2), DecimalType(6, 4), DecimalType(12, 4)),
        (DecimalType(38, 0), DecimalType(38, 2), None),
        (StringType(), INT, None),
    ],
)
def test_no_value_is_changed(newer: DataType, older: DataType, expected: DataType | None) -> None:
    schemas = [StructType().add("a", kind) for kind in (newer, older)]
    if expected is None:
        with pytest.raises(SchemaError, match=r"column a is .* in newer loads and .*; no type holds both"):
            merged(schemas)
    else:
        assert merged(schemas) == StructType().add("a", expected)
