"""The normalized text of an Avro schema, the same for all schemas of one meaning: `normalize=true` of Confluent's
registry.

It is the canonical text in which aliases (by their full names) and properties are sorted, the names within a property's
value and a default's too. A default is written as its type requires (`7.0` for a `float`), the empty `doc` of a type is
left out, an `error` is a `record`, and a valid logical type comes before the other properties.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final

from klamm.core.errors import SchemaError

from ..java_json import dumps
from .canonical import canonical_text
from .defaults import default_value
from .model import AvroType, types_of
from .parsing import RESERVED, RESERVED_IN_FIELDS, logical_attributes

_WITHOUT_LOGICAL: Final = frozenset({"avro.java.string", "java-class", "java-key-class", "java-element-class"})
"""Properties of a type beside which Java's Avro ignores a logical type, if they are text."""
_TYPES: Final = frozenset({"items", "values", "type"})
"""Attributes whose value is a type."""


def normalized_text(text: str, root: AvroType, known: Iterable[str] = ()) -> str:
    """Returns the normalized text of a schema that `check_new` accepts; `root` is the parsed schema; `known` and the
    errors are those of `canonical_text`."""
    records = {avro.name: avro for avro in types_of(root) if avro.kind == "record"}
    canonical = canonical_text(text, known)
    try:
        return dumps(_Printer(records).of(json.loads(canonical), ""))
    except RecursionError as error:
        raise SchemaError("not an Avro schema: a property is nested too deeply") from error


class _Printer:
    """`space` is the enclosing namespace, empty for none."""

    def __init__(self, records: Mapping[str, AvroType]) -> None:
        self._records = records

    def of(self, raw: Any, space: str) -> Any:
        if isinstance(raw, list):
            return [self.of(branch, space) for branch in raw]
        if not isinstance(raw, dict):
            return raw
        own = RESERVED | ({"default"} if raw["type"] == "enum" else set())
        space = raw.get("namespace", space)
        made = {key: self.of(raw[key], space) if key in _TYPES else raw[key] for key in raw if key in own}
        if raw["type"] == "error":
            made["type"] = "record"
        if "fields" in raw:
            types = {field.name: field.type for field in self._records[_full(raw["name"], space)].fields}
            made["fields"] = [self._field(field, types[field["name"]], space) for field in raw["fields"]]
        aliases = sorted(made.pop("aliases", ()), key=lambda name: _full(name, space))
        if not made.get("doc"):
            made.pop("doc", None)
        return {**made, **_properties(raw, own), **({"aliases": aliases} if aliases else {})}

    def _field(self, raw: dict[str, Any], avro: AvroType, space: str) -> dict[str, Any]:
        made = {key: part for key, part in raw.items() if key in RESERVED_IN_FIELDS}
        made["type"] = self.of(raw["type"], space)
        if "default" in raw:
            made["default"] = _default(avro, raw["default"])
        if "aliases" in raw:
            made["aliases"] = sorted(raw["aliases"])
        return made | {key: _sorted(raw[key]) for key in sorted(raw) if key not in made}


def _full(name: str, space: str) -> str:
    return f"{space}.{name}" if space and "." not in name else name


def _properties(raw: Mapping[str, Any], own: frozenset[str] | set[str]) -> dict[str, Any]:
    found = logical_attributes(raw, raw["type"], raw.get("size", 0))
    if not found or any(isinstance(raw.get(name), str) for name in _WITHOUT_LOGICAL):
        first: list[str] = []
    else:
        first = [name for name in ("logicalType", "precision") if name in raw]
        first += ["scale"] if found.get("scale") else []
    names = [*first, *sorted(raw)]
    return {name: _sorted(raw[name]) for name in names if name not in own}


def _sorted(value: Any) -> Any:
    if isinstance(value, list):
        return [_sorted(part) for part in value]
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


def _default(avro: AvroType, value: Any) -> Any:
    """Returns the JSON of a default in the one form that its type has."""
    if avro.kind == "union":
        return _default(next((branch for branch in avro.branches if _fits(branch, value)), avro.branches[0]), value)
    if avro.kind in ("float", "double") and isinstance(value, int | float):
        return _single(float(value)) if avro.kind == "float" else float(value)
    if avro.kind == "array":
        return [_default(avro.inner, part) for part in value]
    if avro.kind == "map":
        return {key: _default(avro.inner, value[key]) for key in sorted(value)}
    if avro.kind == "record":
        types = {field.name: field.type for field in avro.fields}
        return {key: _default(types[key], part) if key in types else part for key, part in sorted(value.items())}
    return value


def _single(value: float) -> float:
    """Returns the number with the fewest digits that is the same `float` of 32 bits."""
    stored = struct.pack("<f", value)
    texts = (f"{value:.{digits}e}" for digits in range(9))
    return next((float(text) for text in texts if struct.pack("<f", float(text)) == stored), value)


def _fits(avro: AvroType, value: Any) -> bool:
    try:
        default_value(avro, value)
    except SchemaError:
        return False
    return True
