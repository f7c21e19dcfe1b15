"""A value in the judge's form as Python has it in Klamm, and the comparison of what Klamm read with it."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from . import rules
from .schemas import kind_of
from .values import double_hex, float_hex, is_decimal

Json = Any
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TICK: Final = {"millis": 10**6, "micros": 10**3, "nanos": 1}
_FIRST: Final = -719_162 * 86_400 * 10**6
_LAST: Final = 2_932_897 * 86_400 * 10**6 - 1
"""The microseconds of Python's first and last datetime."""


def python_value(schema: Json, value: Json, named: Mapping[str, Json], names: bool = True) -> Any:
    """Returns what an application sends for a value; what Python has no object for stays as it is stored. `names`: the
    value of a union's branch is (name, value)."""
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        branch = schema[value[0]]
        plain = python_value(branch, value[1], named, names)
        return (branch_name(branch, named), plain) if names and value[1] is not None else plain
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        return python_value(kind, value, named, names)
    if kind == "record":
        fields = schema["fields"]
        return {f["name"]: python_value(f["type"], v, named, names) for f, v in zip(fields, value, strict=True)}
    if kind == "array":
        return [python_value(schema["items"], item, named, names) for item in value]
    if kind == "map":
        return {key: python_value(schema["values"], item, named, names) for key, item in value}
    if kind == "float":
        return struct.unpack(">f", bytes.fromhex(value))[0]
    if kind == "double":
        return struct.unpack(">d", bytes.fromhex(value))[0]
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return _python_leaf(schema, kind, logical, value)


def branch_name(branch: Json, named: Mapping[str, Json]) -> str:
    """Returns the full name of a named type, the kind of another."""
    if isinstance(branch, dict) and "name" in branch:
        return str(branch["name"])
    return branch if isinstance(branch, str) and branch in named else kind_of(branch)


def _python_leaf(schema: Json, kind: str, logical: str | None, value: Json) -> Any:
    if kind in ("bytes", "fixed"):
        raw = bytes.fromhex(value)
        return (
            decimal_of(int.from_bytes(raw, "big", signed=True), schema.get("scale", 0)) if is_decimal(schema) else raw
        )
    if logical == "uuid" and kind == "string":
        try:
            return UUID(value)
        except ValueError:
            return value
    if kind == "int" and logical == "date" and _FIRST <= value * 86_400 * 10**6 <= _LAST:
        return (EPOCH + dt.timedelta(days=value)).date()
    if (kind, logical) in (("int", "time-millis"), ("long", "time-micros")):
        micros = value * 1000 if kind == "int" else value
        return (EPOCH + dt.timedelta(microseconds=micros)).time() if 0 <= micros < 86_400 * 10**6 else value
    if kind == "long" and logical is not None and "timestamp-" in logical and not logical.endswith("nanos"):
        micros = value * _TICK[logical.rpartition("-")[2]] // 1000
        if not _FIRST <= micros <= _LAST:
            return value
        instant = EPOCH + dt.timedelta(microseconds=micros)
        return instant.replace(tzinfo=None) if logical.startswith("local") else instant
    return value


def decimal_of(unscaled: int, scale: int) -> Decimal:
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


@dataclass(frozen=True, slots=True)
class Part:
    """One place at which two values differ, or at which Klamm has a form of its own, by the rule of that name."""

    where: str
    java: Any
    klamm: Any
    rule: str | None = None


