"""Converts Avro payloads to Python values by a plan (`resolution`).

fastavro decodes by the writer's schema. Where a plan changes a value, the schema that fastavro gets has a logical type
of Klamm's own: for such a type fastavro calls back with the decoded part.
"""

from __future__ import annotations

import copy
import io
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader
from fastavro.read import LOGICAL_READERS

from klamm.core.errors import SchemaError

from ..branches import NAME_KEY, class_beyond, must_be_named
from ..logical import Convert, reader_of
from ..model import NAMED, AvroType, describe
from ..nesting import MAX_NESTING, check_nesting, contains_itself
from ..resolution import (
    EnumPlan,
    FromUnion,
    IntoUnion,
    ItemsPlan,
    Leaf,
    RecordPlan,
    Refused,
    Resolution,
    resolve,
)
from .stored import StoredTypes, symbols

_LOGICAL: Final = "klamm"
_CONVERT: Final = "klamm.convert"
_FLOAT: Final = struct.Struct("<f")
_LONG: Final = 2**63


def _called_back(value: Any, schema: Any, _reader: Any) -> Any:
    return schema[_CONVERT](value)


for _kind in ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum", "array", "map",
              "record"):  # fmt: skip
    LOGICAL_READERS[f"{_kind}-{_LOGICAL}"] = _called_back


def value_reader(writer: AvroType, reader: AvroType, *, name_records: bool = False) -> Callable[[io.BytesIO], Any]:
    """Returns a function that reads one value of the writer's schema from a stream, as a value of the reader's. It
    raises `SchemaError` for a value that the reader's schema cannot take, and whatever fastavro raises for bytes that
    are not Avro. `name_records`: a record in a union of several types always names its type.
    """
    schema = parse_schema(_Compiler(name_records).of(resolve(writer, reader)))
    if not contains_itself(writer):
        return lambda stream: schemaless_reader(stream, schema, None)

    def read(stream: io.BytesIO) -> Any:
        payload = stream.getbuffer()[stream.tell() :]
        if len(payload) > MAX_NESTING:
            check_nesting(writer, payload)
        return schemaless_reader(stream, schema, None)

    return read


