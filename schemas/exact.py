"""Checks for values that fastavro would change silently: a float in a field of whole numbers, a number too large."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

from klamm.core.errors import SchemaError

from .parsing import ParsedSchema

Check = Callable[[Any], None]
_BOUNDS = {"int": 2**31, "long": 2**63}


def exactness(schema: ParsedSchema) -> Check | None:
    """Returns a check of one plain value, which raises `SchemaError` with the field's name; None if nothing can be
    lost. Unions are left out: fastavro checks their branches itself. Recursive types are checked at their first level.
    """
    return _Checks(schema).of(schema.tree, "")


class _Checks:
    def __init__(self, schema: ParsedSchema) -> None:
        self._named = schema.named
        self._open: set[str] = set()

    def of(self, schema: Any, at: str) -> Check | None:
        if isinstance(schema, str):
            schema = self._named.get(schema, schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(schema, list) or (isinstance(schema, dict) and "logicalType" in schema):
            return None
        if kind in _BOUNDS:
            return _whole(kind, at)
        if kind == "record":
            return self._record(schema, at)
        if kind == "array" and (item := self.of(schema["items"], at + "[]")) is not None:
            return _each(item)
        if kind == "map" and (value := self.of(schema["values"], at + "{}")) is not None:
            return _each_value(value)
        return None

    def _record(self, schema: Any, at: str) -> Check | None:
        if schema["name"] in self._open:
            return None
        self._open.add(schema["name"])
        found = []
        for field in schema["fields"]:
            check = self.of(field["type"], f"{at}.{field['name']}" if at else field["name"])
            if check is not None:
                found.append((field["name"], check))
        self._open.discard(schema["name"])
        return _fields(found) if found else None


def _whole(kind: str, at: str) -> Check:
    limit = _BOUNDS[kind]

    def check(value: Any) -> None:
        if value.__class__ is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise SchemaError(f"field {at}: expected {kind}, got {value!r}")
        if not -limit <= int(value) < limit:
            raise SchemaError(f"field {at}: {value} is too large for {kind}")

    return check


def _each(item: Check) -> Check:
    def check(values: Any) -> None:
        for value in values:
            item(value)

    return check


def _each_value(item: Check) -> Check:
    def check(values: Any) -> None:
        for value in values.values():
            item(value)

    return check


def _fields(found: list[tuple[str, Check]]) -> Check:
    def check(record: Any) -> None:
        for name, field_check in found:
            if name in record:  # a missing field has a default, or fastavro refuses it
                field_check(record[name])

    return check
