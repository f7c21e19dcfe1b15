"""Schema resolution as a step on Arrow arrays: promote, fill defaults, drop, rename by alias (Avro 1.11, "Schema
Resolution").

Errors that depend on the data (a null for a type without null, a symbol that the reader lacks, bytes that are not
UTF-8) raise `SchemaError` for the whole array; the caller finds the row. `live` says which rows must hold a value: the
child of a null struct is null too, and is ignored.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError

from .arrowtype import arrow_type, is_decimal, physical_type
from .avrotype import MISSING, AvroField, AvroType
from .pyvalue import converter, default_value

PROMOTIONS: Final = frozenset(
    {
        ("int", "long"),
        ("int", "float"),
        ("int", "double"),
        ("long", "float"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
    }
)
_UNITS: Final = {
    ("int", "date"): ("date", 0),
    ("int", "time-millis"): ("time", 1_000_000),
    ("long", "time-micros"): ("time", 1000),
    **{
        ("long", f"{clock}timestamp-{unit}"): ("timestamp", nanos)
        for clock in ("", "local-")
        for unit, nanos in (("millis", 1_000_000), ("micros", 1000), ("nanos", 1))
    },
}
"""The unit that a logical type's numbers count, and its length in nanoseconds."""
_TIMES: Final = frozenset({"timestamp-millis", "timestamp-micros"})
_LOCAL_TIMES: Final = frozenset({"local-timestamp-millis", "local-timestamp-micros"})


def resolve(array: pa.Array, writer: AvroType, reader: AvroType, live: pa.Array | None = None) -> pa.Array:
    """Converts `array` of `arrow_type(writer)` to `arrow_type(reader)`. Raises `SchemaError` for a pair that Avro does
    not resolve."""
    if writer == reader:
        return array
    if live is None:
        live = pa.repeat(pa.scalar(True), len(array))
    if writer.kind == "union":
        return _from_union(array, writer, reader, live)
    if reader.kind == "union":
        return _into_union(array, writer, reader, live)
    if writer.kind != reader.kind and (writer.kind, reader.kind) not in PROMOTIONS:
        raise SchemaError(f"{_name(writer)} cannot be read as {_name(reader)}")
    if reader.kind == "record":
        return _record(array, writer, reader, live)
    if reader.kind == "array":
        return _list(array, writer, reader)
    if reader.kind == "map":
        return _map(array, writer, reader)
    if reader.kind == "enum":
        return _enum(array, writer, reader)
    return _leaf(array, writer, reader)


def matches(writer: AvroType, reader: AvroType) -> bool:
    """Returns True if a value written as `writer` may be read as `reader`, by the rules that Avro uses to choose a
    branch.
    """
    if writer.kind != reader.kind:
        return (writer.kind, reader.kind) in PROMOTIONS
    if reader.kind in ("record", "enum", "fixed"):
        return _same_name(writer, reader) and writer.size == reader.size
    if reader.kind in ("array", "map"):
        return "union" in (writer.inner.kind, reader.inner.kind) or matches(writer.inner, reader.inner)
    return True


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    return writer.short_name == reader.short_name or writer.name in reader.aliases


def _name(avro: AvroType) -> str:
    return f"{avro.kind} {avro.name}" if avro.name else avro.kind


def _from_union(array: pa.Array, writer: AvroType, reader: AvroType, live: pa.Array) -> pa.Array:
    """Resolves each branch separately; a branch that the reader cannot read is an error only if a row is in it."""
    values, valid = writer.values, pc.is_valid(array)
    if not _takes_null(reader) and _any(pc.and_not(live, valid)):
        raise SchemaError(f"a null cannot be read as {_name(reader)}")
    result = pa.nulls(len(array), arrow_type(reader))
    for index, branch in enumerate(values):
        rows = array if len(values) == 1 else pc.struct_field(array, index)
        inside = pc.and_(live, pc.is_valid(rows))
        if len(values) > 1 and not _any(inside) and len(array):
            continue
        try:
            resolved = resolve(rows, branch, reader, inside)
        except SchemaError:
            if _any(inside):
                raise
            continue
        result = resolved if len(values) == 1 else pc.if_else(pc.is_valid(rows), resolved, result)
    return result


def _takes_null(reader: AvroType) -> bool:
    return reader.kind == "null" or reader.optional


def _into_union(array: pa.Array, writer: AvroType, reader: AvroType, live: pa.Array) -> pa.Array:
    if writer.kind == "null":
        if not reader.optional:
            raise SchemaError("null is in no branch of the reader's union")
        return pa.nulls(len(array), arrow_type(reader))
    branches = reader.values
    exact = [i for i, branch in enumerate(branches) if branch == writer]
    found = exact or [i for i, branch in enumerate(branches) if matches(writer, branch)]
    if not found:
        raise SchemaError(f"{_name(writer)} is in no branch of the reader's union")
    resolved = resolve(array, writer, branches[found[0]], live)
    if len(branches) == 1:
        return resolved
    kind = arrow_type(reader)
    members = [resolved if i == found[0] else pa.nulls(len(array), f.type) for i, f in enumerate(kind)]
    return pa.StructArray.from_arrays(members, fields=list(kind), mask=pc.is_null(array))


