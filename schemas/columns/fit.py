"""Converts Arrow columns to an Avro record's fields, where the result is certain to be what fastavro writes for each
row.

Everything else is a `Misfit`: values that do not fit, and types that only fastavro is trusted to write. The writer of
single rows then takes over: it writes those types, and raises the error for values that do not fit.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError

from ..avro.defaults import default_value
from ..avro.logical import DAYS, INSTANTS
from ..avro.model import MISSING, AvroField, AvroType
from .apply import default_column, list_offsets, map_entries, repeats
from .arrowtype import TIMESTAMP, arrow_type, members

MICROS: Final = (DAYS[0] * 86_400_000_000, (DAYS[1] + 1) * 86_400_000_000 - 1)


class Misfit(Exception):
    """The columns cannot be written as columns; caught in this package."""


def check_zones(kind: pa.DataType, avro: AvroType, at: str = "") -> None:
    """Raises `SchemaError` where a timestamp without a zone would become an instant: the writer of single rows would
    interpret it in the machine's own time zone."""
    if avro.kind == "union" and len(avro.values) > 1 and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        for name, branch in members(avro):
            if name in types:
                check_zones(types[name], branch, f"{at}.{name}" if at else name)
    elif avro.kind == "union":
        # In a union of several branches, a local time has a branch of its own, or none.
        clocks = any(branch.logical.startswith("local-timestamp") for branch in avro.values)
        for branch in () if clocks else avro.values:
            check_zones(kind, branch, at)
    elif avro.kind == "record" and pa.types.is_struct(kind):
        types = {field.name: field.type for field in kind}
        for field in avro.fields:
            if field.name in types:
                check_zones(types[field.name], field.type, f"{at}.{field.name}" if at else field.name)
    elif avro.kind == "array" and hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        check_zones(kind.value_type, avro.inner, f"{at}[]")
    elif avro.kind == "map" and pa.types.is_map(kind):
        check_zones(kind.item_type, avro.inner, f"{at}{{}}")
    elif avro.logical in INSTANTS and pa.types.is_timestamp(kind) and kind.tz is None:
        raise SchemaError(
            f"field {at}: {kind} has no time zone, so it is no instant, as {avro.logical} is; local-{avro.logical} "
            "takes it"
        )


def fit(array: pa.Array, avro: AvroType, live: pa.Array | None = None) -> pa.Array:
    """Returns `array` as `arrow_type(avro)`. `live` says which rows must hold a value (None: all); the child of a null
    struct is ignored."""
    if avro.kind == "union":
        if len(avro.values) != 1:
            raise Misfit
        there = pc.is_valid(array)
        return fit(array, avro.values[0], there if live is None else pc.and_(live, there))
    if array.null_count and (live is None or pc.any(pc.and_(live, pc.is_null(array))).as_py()):
        raise Misfit
    if avro.kind == "record":
        return _record(array, avro, live)
    if avro.kind == "array":
        return _list(array, avro)
    if avro.kind == "map":
        return _map(array, avro)
    if avro.logical:
        return _time(array, avro)
    return _primitive(array, avro)


def _primitive(array: pa.Array, avro: AvroType) -> pa.Array:
    kind = array.type
    if avro.kind == "boolean" and pa.types.is_boolean(kind):
        return array
    if avro.kind in ("int", "long") and pa.types.is_integer(kind):
        return _cast(array, arrow_type(avro))
    if avro.kind in ("float", "double") and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return _number(array, avro)
    if avro.kind in ("string", "enum"):
        return _text(array, avro)
    raise Misfit


def _number(array: pa.Array, avro: AvroType) -> pa.Array:
    """Converts numbers through a double, as Python's floats are."""
    wide = pc.cast(array, pa.float64(), safe=False)
    if avro.kind == "double":
        return wide
    narrow = pc.cast(wide, pa.float32(), safe=False)
    if pc.any(pc.and_(pc.is_finite(wide), pc.is_inf(narrow))).as_py():
        raise Misfit
    return narrow


def _text(array: pa.Array, avro: AvroType) -> pa.Array:
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise Misfit
    text = _cast(array, pa.string())
    try:
        text.validate(full=True)  # Arrow accepts any bytes as text unless they are validated
    except pa.ArrowInvalid as error:
        raise Misfit from error
    if avro.kind == "enum":
        known = pc.is_in(text, pa.array(avro.symbols, pa.string()))
        if pc.any(pc.and_not(pc.is_valid(text), known)).as_py():
            raise Misfit
    return text


def _time(array: pa.Array, avro: AvroType) -> pa.Array:
    if (avro.kind, avro.logical) == ("int", "date") and pa.types.is_date32(array.type):
        return _within(array, pa.int32(), DAYS)
    stamped = avro.logical in ("timestamp-millis", "timestamp-micros") and pa.types.is_timestamp(array.type)
    if not stamped or array.type.tz is None or array.type.unit == "ns":  # a time without a zone is no instant
        raise Misfit
    micros = _within(_cast(array, TIMESTAMP), pa.int64(), MICROS)
    return pc.floor_temporal(micros, unit="millisecond") if avro.logical == "timestamp-millis" else micros


def _within(array: pa.Array, stored: pa.DataType, bounds: tuple[int, int]) -> pa.Array:
    found = pc.min_max(array.cast(stored))
    if len(array) > array.null_count and not bounds[0] <= found["min"].as_py() <= found["max"].as_py() <= bounds[1]:
        raise Misfit
    return array


def _record(array: pa.Array, avro: AvroType, live: pa.Array | None) -> pa.Array:
    if not pa.types.is_struct(array.type):
        raise Misfit
    names = [field.name for field in array.type]
    if len(set(names)) < len(names) or set(names) - {field.name for field in avro.fields}:
        raise Misfit
    columns = dict(zip(names, array.flatten(), strict=True))
    inside = live if live is None or not array.null_count else pc.and_(live, pc.is_valid(array))
    children = [
        fit(columns[f.name], f.type, inside) if f.name in columns else _default(f, len(array)) for f in avro.fields
    ]
    mask = pc.is_null(array) if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(arrow_type(avro)), mask=mask)


def _default(field: AvroField, rows: int) -> pa.Array:
    if field.default is MISSING:
        raise Misfit
    try:
        return default_column(field.type, default_value(field.type, field.default), rows)
    except SchemaError as error:
        raise Misfit from error


def _list(array: pa.Array, avro: AvroType) -> pa.Array:
    if pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        array = _cast(array, pa.list_(array.type.value_field))
    if not pa.types.is_list(array.type):
        raise Misfit
    items = fit(array.flatten(), avro.inner)
    return pa.ListArray.from_arrays(list_offsets(array), items, type=arrow_type(avro), mask=pc.is_null(array))


def _map(array: pa.Array, avro: AvroType) -> pa.Array:
    if not pa.types.is_map(array.type):
        raise Misfit
    offsets, keys, items = map_entries(array)
    keys = _text(keys, AvroType("string"))
    if repeats(offsets, keys):
        raise Misfit  # a key occurs twice, which a dict cannot hold
    found = fit(items, avro.inner)
    return pa.MapArray.from_arrays(offsets, keys, found, type=arrow_type(avro), mask=pc.is_null(array))


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return pc.cast(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Misfit from error
