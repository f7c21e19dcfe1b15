"""Converts the JSON of a reader's default to its value as it would be stored: times as numbers, decimals as bytes."""

from __future__ import annotations

import struct
from typing import Any, Final

from klamm.core.errors import SchemaError

from .logical import WHOLE
from .model import MISSING, AvroType, describe

MAX_VALUES: Final = 200_000
Branch = tuple[int, Any]
"""A union's value: the index of the branch, and the branch's value."""


class DefaultsLimit:
    """Bounds the number of values in the defaults of one schema: a short text of nested records can stand for 2^60
    values."""

    def __init__(self, values: int = MAX_VALUES) -> None:
        self._most = self._left = values

    def spend(self) -> None:
        """Counts a value. Raises `SchemaError` for one too many."""
        self._left -= 1
        if self._left < 0:
            raise SchemaError(f"the defaults of the schema have more than {self._most} values")


def default_value(avro: AvroType, default: Any, limit: DefaultsLimit | None = None) -> Any:
    """Returns a default as a stored value; of a union, as a `Branch`. Raises `SchemaError` if the JSON does not match
    the type. A union's default belongs to the first branch that it fits (Avro 1.12). Text stands for bytes, one for
    each code point, and for a float that JSON lacks ("NaN"). `limit` is that of the schema."""
    limit = limit or DefaultsLimit()
    limit.spend()
    match avro.kind:
        case "union":
            return _union(avro, default, limit)
        case "record" if isinstance(default, dict):
            return {
                field.name: _field(avro, field.name, field.type, field.default, default, limit) for field in avro.fields
            }
        case "array" if isinstance(default, list):
            return [default_value(avro.inner, item, limit) for item in default]
        case "map" if isinstance(default, dict):
            return {key: default_value(avro.inner, item, limit) for key, item in default.items()}
        case "bytes" | "fixed" if isinstance(default, str):
            return _bytes(avro, default)
        case "float" | "double":
            return _float(avro, default)
        case "int" | "long":
            bound = WHOLE[avro.kind]
            if isinstance(default, int) and not isinstance(default, bool) and -bound <= default < bound:
                return default
        case "boolean" if isinstance(default, bool):
            return default
        case "null" if default is None:
            return None
        case "string" if isinstance(default, str):
            return default
        case "enum" if default in avro.symbols:
            return default
    raise SchemaError(f"{default!r} is no {describe(avro)}")


def _union(avro: AvroType, default: Any, limit: DefaultsLimit) -> Branch:
    for index, branch in enumerate(avro.branches):
        try:
            return index, default_value(branch, default, limit)
        except SchemaError:
            continue
    raise SchemaError(f"{default!r} is in no branch of its union")


def _field(record: AvroType, name: str, kind: AvroType, own: Any, given: dict[str, Any], limit: DefaultsLimit) -> Any:
    value = given.get(name, own)
    if value is MISSING:
        raise SchemaError(f"the default of record {record.name} has no field {name}")
    return default_value(kind, value, limit)


def _bytes(avro: AvroType, default: str) -> bytes:
    try:
        value = default.encode("latin-1")
    except UnicodeEncodeError as error:
        raise SchemaError(f"{default!r} has a code point above 255, so it is no {describe(avro)}") from error
    if avro.kind == "fixed" and len(value) != avro.size:
        raise SchemaError(f"{default!r} has {len(value)} bytes, not the {avro.size} of {describe(avro)}")
    return value


def _float(avro: AvroType, default: Any) -> float:
    if isinstance(default, bool):
        raise SchemaError(f"{default!r} is no {describe(avro)}")
    try:
        value = float(default)
        return value if avro.kind == "double" else float(struct.unpack("<f", struct.pack("<f", value))[0])
    except (TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"{default!r} is no {describe(avro)}") from error