def _record(array: pa.Array, writer: AvroType, reader: AvroType, live: pa.Array) -> pa.Array:
    if not _same_name(writer, reader):
        raise SchemaError(f"record {writer.name} cannot be read as record {reader.name}, which has no such alias")
    inside = pc.and_(live, pc.is_valid(array))
    sources = _sources(writer, reader)
    columns = []
    for target in reader.fields:
        index = sources.get(target.name)
        if index is None:
            columns.append(field_default(target, len(array), reader))
            continue
        try:
            columns.append(resolve(pc.struct_field(array, index), writer.fields[index].type, target.type, inside))
        except SchemaError as error:
            raise SchemaError(f"field {target.name}: {error}") from error
    if not columns:
        return pa.array([{} if ok else None for ok in inside.to_pylist()], arrow_type(reader))
    fields = list(arrow_type(reader))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pc.is_null(array))


def _sources(writer: AvroType, reader: AvroType) -> dict[str, int]:
    """Returns for each field of the reader the index of the writer's: by name, else by one of the reader's aliases."""
    written = {field.name: index for index, field in enumerate(writer.fields)}
    sources = {field.name: written[field.name] for field in reader.fields if field.name in written}
    for field in reader.fields:
        if field.name in sources:
            continue
        for alias in field.aliases:
            if alias in written and alias not in sources:
                sources[field.name] = written[alias]
                break
    return sources


def field_default(target: AvroField, length: int, reader: AvroType) -> pa.Array:
    if target.default is MISSING:
        raise SchemaError(f"field {target.name} of {reader.name} has no default, and the writer has no such field")
    convert, value = converter(target.type), default_value(target.type, target.default)
    one = pa.array([value if convert is None else convert(value)], arrow_type(target.type))
    return one.take(pa.repeat(pa.scalar(0), length))


def _list(array: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    items = resolve(array.flatten(), writer.inner, reader.inner)
    return pa.ListArray.from_arrays(list_offsets(array), items, type=arrow_type(reader), mask=pc.is_null(array))


def _map(array: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    pairs = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    entries = pairs.flatten()
    items = resolve(pc.struct_field(entries, 1), writer.inner, reader.inner)
    keys = pc.struct_field(entries, 0)
    return pa.MapArray.from_arrays(list_offsets(pairs), keys, items, type=arrow_type(reader), mask=pc.is_null(array))


def list_offsets(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _enum(array: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    if not _same_name(writer, reader):
        raise SchemaError(f"{_name(writer)} cannot be read as {_name(reader)}")
    known = pc.or_(pc.is_null(array), pc.is_in(array, pa.array(reader.symbols, pa.string())))
    if not _any(pc.invert(known)):
        return array
    if reader.default is None:
        symbol = array.filter(pc.invert(known))[0].as_py()
        raise SchemaError(f"symbol {symbol} is not in {_name(reader)}, which has no default")
    return pc.if_else(known, array, pa.scalar(reader.default))


def _leaf(array: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    if reader.kind == "fixed" and not (_same_name(writer, reader) and writer.size == reader.size):
        raise SchemaError(f"{_name(writer)} of {writer.size} bytes cannot be read as {_name(reader)}")
    source, target = arrow_type(writer), arrow_type(reader)
    if is_decimal(writer) or is_decimal(reader):
        if source == target:
            return array
        if not (is_decimal(writer) and is_decimal(reader) and writer.scale == reader.scale):
            raise SchemaError(f"{source} cannot be read as {target}")
        return _cast(array, target)
    if writer.logical == reader.logical or {writer.logical, reader.logical} <= _TIMES:
        return array if source == target else _cast(array, target)
    if {writer.logical, reader.logical} <= _LOCAL_TIMES:
        return array
    return _logical(_in_units(_physical(array, writer), writer, reader), reader)


def _in_units(stored: pa.Array, writer: AvroType, reader: AvroType) -> pa.Array:
    """Converts the writer's numbers to the reader's unit. Avro leaves the resolution of logical types to
    implementations; numbers of one unit must not be read as another's."""
    mine, theirs = _UNITS.get((writer.kind, writer.logical)), _UNITS.get((reader.kind, reader.logical))
    if mine is None or theirs is None:
        return _cast(stored, physical_type(reader))
    if mine[0] != theirs[0]:
        raise SchemaError(f"{writer.logical} cannot be read as {reader.logical}")
    stored = stored.cast(pa.int64())
    if mine[1] >= theirs[1]:
        try:
            stored = pc.multiply_checked(stored, mine[1] // theirs[1])
        except pa.ArrowInvalid as error:
            raise SchemaError(f"a {writer.logical} beyond what {reader.logical} holds") from error
    else:
        unit = theirs[1] // mine[1]
        whole = pc.divide(stored, unit)
        below = pc.less(stored, pc.multiply(whole, unit))  # down, before 1970 too
        stored = pc.subtract(whole, below.cast(pa.int64()))
    return _cast(stored, physical_type(reader))


def _physical(array: pa.Array, avro: AvroType) -> pa.Array:
    """Returns the stored numbers of a logical type."""
    if arrow_type(avro) == physical_type(avro):
        return array
    stored = _cast(array, physical_type(avro))
    return pc.divide(stored, 1000) if avro.logical.endswith("-millis") else stored


def _logical(array: pa.Array, avro: AvroType) -> pa.Array:
    if arrow_type(avro) == physical_type(avro):
        return array
    try:
        stored = pc.multiply_checked(array, 1000) if avro.logical.endswith("-millis") else array
    except pa.ArrowInvalid as error:
        raise SchemaError(f"a {avro.logical} beyond what a timestamp holds") from error
    return _cast(stored, arrow_type(avro))


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Casts a column. A number may lose digits in a float, as in every Avro reader; text must be UTF-8."""
    try:
        return pc.cast(array, target, safe=not pa.types.is_floating(target))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(str(error)) from error


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())
