"""Avro's binary encoding: of numbers, and of stored values by their type."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from ..logical import WHOLE, Convert, writer_of
from ..model import AvroType

Put = Callable[[bytes], None]
Encode = Callable[[Any, Put], None]
"""Encodes a value, calling `Put` with each piece."""

_ONE_DIGIT: Final = 0x40
"""The first length that takes two bytes."""
_TWO_DIGITS: Final = 0x4000
_LAST: Final = [bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in range(_TWO_DIGITS)]
_MORE: Final = [bytes([n & 127 | 128, n >> 7 | 128]) for n in range(_TWO_DIGITS)]
_float: Final = struct.Struct("<f").pack
_double: Final = struct.Struct("<d").pack


def varint(number: int) -> bytes:
    """Returns the encoding of an `int` or a `long`: zigzag, then digits of 7 bits, two of which a table gives at a
    time."""
    number = number << 1 if number >= 0 else ~number << 1 | 1
    if number < _TWO_DIGITS:
        return _LAST[number]
    made = _MORE[number & 0x3FFF]
    number >>= 14
    while number >= _TWO_DIGITS:
        made += _MORE[number & 0x3FFF]
        number >>= 14
    return made + _LAST[number]


def counted(data: bytes) -> bytes:
    return varint(len(data)) + data


def of_stored(avro: AvroType) -> Callable[[Any], bytes]:
    """Returns the encoding of a stored value of a primitive, an enum or a fixed."""
    match avro.kind:
        case "null":
            return lambda _stored: b""
        case "boolean":
            return lambda stored: b"\1" if stored else b"\0"
        case "int" | "long":
            return varint
        case "float":
            return _float
        case "double":
            return _double
        case "string":
            return lambda stored: counted(stored.encode())
        case "bytes":
            return counted
        case "enum":
            return {symbol: varint(index) for index, symbol in enumerate(avro.symbols)}.__getitem__
    return bytes


def leaf(avro: AvroType, at: str) -> Encode:
    """Returns the encoding of a Python value of a primitive, an enum or a fixed; it raises as `writer_of` does."""
    check = writer_of(avro, at)
    if not avro.logical:
        match avro.kind:
            case "int" | "long":
                return _whole(check, WHOLE[avro.kind])
            case "string":
                return _text(check)
            case "double":
                return _number(check)
    encoded = of_stored(avro)
    return lambda value, put: put(encoded(check(value)))


def _whole(check: Convert, limit: int) -> Encode:
    def encode(value: Any, put: Put) -> None:
        if value.__class__ is not int or not -limit <= value < limit:
            value = check(value)
        put(varint(value))

    return encode


def _text(check: Convert) -> Encode:
    def encode(value: Any, put: Put) -> None:
        if value.__class__ is not str or not value.isascii():
            value = check(value)
        data = value.encode()
        size = len(data)
        put((_LAST[size << 1] if size < _ONE_DIGIT else varint(size)) + data)

    return encode


def _number(check: Convert) -> Encode:
    return lambda value, put: put(_double(value if value.__class__ is float else check(value)))


def default_bytes(avro: AvroType, stored: Any) -> bytes:
    """Returns the encoding of what `default_value` returned."""
    match avro.kind:
        case "record":
            return b"".join(default_bytes(field.type, stored[field.name]) for field in avro.fields)
        case "array":
            items = [default_bytes(avro.inner, item) for item in stored]
            return blocks(items)
        case "map":
            items = [counted(key.encode()) + default_bytes(avro.inner, item) for key, item in stored.items()]
            return blocks(items)
        case "union":
            return varint(stored[0]) + default_bytes(avro.branches[stored[0]], stored[1])
    return of_stored(avro)(stored)


def blocks(items: list[bytes]) -> bytes:
    return b"".join([varint(len(items)), *items, b"\0"]) if items else b"\0"
