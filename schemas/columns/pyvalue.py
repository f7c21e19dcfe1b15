"""Converts fastavro's values, and the JSON of defaults, to the Python values that Arrow builds arrays from."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

from klamm.core.errors import SchemaError

from .arrowtype import is_decimal
from .avrotype import MAX_PRECISION, MISSING, AvroType

Convert = Callable[[Any], Any]

_DIGITS: Final = Context(prec=MAX_PRECISION + 1)
_THOUSAND: Final = 1000
_MILLIS: Final = frozenset({"timestamp-millis", "local-timestamp-millis"})
# For a value of this Python type: the branch of the first of these kinds that the union has. The wider kind comes
# first, because fastavro does not say which of two branches a number had.
_BRANCHES: Final[dict[type, tuple[str, ...]]] = {
    bool: ("boolean",),
    int: ("long", "int"),
    float: ("double", "float"),
    str: ("string", "enum"),
    bytes: ("bytes", "fixed"),
    list: ("array",),
    dict: ("map", "record"),
}


def converter(avro: AvroType) -> Convert | None:
    """Returns a function that converts a value of `avro`, read without logical types and with `return_named_type`, for
    `pa.array(…, arrow_type(avro))`; None when no conversion is needed."""
    if is_decimal(avro):
        return lambda raw: Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-avro.scale, _DIGITS)
    if avro.kind == "long" and avro.logical in _MILLIS:
        return lambda raw: raw * _THOUSAND
    if avro.kind == "array":
        return _list(converter(avro.inner))
    if avro.kind == "map":
        return _map(converter(avro.inner))
    if avro.kind == "record":
        return _record(avro)
    if avro.kind == "union":
        return _union(avro)
    return None


def _list(item: Convert | None) -> Convert | None:
    return None if item is None else lambda raw: [item(v) for v in raw]


def _map(item: Convert | None) -> Convert:
    # Arrow takes a map as pairs.
    return lambda raw: [(k, v if item is None else item(v)) for k, v in raw.items()]


def _record(avro: AvroType) -> Convert | None:
    inner = {f.name: c for f in avro.fields if (c := converter(f.type)) is not None}
    if not inner:
        return None
    return lambda raw: {name: inner[name](value) if name in inner else value for name, value in raw.items()}


def _union(avro: AvroType) -> Convert:
    values = avro.values
    if len(values) == 1:
        only = converter(values[0])

        def optional(raw: Any) -> Any:
            plain = raw[1] if isinstance(raw, tuple) else raw
            return plain if plain is None or only is None else only(plain)

        return optional

    inner = [converter(branch) for branch in values]

    def member(raw: Any) -> Any:
        if raw is None:
            return None
        index = _branch_of(raw, values)
        plain = raw[1] if isinstance(raw, tuple) else raw
        convert = inner[index]
        return {f"member{index}": plain if convert is None else convert(plain)}

    return member


def _branch_of(raw: Any, branches: tuple[AvroType, ...]) -> int:
    if isinstance(raw, tuple):
        for index, branch in enumerate(branches):
            if branch.name == raw[0]:
                return index
    else:
        for kind in _BRANCHES.get(type(raw), ()):
            for index, branch in enumerate(branches):
                if branch.kind == kind:
                    return index
    raise SchemaError(f"a value of type {type(raw).__name__} is in no branch of its union")


def default_value(avro: AvroType, default: Any) -> Any:
    """Returns a default's JSON as fastavro would read it (design: a union's default is of the first branch that accepts
    it).
    """
    if avro.kind in ("bytes", "fixed"):
        return default.encode("latin-1")
    if avro.kind in ("float", "double"):
        return float(default)
    if avro.kind == "array":
        return [default_value(avro.inner, v) for v in default]
    if avro.kind == "map":
        return {k: default_value(avro.inner, v) for k, v in default.items()}
    if avro.kind == "record":
        return {f.name: default_value(f.type, _field_default(avro, f.name, f.default, default)) for f in avro.fields}
    if avro.kind == "union":
        return _union_default(avro, default)
    return default


def _field_default(avro: AvroType, name: str, own: Any, given: Any) -> Any:
    value = given.get(name, own)
    if value is MISSING:
        raise SchemaError(f"the default of record {avro.name} has no field {name}")
    return value


def _union_default(avro: AvroType, default: Any) -> Any:
    for branch in avro.branches:
        if _takes(branch, default):
            value = default_value(branch, default)
            return (branch.name, value) if branch.name else value
    raise SchemaError(f"the default {default!r} is in no branch of its union")


def _takes(branch: AvroType, default: Any) -> bool:
    if isinstance(default, bool):
        return branch.kind == "boolean"
    if default is None:
        return branch.kind == "null"
    if branch.kind == "enum":
        return default in branch.symbols
    kinds: dict[str, type | tuple[type, ...]] = {
        "int": int, "long": int, "float": (int, float), "double": (int, float), "string": str, "bytes": str,
        "fixed": str, "array": list, "map": dict, "record": dict,
    }  # fmt: skip
    return branch.kind in kinds and isinstance(default, kinds[branch.kind])