class _Compiler:
    """Makes the schema for fastavro. One type of the writer may be converted in several ways, each with its name."""

    def __init__(self, name_records: bool) -> None:
        self._name_records = name_records
        self._stored = StoredTypes()

    def of(self, plan: Resolution, finish: Convert | None = None, key: str = "") -> Any:
        """Returns the schema of the writer's type. `finish` is called last with the value; `key` identifies it."""
        match plan:
            case Leaf():
                return self._leaf(plan.writer, _then(_leaf(plan), finish))
            case EnumPlan():
                return self._enum(plan, finish)
            case ItemsPlan():
                part = "items" if plan.writer.kind == "array" else "values"
                return _converted({"type": plan.writer.kind, part: self.of(plan.items)}, finish)
            case RecordPlan():
                return self._stored.once((id(plan), key), lambda name: self._record(plan, finish, name))
            case FromUnion():
                return [self.of(branch) for branch in plan.branches]
            case IntoUnion():
                name = self._named(plan.reader, plan.index)
                return self.of(plan.branch, name or finish, f"{id(plan.reader)}.{plan.index}" if name else key)
            case Refused() if plan.writer.kind in NAMED:
                return self._stored.once(
                    (id(plan), ""), lambda name: _converted(self._stored.named(plan.writer, name), _refusal(plan))
                )
            case Refused():
                return _converted(self._stored.of(plan.writer), _refusal(plan))
        raise TypeError(f"unknown plan {plan!r}")

    def _leaf(self, writer: AvroType, convert: Convert | None) -> Any:
        if writer.kind == "fixed":
            made = {"type": "fixed", "name": self._stored.new_name(), "size": writer.size}
            return made if convert is None else _converted(made, convert)
        return writer.kind if convert is None else _converted({"type": writer.kind}, convert)

    def _enum(self, plan: EnumPlan, finish: Convert | None) -> Any:
        stored = symbols(plan.writer.symbols)
        made = {"type": "enum", "name": self._stored.new_name(), "symbols": stored}
        if tuple(stored) == plan.symbols:
            return _converted(made, finish)
        known = dict(zip(stored, plan.symbols, strict=True))

        def convert(symbol: str) -> str:
            found = known[symbol]
            if found is None:
                lost = plan.writer.symbols[stored.index(symbol)]
                raise SchemaError(f"symbol {lost} is not in {describe(plan.reader)}, which has no default")
            return found

        return _converted(made, _then(convert, finish))

    def _record(self, plan: RecordPlan, finish: Convert | None, name: str) -> Any:
        plans = {one.source: one.plan for one in plan.fields if one.source is not None}
        fields = []
        for index, field in enumerate(plan.writer.fields):
            part = plans.get(index)
            kind = self._stored.of(field.type) if part is None else self.of(part)
            fields.append({"name": field.name, "type": kind})
        made = {"type": "record", "name": name, "fields": fields}
        return _converted(made, _then(self._fields(plan), finish))

    def _fields(self, plan: RecordPlan) -> Convert | None:
        """Returns a function of the writer's record; None if the fields stand as the reader has them."""
        written = [field.name for field in plan.writer.fields]
        if [(one.source, one.field.name) for one in plan.fields] == list(enumerate(written)):
            return None
        steps = [
            (one.field.name, None, self._constant(one.field.type, one.default))
            if one.source is None
            else (one.field.name, written[one.source], None)
            for one in plan.fields
        ]
        shared = [name for name, _, constant in steps if isinstance(constant, dict | list)]

        def convert(record: dict[str, Any]) -> dict[str, Any]:
            made = {name: constant if source is None else record[source] for name, source, constant in steps}
            for name in shared:
                made[name] = copy.deepcopy(made[name])
            return made

        return convert

    def _constant(self, avro: AvroType, stored: Any) -> Any:
        """Returns a reader's value of what `default_value` returned."""
        match avro.kind:
            case "record":
                return {field.name: self._constant(field.type, stored[field.name]) for field in avro.fields}
            case "array":
                return [self._constant(avro.inner, item) for item in stored]
            case "map":
                return {key: self._constant(avro.inner, item) for key, item in stored.items()}
            case "union":
                index, inner = stored
                name, value = self._named(avro, index), self._constant(avro.branches[index], inner)
                return value if name is None else name(value)
        convert = reader_of(avro)
        return stored if convert is None else convert(stored)

    def _named(self, union: AvroType, index: int) -> Convert | None:
        """Returns a function that puts a branch's name to its value; None if the value shows the branch."""
        branch = union.branches[index]
        records = [one for one in union.branches if one.kind == "record"]
        wanted = self._name_records and branch.kind == "record" and len(records) > 1
        name = branch.branch_name
        if not wanted and index not in must_be_named(union):
            beyond = class_beyond(union, index)
            return None if beyond is None else lambda value: (name, value) if value.__class__ is beyond else value
        if branch.kind == "record":
            return lambda value: {NAME_KEY: name, **value}
        return lambda value: (name, value)


def _converted(schema: Any, convert: Convert | None) -> Any:
    if convert is None:
        return schema
    if isinstance(schema, list):
        return [_converted(branch, convert) for branch in schema]
    made = schema if isinstance(schema, dict) else {"type": schema}
    return {**made, "logicalType": _LOGICAL, _CONVERT: _then(made.get(_CONVERT), convert)}


def _then(first: Convert | None, second: Convert | None) -> Convert | None:
    if first is None or second is None:
        return first or second
    return lambda value: second(first(value))


def _refusal(plan: Refused) -> Convert:
    def refuse(_value: Any) -> Any:
        raise SchemaError(str(plan))

    return refuse


def _leaf(plan: Leaf) -> Convert | None:
    """Returns the function from the stored value of the writer to the reader's value."""
    steps: Sequence[Convert | None] = (_promotion(plan), _units(plan), reader_of(plan.reader))
    made: Convert | None = None
    for step in steps:
        made = _then(made, step)
    return made


def _promotion(plan: Leaf) -> Convert | None:
    match plan.writer.kind, plan.reader.kind:
        case (("int" | "long"), "float"):
            return lambda number: _FLOAT.unpack(_FLOAT.pack(number))[0]
        case (("int" | "long"), "double"):
            return float
        case "string", "bytes":
            return str.encode
        case "bytes", "string":
            return bytes.decode
    return None


def _units(plan: Leaf) -> Convert | None:
    factor, divisor = plan.factor, plan.divisor
    if divisor > 1:
        return lambda number: number // divisor
    if factor == 1:
        return None

    def multiply(number: int) -> int:
        made = int(number) * factor
        if not -_LONG <= made < _LONG:
            raise SchemaError(f"a {plan.writer.logical} beyond what {plan.reader.logical} holds")
        return made

    return multiply
