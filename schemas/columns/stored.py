"""Reads Avro bytes with fastavro to the Python values that `pa.array(…, stored_type(avro))` takes: no logical types,
and unions with the branch that was written.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader

from klamm.core.errors import SchemaError

from ..avro.values.stored import symbols
from .arrowtype import members
from .avrotype import AvroType

Convert = Callable[[Any], Any]
_FIELD: Final = "v"


def stored_reader(avro: AvroType) -> Callable[[bytes], Any]:
    """Returns a function that reads one payload. It raises `SchemaError` for bytes that are left over, and whatever
    fastavro raises for damaged ones."""
    numbers = itertools.count()
    schema = parse_schema(_schema(avro, numbers))
    convert = _converter(avro)

    def read(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = schemaless_reader(stream, schema, None, return_record_name=True)
        left = len(payload) - stream.tell()
        if left:
            raise SchemaError(f"{left} bytes left over after the payload")
        return value if convert is None else convert(value)

    return read


def _schema(avro: AvroType, numbers: Iterator[int]) -> Any:
    """Returns the schema of the same bytes, without logical types, aliases and defaults, and with names of its own.

    A branch of a union of several is a record of one field, which has the bytes of the field: fastavro reports the
    branch of records only.
    """
    name = f"t{next(numbers)}"
    match avro.kind:
        case "record":
            fields = [{"name": field.name, "type": _schema(field.type, numbers)} for field in avro.fields]
            return {"type": "record", "name": name, "fields": fields}
        case "enum":
            return {"type": "enum", "name": name, "symbols": symbols(avro.symbols)}
        case "fixed":
            return {"type": "fixed", "name": name, "size": avro.size}
        case "array":
            return {"type": "array", "items": _schema(avro.inner, numbers)}
        case "map":
            return {"type": "map", "values": _schema(avro.inner, numbers)}
        case "union" if len(avro.values) > 1:
            wrapped = zip((member for member, _ in members(avro)), avro.values, strict=True)
            made = iter([_branch(f"{name}.{member}", branch, numbers) for member, branch in wrapped])
            return ["null" if branch.kind == "null" else next(made) for branch in avro.branches]
        case "union":
            return [_schema(branch, numbers) for branch in avro.branches]
    return avro.kind


def _branch(name: str, avro: AvroType, numbers: Iterator[int]) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": _FIELD, "type": _schema(avro, numbers)}]}


def _converter(avro: AvroType) -> Convert | None:
    """Returns a function that converts a value as fastavro returns it; None when no conversion is needed."""
    match avro.kind:
        case "array":
            item = _converter(avro.inner)
            return None if item is None else lambda raw: [item(one) for one in raw]
        case "map":
            value = _converter(avro.inner)
            return lambda raw: [(key, one if value is None else value(one)) for key, one in raw.items()]
        case "record":
            return _record(avro)
        case "enum" if (stored := symbols(avro.symbols)) != list(avro.symbols):
            return dict(zip(stored, avro.symbols, strict=True)).__getitem__
        case "union":
            return _several(avro) if len(avro.values) > 1 else _optional(avro)
    return None


def _record(avro: AvroType) -> Convert | None:
    inner = {f.name: convert for f in avro.fields if (convert := _converter(f.type)) is not None}
    if not inner:
        return None
    return lambda raw: {name: inner[name](value) if name in inner else value for name, value in raw.items()}


def _optional(avro: AvroType) -> Convert | None:
    only = _converter(avro.values[0]) if avro.values else None
    if only is None and not any(branch.kind == "record" for branch in avro.values):
        return None

    def optional(raw: Any) -> Any:
        plain = raw[1] if isinstance(raw, tuple) else raw  # a record comes with its name
        return plain if plain is None or only is None else only(plain)

    return optional


def _several(avro: AvroType) -> Convert:
    inner = {member: _converter(branch) for member, branch in members(avro)}

    def several(raw: Any) -> Any:
        if raw is None:
            return None
        member, plain = raw[0].rpartition(".")[2], raw[1][_FIELD]
        convert = inner[member]
        return {member: plain if convert is None else convert(plain)}

    return several