class Reading:
    """Compares a value that Klamm read by the reader's schema with Java's. `named` are the schema's named types."""

    def __init__(self, named: Mapping[str, Json]) -> None:
        self._named = named

    def compare(self, schema: Json, java: Json, klamm: Any, where: str = "") -> Iterator[Part]:
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            yield from self._union(schema, java, klamm, where)
            return
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            yield from self.compare(kind, java, klamm, where)
        elif kind == "record":
            fields = self._fields(klamm)
            if fields is None or set(fields) != {f["name"] for f in schema["fields"]}:
                yield Part(where, java, klamm)
                return
            for field, value in zip(schema["fields"], java, strict=True):
                yield from self.compare(field["type"], value, fields[field["name"]], f"{where}.{field['name']}")
        elif kind == "array":
            items = self._items(klamm)
            if items is None or len(items) != len(java):
                yield Part(where, java, klamm)
                return
            for one, other in zip(java, items, strict=True):
                yield from self.compare(schema["items"], one, other, f"{where}[]")
        elif kind == "map":
            pairs = self._pairs(klamm)
            if pairs is None or set(pairs) != {key for key, _ in java}:
                yield Part(where, java, klamm)
                return
            for key, value in java:
                yield from self.compare(schema["values"], value, pairs[key], f"{where}{{}}")
        else:
            yield from self._leaf(schema, kind, java, klamm, where)

    def _leaf(self, schema: Json, kind: str, java: Json, klamm: Any, where: str) -> Iterator[Part]:
        matches, rule = self.leaf(schema, kind, java, klamm)
        if not matches:
            yield Part(where, java, klamm)
        elif rule is not None:
            yield Part(where, java, klamm, rule)

    def _union(self, schema: list[Json], java: Json, klamm: Any, where: str) -> Iterator[Part]:
        raise NotImplementedError

    def _fields(self, klamm: Any) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def _items(self, klamm: Any) -> list[Any] | None:
        raise NotImplementedError

    def _pairs(self, klamm: Any) -> Mapping[str, Any] | None:
        raise NotImplementedError

    def leaf(self, schema: Json, kind: str, java: Json, klamm: Any) -> tuple[bool, str | None]:
        """Returns whether the two are one value, and the rule by which Klamm's form differs."""
        raise NotImplementedError


class RecordReading(Reading):
    """Python values, as `poll` returns them."""

    def _union(self, schema: list[Json], java: Json, klamm: Any, where: str) -> Iterator[Part]:
        branch = schema[java[0]]
        if isinstance(klamm, tuple) and len(klamm) == 2:
            if klamm[0] != branch_name(branch, self._named):
                yield Part(where, java, klamm)
                return
            klamm = klamm[1]
        yield from self.compare(branch, java[1], klamm, where)

    def _fields(self, klamm: Any) -> Mapping[str, Any] | None:
        return {name: item for name, item in klamm.items() if name != "-type"} if isinstance(klamm, dict) else None

    def _items(self, klamm: Any) -> list[Any] | None:
        return klamm if isinstance(klamm, list) else None

    def _pairs(self, klamm: Any) -> Mapping[str, Any] | None:
        return klamm if isinstance(klamm, dict) else None

    def leaf(self, schema: Json, kind: str, java: Json, klamm: Any) -> tuple[bool, str | None]:
        if isinstance(java, dict) and "unreadable" in java:
            return self.leaf(kind, kind, java["unreadable"], klamm)[0], rules.NO_VALUE
        if isinstance(java, dict):
            return _python_logical(schema, java, klamm)
        if kind in ("float", "double"):
            return isinstance(klamm, float) and (float_hex if kind == "float" else double_hex)(klamm) == java, None
        if kind in ("bytes", "fixed"):
            return isinstance(klamm, bytes) and klamm.hex() == java, None
        return type(klamm) is type(java) and klamm == java, None


