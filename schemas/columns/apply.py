"""Applies a plan of `schemas.avro.resolution` to an Arrow array: the writer's values as stored become the reader's
columns.

Errors that depend on the data (a value whose type the reader cannot read, a symbol that it lacks, text that is not
UTF-8, a number beyond a type) raise `SchemaError` for the whole array; the caller finds the row. `live` says which rows
must hold a value: the child of a null struct is null too, and is ignored.
"""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.errors import SchemaError

from ..avro.logical import misfit
from ..avro.model import AvroType, describe, under
from ..avro.resolution import (
    EnumPlan,
    FieldPlan,
    FromUnion,
    IntoUnion,
    ItemsPlan,
    Leaf,
    RecordPlan,
    Refused,
    Resolution,
)
from ..avro.resolution import resolve as plan_of
from .arrowtype import LOCAL, TIMESTAMP, arrow_type, is_decimal, members, physical_type, stored_type


def apply(plan: Resolution, array: pa.Array, live: pa.Array | None = None, at: str = "") -> pa.Array:
    """Converts `array` of `stored_type(plan.writer)` to `arrow_type(plan.reader)`. `live` None: all rows; `at` is the
    path of the reader's field."""
    if live is None:
        live = pa.repeat(pa.scalar(True), len(array))
    match plan:
        case Refused():
            if _any(live):
                raise SchemaError(str(plan))
            return pa.nulls(len(array), arrow_type(plan.reader))
        case FromUnion():
            return _from_union(plan, array, live, at)
        case IntoUnion():
            return _into_union(plan, array, live, at)
        case RecordPlan():
            return _record(plan, array, live, at)
        case ItemsPlan() if plan.reader.kind == "array":
            return _list(plan, array, at)
        case ItemsPlan():
            return _map(plan, array, at)
        case EnumPlan():
            return _enum(plan, array, live, at)
        case Leaf():
            return _leaf(plan, array, at)
    raise SchemaError(f"no column for {describe(plan.reader)}")


def never(plan: Resolution) -> str | None:
    """Returns why no value can be read; None if some values can."""
    match plan:
        case Refused():
            return str(plan)
        case RecordPlan():
            return next((why for part in plan.parts() if (why := never(part)) is not None), None)
        case IntoUnion():
            return never(plan.branch)
        case FromUnion():
            reasons = [never(branch) for branch in plan.branches]
            if not reasons or None in reasons:
                return None
            kinds = {plan.reader.kind, *(branch.kind for branch in plan.reader.branches)}
            fits = [(b.writer.kind in kinds, b.writer.kind != "null") for b in plan.branches]
            return reasons[fits.index(max(fits))]  # why the likely branch cannot be read
    return None


def _from_union(plan: FromUnion, array: pa.Array, live: pa.Array, at: str) -> pa.Array:
    """Applies each branch's plan to the rows of that branch."""
    several = len(plan.writer.values) > 1
    result = pa.nulls(len(array), arrow_type(plan.reader))
    member = 0
    for branch in plan.branches:
        if branch.writer.kind == "null":
            apply(branch, pa.nulls(len(array)), pc.and_(live, pc.is_null(array)), at)  # may refuse; else null
            continue
        rows = pc.struct_field(array, member) if several else array
        member += 1
        there = pc.is_valid(rows)
        inside = pc.and_(live, there)
        if not _any(inside):
            continue
        read = apply(branch, rows, inside, at)
        result = read if not several else pc.if_else(there, read, result)
    return result


def _into_union(plan: IntoUnion, array: pa.Array, live: pa.Array, at: str) -> pa.Array:
    union = plan.reader
    chosen = union.branches[plan.index]
    if chosen.kind == "null":
        return pa.nulls(len(array), arrow_type(union))
    read = apply(plan.branch, array, live, at)
    if len(union.values) == 1:
        return read
    own = plan.index - sum(branch.kind == "null" for branch in union.branches[: plan.index])
    kind = arrow_type(union)
    columns = [read if number == own else pa.nulls(len(array), field.type) for number, field in enumerate(kind)]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pc.is_null(array))


def _record(plan: RecordPlan, array: pa.Array, live: pa.Array, at: str) -> pa.Array:
    inside = pc.and_(live, pc.is_valid(array))
    columns = [_field(part, array, inside, under(at, part.field.name)) for part in plan.fields]
    if not columns:
        return pa.array([{} if ok else None for ok in pc.is_valid(array).to_pylist()], arrow_type(plan.reader))
    fields = list(arrow_type(plan.reader))
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pc.is_null(array))


def _field(part: FieldPlan, array: pa.Array, inside: pa.Array, at: str) -> pa.Array:
    if part.plan is not None:
        return apply(part.plan, pc.struct_field(array, part.source), inside, at)
    return default_column(part.field.type, part.default, len(array))


def default_column(avro: AvroType, stored: object, length: int) -> pa.Array:
    """Returns `length` times a default, given as `schemas.avro.defaults.default_value` returns it."""
    one = pa.array([arrow_input(avro, stored)], stored_type(avro))
    return apply(plan_of(avro, avro), one).take(pa.repeat(pa.scalar(0), length))


