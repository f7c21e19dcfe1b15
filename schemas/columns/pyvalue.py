"""Converts rows of Arrow columns to the Python values that the serializer of single values takes.

The struct of a union of several (`arrowtype`) becomes (branch name, value), so that each value is written to the branch
that is set. A struct is never taken for a map.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..avro.logical import misfit, reader_of
from ..avro.model import AvroType, describe, under
from .apply import map_entries
from .arrowtype import members

_UNITS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}


def python_values(array: pa.Array, avro: AvroType, at: str = "") -> list[Any]:
    """Returns a value for each row. Raises `SchemaError` for a column whose type is no form of `avro`, and for a row
    with none or several members of its union; `at` is the field's path.
    """
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if avro.kind == "union":
        if len(avro.values) > 1 and pa.types.is_struct(kind):
            return _branches(array, avro, at)
        if len(avro.values) == 1:
            return python_values(array, avro.values[0], at)
    elif avro.kind == "record" and pa.types.is_struct(kind):
        return _records(array, avro, at)
    elif avro.kind == "map":
        if pa.types.is_struct(kind):
            raise misfit(at, f"{kind} is no map; cast the column to map<string, …>")
        if pa.types.is_map(kind):
            return _maps(array, avro, at)
    elif avro.kind == "array" and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _lists(array, python_values(array.flatten(), avro.inner, under(at, "[]")))
    elif pa.types.is_date32(kind):
        return _dates(array)
    elif pa.types.is_timestamp(kind):
        return _times(array, avro)
    elif pa.types.is_integer(kind):
        return _numbers(array, avro)
    try:
        return list(array.to_pylist(maps_as_pydicts="strict"))
    except KeyError as error:
        raise misfit(at, "a key occurs twice in a map") from error
    except (ValueError, OverflowError) as error:
        raise misfit(at, f"a value of {kind} that Python cannot hold: {error}") from error


def _branches(array: pa.StructArray, union: AvroType, at: str) -> list[Any]:
    names = [name for name, _ in members(union)]
    if sorted(field.name for field in array.type) != sorted(names):
        form = ", ".join(f"{name}: {describe(branch)}" for name, branch in members(union))
        raise misfit(at, f"{array.type} is no {describe(union)}, whose column is struct<{form}>")
    valid = pc.is_valid(array)
    found: list[Any] = [None] * len(array)
    count = [0] * len(array)
    for name, branch in members(union):
        column = array.field(name)
        there = pc.and_(valid, pc.is_valid(column))
        rows = pc.indices_nonzero(there)
        for row, value in zip(
            rows.to_pylist(), python_values(column.filter(there), branch, under(at, name)), strict=True
        ):
            found[row] = (branch.branch_name, value)
            count[row] += 1
    if max(count, default=0) > 1:
        set_ = [name for name in names if array.field(name)[count.index(max(count))].is_valid]
        raise misfit(at, f"{' and '.join(set_)} are set; of a union's members one is")
    if 0 in count and not union.optional:
        raise misfit(at, f"no member of the union is set, and {describe(union)} has no null")
    return found


def _records(array: pa.StructArray, record: AvroType, at: str) -> list[Any]:
    types = {field.name: field.type for field in record.fields}
    names = [field.name for field in array.type]
    rows = [i for i, ok in enumerate(pc.is_valid(array).to_pylist()) if ok]
    live = array.filter(pc.is_valid(array)) if array.null_count else array
    columns = [
        python_values(column, types[name], under(at, name)) if name in types else column.to_pylist()
        for name, column in zip(names, live.flatten(), strict=True)
    ]
    found: list[Any] = [None] * len(array)
    for number, row in enumerate(rows):
        found[row] = {name: column[number] for name, column in zip(names, columns, strict=True)}
    return found


def _lists(array: pa.Array, items: list[Any]) -> list[Any]:
    lengths = pc.list_value_length(array).to_pylist()
    found: list[Any] = []
    first = 0
    for length in lengths:
        found.append(None if length is None else items[first : first + length])
        first += length or 0
    return found


def _maps(array: pa.MapArray, avro: AvroType, at: str) -> list[Any]:
    offsets, keys, items = map_entries(array)
    entries = list(zip(keys.to_pylist(), python_values(items, avro.inner, under(at, "{}")), strict=True))
    ends, valid = offsets.to_pylist(), pc.is_valid(array).to_pylist()
    found: list[Any] = []
    for row, ok in enumerate(valid):
        first, end = ends[row], ends[row + 1]
        made = dict(entries[first:end]) if ok else None
        if made is not None and len(made) < end - first:
            raise misfit(at, "a key occurs twice in a map")
        found.append(made)
    return found


def _numbers(array: pa.Array, avro: AvroType) -> list[Any]:
    """Returns the numbers; where the type is a date or a time, what is stored as them."""
    convert = reader_of(avro) if avro.kind in ("int", "long") else None
    found = array.to_pylist()
    return found if convert is None else [None if one is None else convert(one) for one in found]


def _dates(array: pa.Array) -> list[Any]:
    """Returns dates; those that Python lacks as days since 1970, which the serializer refuses."""
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError):
        return _each(array, array.cast(pa.int32()).to_pylist())


def _each(array: pa.Array, numbers: list[int | None]) -> list[Any]:
    """Returns Python's objects; the row's number where Python has none."""
    found: list[Any] = []
    for one, number in zip(array, numbers, strict=True):
        try:
            found.append(one.as_py())
        except (ValueError, OverflowError):
            found.append(number)
    return found


def _times(array: pa.Array, avro: AvroType) -> list[Any]:
    """Returns datetimes, rounded down to microseconds; those that Python lacks as numbers of the type's unit, which the
    serializer refuses. Nanoseconds are numbers if the type has them too."""
    if array.type.unit == "ns":
        local = avro.logical.startswith("local-")
        if avro.logical.endswith("-nanos") and local == (array.type.tz is None):
            return list(array.cast(pa.int64()).to_pylist())
        array = pc.floor_temporal(array, unit="microsecond").cast(pa.timestamp("us", array.type.tz))
    try:
        return list(array.to_pylist())
    except (ValueError, OverflowError):
        micros = [None if one is None else one * _UNITS[array.type.unit] for one in array.cast(pa.int64()).to_pylist()]
        millis = avro.logical.endswith("-millis")
        return _each(array, [one if one is None or not millis else one // 1000 for one in micros])
