"""The JSON of a reader's default to the value that it stands for, as it would be stored: numbers of times, bytes of
decimals.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from klamm.core.errors import SchemaError

from .model import MISSING, AvroType, describe

_WHOLE: Final = {"int": 2**31, "long": 2**63}
Branch = tuple[int, Any]
"""A union's value: the index of the branch, and the branch's value."""


def default_value(avro: AvroType, default: Any) -> Any:
    """Returns a default's stored value; of a union it is a `Branch`. Raises `SchemaError` if the JSON is not of the
    type. A union's default is of its first branch that it fits (Avro 1.12); text stands for bytes, a code point each,
    and for a float that JSON lacks ("NaN").
    """
    match avro.kind:
        case "union":
            return _union(avro, default)
        case "record" if isinstance(default, dict):
            return {field.name: _field(avro, field.name, field.type, field.default, default) for field in avro.fields}
        case "array" if isinstance(default, list):
            return [default_value(avro.inner, item) for item in default]
        case "map" if isinstance(default, dict):
            return {key: default_value(avro.inner, item) for key, item in default.items()}
        case "bytes" | "fixed" if isinstance(default, str):
            return _bytes(avro, default)
        case "float" | "double":
            return _float(avro, default)
        case "int" | "long":
            limit = _WHOLE[avro.kind]
            if isinstance(default, int) and not isinstance(default, bool) and -limit <= default < limit:
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


def _union(avro: AvroType, default: Any) -> Branch:
    for index, branch in enumerate(avro.branches):
        try:
            return index, default_value(branch, default)
        except SchemaError:
            continue
    raise SchemaError(f"{default!r} is in no branch of its union")


def _field(record: AvroType, name: str, kind: AvroType, own: Any, given: dict[str, Any]) -> Any:
    value = given.get(name, own)
    if value is MISSING:
        raise SchemaError(f"the default of record {record.name} has no field {name}")
    return default_value(kind, value)


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
