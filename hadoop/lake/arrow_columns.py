"""Merges the columns of loads that were made under different schemas, as Arrow types, and converts rows to the result.

The columns are those of the newest schema in its order, then those that only older ones have; fields of nested records
too. Columns that were renamed by an alias are one column (`lineage`). Types are those of the newest schema, widened if
an older type has a larger range; a number that became a timestamp or a date is one. Missing columns are null. `columns`
converts Spark's rows in the same way; a test compares both on one lake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError

from .lineage import Chain, is_date, item_chain, sources, time_unit

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

# Avro's promotions: a reader of the right type accepts a writer of the left type.
_PROMOTED: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int32(): (pa.int64(), pa.float32(), pa.float64()),
    pa.int64(): (pa.float32(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.binary(),),
    pa.binary(): (pa.string(),),
}
_MAX_DIGITS: Final = 38
_MILLI: Final = 1000


def plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type as every writer's files have it: Spark's and pyarrow's differ in the names of items."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    return kind


def merged(schemas: Sequence[pa.StructType], chains: Sequence[Chain]) -> pa.StructType:
    """Returns one type that covers all of them; the newest comes first. Raises `SchemaError` for a column whose types
    have no common type."""
    newest = schemas[0]
    for schema, chain in zip(schemas[1:], chains[1:], strict=True):
        newest = _merged_struct(newest, schema, "", chain)
    return newest


def aligned(rows: pa.Array, want: pa.StructType, chain: Chain) -> pa.Array:
    """Returns the rows with the columns of `want`, a merged type; `chain` is the lineage of the rows."""
    return _as(rows, rows.type, want, chain)


def _names(kind: pa.StructType) -> list[str]:
    return [field.name for field in kind]


def _merged_struct(newer: pa.StructType, older: pa.StructType, path: str, chain: Chain) -> pa.StructType:
    before = {field.name: field.type for field in older}
    found = sources(_names(newer), _names(older), chain)
    fields = []
    for f in newer:
        source, kind = found.get(f.name), f.type
        if source is not None:
            kind = _merged(kind, before.pop(source.name), path + f.name, source.chain)
        fields.append(pa.field(f.name, kind))
    names = {name.lower(): name for name in _names(newer)}
    for name in before:
        if name.lower() in names:
            raise SchemaError(
                f"column {path}{name} of older loads differs only in case from {path}{names[name.lower()]}, which is "
                "another field; Spark does not distinguish them"
            )
    return pa.struct([*fields, *(pa.field(name, kind) for name, kind in before.items())])


def _merged(newer: pa.DataType, older: pa.DataType, path: str, chain: Chain) -> pa.DataType:
    if pa.types.is_struct(newer) and pa.types.is_struct(older):
        return _merged_struct(newer, older, f"{path}.", chain)
    if pa.types.is_map(newer) and pa.types.is_map(older):
        items = _merged(newer.item_type, older.item_type, f"{path}{{}}", item_chain(chain, "map"))
        return pa.map_(newer.key_type, items)
    if pa.types.is_list(newer) and pa.types.is_list(older):
        items = _merged(newer.value_type, older.value_type, f"{path}[]", item_chain(chain, "array"))
        return pa.list_(pa.field("element", items))
    if newer == older or newer in _PROMOTED.get(older, ()) or _counts(newer, older, chain):
        return newer
    wider = _wider(newer, older)
    if wider is not None:
        return wider
    raise SchemaError(f"column {path} is {newer} in newer loads and {older} in older ones; no type holds both")


def _wider(newer: pa.DataType, older: pa.DataType) -> pa.DataType | None:
    """Returns a type that holds the values of both unchanged; None if there is none. An older type that Avro promotes
    to the newer one is handled separately, because readers have chosen the newer type.
    """
    if pa.types.is_decimal(newer) and pa.types.is_decimal(older):
        scale = max(newer.scale, older.scale)
        digits = max(newer.precision - newer.scale, older.precision - older.scale) + scale
        return pa.decimal128(digits, scale) if digits <= _MAX_DIGITS else None
    if newer == pa.int32() and older == pa.float32():
        return pa.float64()
    if newer == pa.int64() and pa.types.is_floating(older):
        return None
    return older if older in _PROMOTED.get(newer, ()) else None


def _counts(one: pa.DataType, other: pa.DataType, chain: Chain) -> bool:
    """Returns True if one type is a number that counts the units of the other's logical type, and the unit is known."""
    kinds = {one, other}
    if kinds == {_TIMESTAMP, pa.int64()}:
        return time_unit(chain) is not None
    return kinds == {pa.date32(), pa.int32()} and is_date(chain)


def _as(array: pa.Array, have: pa.DataType, want: pa.DataType, chain: Chain) -> pa.Array:
    if have == want:
        return array
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        return _struct(array, have, want, chain)
    if pa.types.is_map(have) and pa.types.is_map(want):
        pairs = array.cast(pa.list_(pa.struct([have.key_field, have.item_field])))
        entries = pairs.flatten()
        items = _as(pc.struct_field(entries, 1), have.item_type, want.item_type, item_chain(chain, "map"))
        keys = pc.struct_field(entries, 0)
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items, type=want, mask=pc.is_null(array))
    if pa.types.is_list(have) and pa.types.is_list(want):
        items = _as(array.flatten(), have.value_type, want.value_type, item_chain(chain, "array"))
        return pa.ListArray.from_arrays(_offsets(array), items, type=want, mask=pc.is_null(array))
    if _counts(have, want, chain):
        return _counted(array, have, want, time_unit(chain))
    return pc.cast(array, want, safe=not pa.types.is_floating(want))


def _struct(array: pa.Array, have: pa.StructType, want: pa.StructType, chain: Chain) -> pa.Array:
    found = sources(_names(want), _names(have), chain)
    columns = []
    for field in want:
        source = found.get(field.name)
        if source is None:
            columns.append(pa.nulls(len(array), field.type))
        else:
            index = have.get_field_index(source.name)
            columns.append(_as(pc.struct_field(array, index), have[index].type, field.type, source.chain))
    return pa.StructArray.from_arrays(columns, fields=list(want), mask=pc.is_null(array))


def _offsets(lists: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _counted(array: pa.Array, have: pa.DataType, want: pa.DataType, unit: str | None) -> pa.Array:
    """Converts a number to the type of which it counts the units, or back: down to the millisecond, before 1970 too."""
    if unit != "timestamp-millis" or pa.types.is_date(have) or pa.types.is_date(want):
        return array.cast(want)
    if have == pa.int64():
        return pc.multiply_checked(array, _MILLI).cast(want)
    micros = array.cast(pa.int64())
    whole = pc.divide(micros, _MILLI)
    return pc.subtract(whole, pc.less(micros, pc.multiply(whole, _MILLI)).cast(pa.int64()))