def _python_logical(schema: Json, java: Json, klamm: Any) -> tuple[bool, str | None]:
    if "decimal" in java:
        wanted = decimal_of(int(java["decimal"]), java["scale"])
        return isinstance(klamm, Decimal) and klamm.as_tuple() == wanted.as_tuple(), None
    if "uuid" in java:
        return klamm == UUID(java["uuid"]), None
    if "date" in java:
        days = java["date"]
        if not _FIRST <= days * 86_400 * 10**6 <= _LAST:
            return type(klamm) is int and klamm == days, rules.YEARS
        return type(klamm) is dt.date and klamm == (EPOCH + dt.timedelta(days=days)).date(), None
    if "time" in java:
        return klamm == (EPOCH + dt.timedelta(microseconds=java["time"] // 1000)).time(), None
    nanos = int(java.get("instant", java.get("local")))
    tick = _TICK[schema["logicalType"].rpartition("-")[2]]
    if tick == 1:
        return type(klamm) is int and klamm == nanos, rules.NANOS
    if not _FIRST <= nanos // 1000 <= _LAST:
        return type(klamm) is int and klamm == nanos // tick, rules.YEARS
    wanted_time = EPOCH + dt.timedelta(microseconds=nanos // 1000)
    if "local" in java:
        wanted_time = wanted_time.replace(tzinfo=None)
    same_zone = isinstance(klamm, dt.datetime) and (klamm.tzinfo is None) == ("local" in java)
    return same_zone and klamm == wanted_time, None


class ColumnReading(Reading):
    """Arrow's scalars, as `poll_arrow`, Spark and loads have them."""

    def _union(self, schema: list[Json], java: Json, klamm: Any, where: str) -> Iterator[Part]:
        branch = schema[java[0]]
        values = [one for one in schema if self._kind(one) != "null"]
        if self._kind(branch) == "null":
            if klamm.is_valid:
                yield Part(where, java, klamm)
        elif len(values) == 1:
            yield from self.compare(branch, java[1], klamm, where)
        else:
            own = f"member{[i for i, one in enumerate(schema) if self._kind(one) != 'null'].index(java[0])}"
            fields = self._fields(klamm)
            if fields is None or [name for name, item in fields.items() if item.is_valid] != [own]:
                yield Part(where, java, klamm)
            else:
                yield from self.compare(branch, java[1], fields[own], f"{where}.{own}")

    def _kind(self, schema: Json) -> str:
        return kind_of(self._named.get(schema, schema) if isinstance(schema, str) else schema)

    def _fields(self, klamm: Any) -> Mapping[str, Any] | None:
        return dict(klamm.items()) if isinstance(klamm, pa.StructScalar) and klamm.is_valid else None

    def _items(self, klamm: Any) -> list[Any] | None:
        return list(klamm.values) if isinstance(klamm, pa.ListScalar) and klamm.is_valid else None

    def _pairs(self, klamm: Any) -> Mapping[str, Any] | None:
        if not (isinstance(klamm, pa.MapScalar) and klamm.is_valid):
            return None
        return {pair[0].as_py(): pair[1] for pair in klamm.values}

    def leaf(self, schema: Json, kind: str, java: Json, klamm: Any) -> tuple[bool, str | None]:
        if isinstance(java, dict) and "unreadable" in java:
            return self.leaf(kind, kind, java["unreadable"], klamm)[0], rules.NO_VALUE
        if java is None or not klamm.is_valid:
            return java is None and not klamm.is_valid, None
        if isinstance(java, dict):
            return _arrow_logical(schema, java, klamm)
        if isinstance(klamm, (pa.FloatScalar, pa.DoubleScalar)):
            return (float_hex if kind == "float" else double_hex)(klamm.as_py()) == java, None
        value = klamm.as_py()
        if kind in ("bytes", "fixed"):
            return isinstance(value, bytes) and value.hex() == java, None
        return type(value) is type(java) and value == java, None


def _arrow_logical(schema: Json, java: Json, klamm: Any) -> tuple[bool, str | None]:
    if "decimal" in java:
        unscaled = int(java["decimal"])
        if schema["precision"] > 38:
            return int.from_bytes(klamm.as_py(), "big", signed=True) == unscaled, rules.LONG_DECIMALS
        wanted = decimal_of(unscaled, java["scale"])
        return isinstance(klamm, pa.Decimal128Scalar) and klamm.as_py() == wanted and klamm.type.scale == java[
            "scale"
        ], None
    if "uuid" in java:
        if schema["type"] == "fixed":
            return klamm.as_py() == UUID(java["uuid"]).bytes, rules.FIXED_UUID
        return str(klamm.as_py()).lower() == java["uuid"], rules.STORED
    if "date" in java:
        return isinstance(klamm, pa.Date32Scalar) and klamm.value == java["date"], None
    if "time" in java:
        tick = _TICK[schema["logicalType"].rpartition("-")[2]]
        return klamm.as_py() == java["time"] // tick, rules.STORED
    nanos = int(java.get("instant", java.get("local")))
    if schema["logicalType"].endswith("nanos"):
        return klamm.as_py() == nanos, rules.NANOS
    same_zone = isinstance(klamm, pa.TimestampScalar) and (klamm.type.tz is None) == ("local" in java)
    return same_zone and klamm.value * 1000 == nanos, None
