"""`arrow_columns` for Spark: selects the columns of loads that were made under different schemas as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DateType, IntegerType, LongType, MapType, StructType, TimestampType

from . import arrow_columns
from .lineage import Chain, is_date, item_chain, sources, time_unit


def merged(schemas: Iterable[StructType], chains: Iterable[Chain] = ()) -> StructType:
    """Returns one schema that covers all of them, by the rules of `arrow_columns`; the newest comes first. `chains`: of
    each of them. Raises `SchemaError` for a column whose types have no common type."""
    kinds = [pa.struct(list(to_arrow_schema(schema, timezone="UTC"))) for schema in schemas]
    found = arrow_columns.merged(kinds, [*chains] or [()] * len(kinds))
    return from_arrow_schema(pa.schema(list(found)))


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
            yield field.name, sf.lit(None).cast(field.dataType)
        else:
            yield field.name, _as(get(source.name), mine[source.name], field.dataType, source.chain)


def quoted(name: str) -> str:
    """Returns a column's name quoted as Spark requires, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _counts(one: DataType, other: DataType, chain: Chain) -> bool:
    """Returns True if one type is a number that counts the units of the other's logical type, and the unit is known."""
    kinds = {type(one), type(other)}
    if kinds == {TimestampType, LongType}:
        return time_unit(chain) is not None
    return kinds == {DateType, IntegerType} and is_date(chain)


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
