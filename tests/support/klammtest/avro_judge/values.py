"""Generates values of a schema in the form of `java/AvroJudge.java`, and defaults in the form of the specification."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from random import Random
from typing import Any, Final

Json = Any

INT: Final = (0, 1, -1, 63, 64, -65, 127, 8191, 8192, 2**31 - 1, -(2**31))
LONG: Final = (*INT, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63))
DOUBLE: Final = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    1e-320,
    5e-324,
    1.7976931348623157e308,
    2.0**53,
    float("inf"),
    float("-inf"),
    float("nan"),
)
FLOAT: Final = (0.0, -0.0, 1.0, -1.5, 3.4028234663852886e38, 1e-45, 2.0**24, float("inf"), float("-inf"), float("nan"))
STRING: Final = ("", "a", "text", "é", "\u20ac", "\U0001f600", "a\0b", "x" * 70, '"quoted"\n', "A", "member0")
DAY: Final = 86_400
_YEAR_1: Final = -719_162
_YEAR_9999: Final = 2_932_896
"""The days of 0001-01-01 and 9999-12-31."""
_TICKS: Final = {"millis": 1000, "micros": 10**6, "nanos": 10**9}
MAX_DEPTH: Final = 6


def float_hex(number: float) -> str:
    return "7fc00000" if number != number else struct.pack(">f", number).hex()


def double_hex(number: float) -> str:
    return "7ff8000000000000" if number != number else struct.pack(">d", number).hex()


class EndlessDefaultError(Exception):
    """A record that contains itself in the first branch of a union, or as a field, has no default."""


def is_decimal(schema: Json) -> bool:
    """Returns True for a decimal that is valid; Avro ignores another one."""
    if (
        not isinstance(schema, dict)
        or schema.get("logicalType") != "decimal"
        or schema["type"] not in ("bytes", "fixed")
    ):
        return False
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not (precision > 0 and 0 <= scale <= precision):
        return False
    return bool(schema["type"] == "bytes" or precision <= len(str(2 ** (8 * schema["size"] - 1) - 1)) - 1)


class ValueMaker:
    """Makes values. `foreign` ones are of the type, but Klamm refuses to write them: a time beyond Python's years, a
    text that is no UUID, a decimal of too many digits."""

    def __init__(self, rng: Random, named: Mapping[str, Json], foreign: float = 0.0) -> None:
        self._rng = rng
        self._named = named
        self._foreign = foreign
        self.is_foreign = False
        """Whether a value made so far is."""

    def value(self, schema: Json, depth: int = 0) -> Json:
        rng = self._rng
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            return self._union(schema, depth)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            return self.value(kind, depth)
        if kind == "record":
            return [self.value(field["type"], depth + 1) for field in schema["fields"]]
        if kind == "enum":
            return rng.choice(schema["symbols"])
        if kind == "array":
            return [self.value(schema["items"], depth + 1) for _ in range(self._length(depth))]
        if kind == "map":
            keys = rng.sample(STRING, self._length(depth))
            return [[key, self.value(schema["values"], depth + 1)] for key in keys]
        if isinstance(schema, dict) and schema.get("logicalType"):
            return self._logical(schema, kind)
        return self._primitive(schema, kind)

    def _length(self, depth: int) -> int:
        return 0 if depth > MAX_DEPTH else self._rng.choice((0, 1, 1, 2, 3))

    def _union(self, schema: list[Json], depth: int) -> Json:
        if depth > MAX_DEPTH and "null" in schema:
            return [schema.index("null"), None]
        branch = self._rng.randrange(len(schema))
        return [branch, self.value(schema[branch], depth + 1)]

    def _primitive(self, schema: Json, kind: str) -> Json:
        rng = self._rng
        if kind == "null":
            return None
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "int":
            return rng.choice(INT)
        if kind == "long":
            return rng.choice(LONG)
        if kind == "float":
            return float_hex(rng.choice(FLOAT))
        if kind == "double":
            return double_hex(rng.choice(DOUBLE))
        if kind == "string":
            return rng.choice(STRING)
        size = schema["size"] if kind == "fixed" else rng.choice((0, 1, 2, 5, 256))
        return (
            bytes(range(256)).hex()
            if size == 256
            else rng.randbytes(size).hex()
            if rng.random() < 0.8
            else b"text!".ljust(size, b"x")[:size].hex()
        )

    def _logical(self, schema: Json, kind: str) -> Json:
        rng, logical = self._rng, schema["logicalType"]
        foreign = rng.random() < self._foreign
        if is_decimal(schema):
            return self._decimal(schema, foreign)
        if logical == "uuid" and kind == "string":
            self.is_foreign |= foreign
            return "not-a-uuid" if foreign else str(uuid.UUID(int=rng.getrandbits(128)))
        whole = (kind, logical)
        if whole == ("int", "date"):
            self.is_foreign |= foreign
            return (
                rng.choice((2**31 - 1, -(2**31), _YEAR_9999 + 1))
                if foreign
                else rng.choice((0, -1, 1, _YEAR_1, _YEAR_9999, 20_000))
            )
        if whole in (("int", "time-millis"), ("long", "time-micros")):
            ticks = _TICKS[logical.rpartition("-")[2]]
            self.is_foreign |= foreign
            return rng.choice((-1, DAY * ticks)) if foreign else rng.choice((0, 1, DAY * ticks - 1, 12_345 * ticks + 7))
        if kind == "long" and "timestamp-" in logical:
            return self._timestamp(_TICKS[logical.rpartition("-")[2]], foreign)
        return self._primitive(schema, kind)

    def _timestamp(self, ticks: int, foreign: bool) -> int:
        rng = self._rng
        if ticks == 10**9:  # never a datetime
            return rng.choice((0, -1, 1, 10**18 + 1, 2**63 - 1, -(2**63), rng.randrange(-(2**60), 2**60)))
        if foreign:
            self.is_foreign = True
            return rng.choice((2**63 - 1, -(2**63), (_YEAR_9999 + 1) * DAY * ticks, _YEAR_1 * DAY * ticks - 1))
        return rng.choice(
            (
                0,
                -1,
                1,
                _YEAR_1 * DAY * ticks,
                (_YEAR_9999 + 1) * DAY * ticks - 1,
                rng.randrange(-(10**9), 2 * 10**9) * ticks + rng.randrange(ticks),
            )
        )

    def _decimal(self, schema: Json, foreign: bool) -> str:
        rng = self._rng
        limit = 10 ** schema["precision"] - 1
        number = rng.choice((0, 1, -1, limit, -limit, rng.randint(-limit, limit)))
        size = schema.get("size", 0) if schema["type"] == "fixed" else 0
        if foreign and (not size or limit * 10 + 9 < 2 ** (8 * size - 1)):
            self.is_foreign = True
            number = limit * 10 + 5
        length = size or (number if number >= 0 else ~number).bit_length() // 8 + 1
        return number.to_bytes(length, "big", signed=True).hex()

    def default(self, schema: Json, depth: int = 0) -> Json:
        """Returns a default in the specification's JSON; a union's is of its first branch."""
        rng = self._rng
        if isinstance(schema, str) and schema in self._named:
            schema = self._named[schema]
        if isinstance(schema, list):
            return self.default(schema[0], depth)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            return self.default(kind, depth)
        if kind == "record":
            if depth > 20:
                raise EndlessDefaultError
            return {
                field["name"]: self.default(field["type"], depth + 1)
                for field in schema["fields"]
                if "default" not in field or (depth < 8 and rng.random() < 0.5)
            }
        if kind == "array":
            return [self.default(schema["items"], depth + 1) for _ in range(self._length(depth))]
        if kind == "map":
            return {key: self.default(schema["values"], depth + 1) for key in rng.sample(STRING, self._length(depth))}
        value = self.value(schema, depth)
        if kind in ("bytes", "fixed"):
            return bytes.fromhex(value).decode("latin-1")
        if kind in ("float", "double"):
            return rng.choice((0.0, 1.0, -1.5, 0.1, 7, -3))
        return value
