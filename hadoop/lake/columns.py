"""Merges the columns of loads that were made under different schemas.

The columns are those of the newest schema in its order, then those that only older ones have; fields of nested records
too. Columns that were renamed by an alias are one column (`lineage`). Types are those of the newest schema, widened if
an older type has a larger range; a number that became a timestamp or a date is one. Missing columns are null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Final, cast

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from klamm.core.errors import SchemaError

from .lineage import Chain, is_date, item_chain, sources, time_unit

_MAX_DIGITS: Final = 38

# Avro's promotions: a reader of the right type accepts a writer of the left type.
_PROMOTED: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    IntegerType: (LongType, FloatType, DoubleType),
    LongType: (FloatType, DoubleType),
    FloatType: (DoubleType,),
    StringType: (BinaryType,),
    BinaryType: (StringType,),
}


def merged(schemas: Iterable[StructType], chains: Iterable[Chain] = ()) -> StructType:
    """Returns one schema that covers all of them; the newest comes first. `chains`: of each of them. Raises
    `SchemaError` for a column whose types have no common type."""
    newest, *older = schemas
    _, *of_older = [*chains] or [()]
    for schema, chain in zip_longest(older, of_older, fillvalue=()):
        newest = _merged_struct(newest, cast("StructType", schema), "", chain)
    return newest


def aligned(have: StructType, want: StructType, chain: Chain = ()) -> list[Column]:
    """Selects the columns of `want`, a merged schema, from those of `have`; `chain` is the lineage of `have`."""
    return [column.alias(name) for name, column in _fields(have, want, chain, lambda name: sf.col(quoted(name)))]


def _fields(
    have: StructType, want: StructType, chain: Chain, get: Callable[[str], Column]
) -> Iterator[tuple[str, Column]]:
    mine = {field.name: field.dataType for field in have}
    found = sources(want.names, have.names, chain)
    for field in want:
        source = found.get(field.name)
        if source is None:
            yield field.name, _null(field.dataType)
        else:
            yield field.name, _as(get(source.name), mine[source.name], field.dataType, source.chain)


def quoted(name: str) -> str:
    """Returns a column's name quoted as Spark requires, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _merged_struct(newer: StructType, older: StructType, path: str, chain: Chain) -> StructType:
    before = {field.name: field.dataType for field in older}
    found = sources(newer.names, older.names, chain)
    fields = []
    for f in newer:
        source, kind = found.get(f.name), f.dataType
        if source is not None:
            kind = _merged(kind, before.pop(source.name), path + f.name, source.chain)
        fields.append(StructField(f.name, kind))
    names = {name.lower(): name for name in newer.names}
    for name in before:
        if name.lower() in names:
            raise SchemaError(
                f"column {path}{name} of older loads differs only in case from {path}{names[name.lower()]}, which is "
                "another field; Spark does not distinguish them"
            )
    return StructType([*fields, *(StructField(name, kind) for name, kind in before.items())])


def _merged(newer: DataType, older: DataType, path: str, chain: Chain) -> DataType:
    if isinstance(newer, StructType) and isinstance(older, StructType):
        return _merged_struct(newer, older, f"{path}.", chain)
    if isinstance(newer, ArrayType) and isinstance(older, ArrayType):
        return ArrayType(_merged(newer.elementType, older.elementType, f"{path}[]", item_chain(chain, "array")))
    if isinstance(newer, MapType) and isinstance(older, MapType):
        values = _merged(newer.valueType, older.valueType, f"{path}{{}}", item_chain(chain, "map"))
        return MapType(newer.keyType, values)
    if newer == older or isinstance(newer, _PROMOTED.get(type(older), ())) or _counts(newer, older, chain):
        return newer
    wider = _wider(newer, older)
    if wider is not None:
        return wider
    raise SchemaError(
        f"column {path} is {newer.simpleString()} in newer loads and {older.simpleString()} in older ones; "
        "no type holds both"
    )


def _counts(one: DataType, other: DataType, chain: Chain) -> bool:
    """Returns True if one type is a number that counts the units of the other's logical type, and the unit is known."""
    kinds = {type(one), type(other)}
    if kinds == {TimestampType, LongType}:
        return time_unit(chain) is not None
    return kinds == {DateType, IntegerType} and is_date(chain)


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


def _as(column: Column, have: DataType, want: DataType, chain: Chain) -> Column:
    if have == want:
        return column
    if isinstance(have, StructType) and isinstance(want, StructType):
        fields = [each.alias(name) for name, each in _fields(have, want, chain, column.getField)]
        return sf.when(column.isNotNull(), sf.struct(*fields))
    if isinstance(have, ArrayType) and isinstance(want, ArrayType):
        inner, outer, items = have.elementType, want.elementType, item_chain(chain, "array")
        return sf.transform(column, lambda element: _as(element, inner, outer, items))
    if isinstance(have, MapType) and isinstance(want, MapType):
        inner, outer, items = have.valueType, want.valueType, item_chain(chain, "map")
        return sf.transform_values(column, lambda _, value: _as(value, inner, outer, items)).cast(want)
    if _counts(have, want, chain):
        return _counted(column, have, time_unit(chain))
    return column.cast(want)


def _counted(column: Column, have: DataType, unit: str | None) -> Column:
    """Converts a number to the type of which it counts the units, or back."""
    if isinstance(have, IntegerType):
        return sf.date_from_unix_date(column)
    if isinstance(have, DateType):
        return sf.unix_date(column)
    if isinstance(have, LongType):
        return sf.timestamp_millis(column) if unit == "timestamp-millis" else sf.timestamp_micros(column)
    return sf.unix_millis(column) if unit == "timestamp-millis" else sf.unix_micros(column)


def _null(kind: DataType) -> Column:
    return sf.lit(None).cast(kind)
