"""Merges the columns of loads that were made under different schemas.

The columns are those of the newest schema in its order, then those that only older ones have; fields of nested records
too. Types are those of the newest schema, widened if an older type has a larger range. Missing columns are null.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from klamm.core.errors import SchemaError

_MAX_DIGITS: Final = 38

# Avro's promotions: a reader of the right type accepts a writer of the left type.
_PROMOTED: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    IntegerType: (LongType, FloatType, DoubleType),
    LongType: (FloatType, DoubleType),
    FloatType: (DoubleType,),
    StringType: (BinaryType,),
    BinaryType: (StringType,),
}


def merged(schemas: Iterable[StructType]) -> StructType:
    """Returns one schema that covers all of them; the newest comes first. Raises `SchemaError` for a column whose types
    have no common type."""
    return reduce(lambda newer, older: _merged_struct(newer, older, ""), schemas)


def aligned(have: StructType, want: StructType) -> list[Column]:
    """Selects the columns of `want`, a merged schema, from those of `have`."""
    mine = {field.name: field.dataType for field in have}
    return [
        (_as(sf.col(quoted(f.name)), mine[f.name], f.dataType) if f.name in mine else _null(f.dataType)).alias(f.name)
        for f in want
    ]


def quoted(name: str) -> str:
    """Returns a column's name quoted as Spark requires, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _merged_struct(newer: StructType, older: StructType, path: str) -> StructType:
    before = {field.name: field.dataType for field in older}
    fields = [
        StructField(f.name, _merged(f.dataType, before.pop(f.name), path + f.name) if f.name in before else f.dataType)
        for f in newer
    ]
    return StructType([*fields, *(StructField(name, kind) for name, kind in before.items())])


def _merged(newer: DataType, older: DataType, path: str) -> DataType:
    if isinstance(newer, StructType) and isinstance(older, StructType):
        return _merged_struct(newer, older, f"{path}.")
    if isinstance(newer, ArrayType) and isinstance(older, ArrayType):
        return ArrayType(_merged(newer.elementType, older.elementType, f"{path}[]"))
    if isinstance(newer, MapType) and isinstance(older, MapType):
        values = _merged(newer.valueType, older.valueType, f"{path}{{}}")
        return MapType(_merged(newer.keyType, older.keyType, f"{path}{{}}"), values)
    if newer == older or isinstance(newer, _PROMOTED.get(type(older), ())):
        return newer
    wider = _wider(newer, older)
    if wider is not None:
        return wider
    raise SchemaError(
        f"column {path} is {newer.simpleString()} in newer loads and {older.simpleString()} in older ones; "
        "no type holds both"
    )


def _wider(newer: DataType, older: DataType) -> DataType | None:
    """Returns a type that holds the values of both unchanged; None if there is none. An older type that Avro promotes
    to the newer one is handled separately, because readers have chosen the newer type.
    """
    if isinstance(newer, DecimalType) and isinstance(older, DecimalType):
        scale = max(newer.scale, older.scale)
        digits = max(newer.precision - newer.scale, older.precision - older.scale) + scale
        return DecimalType(digits, scale) if digits <= _MAX_DIGITS else None
    if isinstance(newer, IntegerType) and isinstance(older, FloatType):
        return DoubleType()
    if isinstance(newer, LongType) and isinstance(older, FloatType | DoubleType):
        return None
    return older if isinstance(older, _PROMOTED.get(type(newer), ())) else None


def _as(column: Column, have: DataType, want: DataType) -> Column:
    if have == want:
        return column
    if isinstance(have, StructType) and isinstance(want, StructType):
        mine = {field.name: field.dataType for field in have}
        fields = [
            (_as(column.getField(f.name), mine[f.name], f.dataType) if f.name in mine else _null(f.dataType)).alias(
                f.name
            )
            for f in want
        ]
        return sf.when(column.isNotNull(), sf.struct(*fields))
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        inner, outer = have.elementType, want.elementType
        return sf.transform(column, lambda element: _as(element, inner, outer))
    if isinstance(have, MapType) and isinstance(want, MapType):
        inner, outer = have.valueType, want.valueType
        return sf.transform_values(column, lambda _, value: _as(value, inner, outer)).cast(want)
    return column.cast(want)


def _null(kind: DataType) -> Column:
    return sf.lit(None).cast(kind)