def arrow_input(avro: AvroType, stored: object) -> object:
    """Returns a stored value, in which a union's is (branch, value), as `pa.array(…, stored_type(avro))` takes it."""
    match avro.kind, stored:
        case "union", (int(index), value):
            branch = avro.branches[index]
            plain = arrow_input(branch, value)
            if branch.kind == "null" or len(avro.values) == 1:
                return plain
            return {name: plain for name, one in members(avro) if one is branch}
        case "record", dict(fields):
            return {field.name: arrow_input(field.type, fields[field.name]) for field in avro.fields}
        case "array", list(items):
            return [arrow_input(avro.inner, item) for item in items]
        case "map", dict(entries):
            return [(key, arrow_input(avro.inner, item)) for key, item in entries.items()]
    return stored


def _list(plan: ItemsPlan, array: pa.Array, at: str) -> pa.Array:
    items = apply(plan.items, array.flatten(), None, under(at, "[]"))
    kind = arrow_type(plan.reader)
    return pa.ListArray.from_arrays(list_offsets(array), items, type=kind, mask=pc.is_null(array))


def _map(plan: ItemsPlan, array: pa.Array, at: str) -> pa.Array:
    offsets, keys, items = map_entries(array)
    read, kind = apply(plan.items, items, None, under(at, "{}")), arrow_type(plan.reader)
    return pa.MapArray.from_arrays(offsets, keys, read, type=kind, mask=pc.is_null(array))


def map_entries(array: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Returns offsets (rows + 1, from 0), keys and items; a null row has no entries. (pyarrow 26 loses items in a cast
    to lists of structs if they contain nulls of type null.)"""
    live = array.drop_null() if array.null_count else array
    ends = live.offsets if len(live) else pa.array([0], pa.int32())
    first, last = ends[0].as_py(), ends[-1].as_py()
    lengths = pc.subtract(ends[1:], ends[:-1])
    if array.null_count:
        none = pa.repeat(pa.scalar(0, pa.int32()), len(array))
        lengths = pc.replace_with_mask(none, pc.is_valid(array), lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return offsets, live.keys[first:last], live.items[first:last]


def repeats(offsets: pa.Array, keys: pa.Array) -> bool:
    """Returns True if a map has a key twice; arguments as `map_entries` returns them."""
    owners = pc.list_parent_indices(pa.ListArray.from_arrays(offsets, keys))
    return bool(pa.table({"of": owners, "key": keys}).group_by(["of", "key"]).aggregate([]).num_rows < len(keys))


def list_offsets(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])


def _enum(plan: EnumPlan, array: pa.Array, live: pa.Array, at: str) -> pa.Array:
    if plan.symbols == plan.writer.symbols:
        return array
    places = pc.index_in(array, pa.array(plan.writer.symbols, pa.string()))
    read = pa.array(plan.symbols, pa.string()).take(places)
    lost = pc.and_(live, pc.and_(pc.is_valid(array), pc.is_null(read)))
    if _any(lost):
        symbol = array.filter(lost)[0].as_py()
        raise misfit(at, f"symbol {symbol} is not in {describe(plan.reader)}, which has no default")
    return read


def _leaf(plan: Leaf, stored: pa.Array, at: str) -> pa.Array:
    reader = plan.reader
    if plan.factor > 1 or plan.divisor > 1:
        stored = _in_units(plan, stored.cast(pa.int64()), at)
    return _logical(_cast(stored, physical_type(reader), at), reader, at)


def _in_units(plan: Leaf, stored: pa.Array, at: str) -> pa.Array:
    if plan.factor > 1:
        return _times(stored, plan.factor, plan.writer, plan.reader, at)
    whole = pc.divide(stored, plan.divisor)
    below = pc.less(stored, pc.multiply(whole, plan.divisor))  # down, before 1970 too
    return pc.subtract(whole, below.cast(pa.int64()))


def _times(stored: pa.Array, factor: int, writer: AvroType, reader: AvroType, at: str) -> pa.Array:
    try:
        return pc.multiply_checked(stored, factor)
    except pa.ArrowInvalid as error:
        raise misfit(at, f"a {describe(writer)} beyond what {describe(reader)} holds in a column") from error


def _logical(stored: pa.Array, avro: AvroType, at: str) -> pa.Array:
    """Returns stored values of `avro` as `arrow_type(avro)`."""
    kind = arrow_type(avro)
    if kind == physical_type(avro):
        return stored
    if is_decimal(avro):
        return _decimals(stored, avro, at)
    if kind in (TIMESTAMP, LOCAL) and avro.logical.endswith("-millis"):
        stored = _times(stored, 1000, avro, avro, at)
    return stored.view(kind)


def _decimals(stored: pa.Array, avro: AvroType, at: str) -> pa.Array:
    """Returns decimals of two's-complement bytes; one with more digits than `avro` has cannot be read."""
    limit = 10**avro.precision
    numbers = [0 if raw is None else int.from_bytes(raw, "big", signed=True) for raw in stored.to_pylist()]
    for number in numbers:
        if not -limit < number < limit:
            shown = Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -avro.scale))
            raise misfit(at, f"{shown} has more digits than {describe(avro)}")
    data = b"".join(number.to_bytes(16, "little", signed=True) for number in numbers)
    valid = pc.is_valid(stored).buffers()[1] if stored.null_count else None
    return pa.Array.from_buffers(arrow_type(avro), len(stored), [valid, pa.py_buffer(data)])


def _cast(array: pa.Array, target: pa.DataType, at: str) -> pa.Array:
    """Casts a column. A number may lose digits in a float, as in every Avro reader; text must be UTF-8."""
    if array.type == target:
        return array
    try:
        return pc.cast(array, target, safe=not pa.types.is_floating(target))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise misfit(at, str(error)) from error


def _any(mask: pa.Array) -> bool:
    return bool(pc.any(mask).as_py())
