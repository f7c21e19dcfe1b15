"""Reads Avro bytes with fastavro to the Python values that `pa.array(…, stored_type(avro))` takes: no logical types,
and unions with the branch that was written.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader

from klamm.core.errors import SchemaError

from ..avro.model import AvroType
from ..avro.values.stored import StoredTypes, symbols
from .arrowtype import members

Convert = Callable[[Any], Any]
_FIELD: Final = "v"


def stored_reader(avro: AvroType) -> Callable[[bytes], Any]:
    """Returns a function that reads one payload. It raises `SchemaError` for bytes that are left over, and whatever
    fastavro raises for damaged ones."""
    schema = parse_schema(_Wrapped().of(avro))
    convert = _converter(avro)

    def read(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        value = schemaless_reader(stream, schema, None, return_record_name=True)
        left = len(payload) - stream.tell()
        if left:
            raise SchemaError(f"{left} bytes left over after the payload")
        return value if convert is None else convert(value)

    return read


class _Wrapped(StoredTypes):
    """A branch of a union of several is a record of one field, which has the bytes of the field: fastavro reports the
    branch of records only. Each use of a named type is a type of its own, since these records are namespaces."""

    def of(self, avro: AvroType) -> Any:
        if len(avro.values) < 2:
            return super().of(avro)
        name = self.new_name()
        made = iter(
            {"type": "record", "name": f"{name}.{member}", "fields": [{"name": _FIELD, "type": self.of(branch)}]}
            for member, branch in members(avro)
        )
        return ["null" if branch.kind == "null" else next(made) for branch in avro.branches]

    def once(self, key: Hashable, define: Callable[[str], Any]) -> Any:
        del key
        return define(self.new_name())


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
