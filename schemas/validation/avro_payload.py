"""Checks bytes by an Avro schema without making values of them, more strictly than fastavro reads them: an index of a
union or an enum below 0 is refused, text must be UTF-8, an int has 5 bytes at most, a boolean is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from klamm.core.errors import SchemaError

from ..avro.model import AvroType
from ..avro.parsing import parse

MAX_EMPTY: Final = 1_000_000
"""Items of an array that take no bytes (nulls): few bytes could claim any number of them."""
_FIXED: Final = {"float": 4, "double": 8}
_Skip = Callable[[bytes, int], int]
"""Returns the position after the value. Raises `IndexError` at the end of the data."""


class AvroPayload:
    """Implements `klamm.schemas.validation.payload.PayloadFormat`."""

    def __init__(self, text: str, references: Sequence[str]) -> None:
        self._root = parse(text, references).root
        self._skip = _Compiler().of(self._root)

    def name(self, _message: Sequence[int]) -> str | None:
        return self._root.name if self._root.kind == "record" else None

    def check(self, payload: bytes, start: int, _message: Sequence[int]) -> None:
        try:
            end = self._skip(payload, start)
        except IndexError:
            raise SchemaError(f"the payload of {len(payload) - start} bytes is truncated") from None
        except UnicodeDecodeError:
            raise SchemaError("the payload does not fit its schema: a string is not UTF-8") from None
        except RecursionError:
            raise SchemaError("the payload is nested too deeply") from None
        if end != len(payload):
            raise SchemaError(f"{len(payload) - end} bytes left over after the payload")


class _Compiler:
    def __init__(self) -> None:
        self._records: dict[int, _Skip] = {}
        self._empty: dict[int, bool] = {}
        """Whether the values of a record take no bytes."""

    def of(self, avro: AvroType) -> _Skip:
        if self._takes_nothing(avro):  # its records may be within each other 2^64 times
            return _null
        match avro.kind:
            case "record":
                return self._record(avro)
            case "union":
                return _union([self.of(branch) for branch in avro.branches])
            case "array" | "map":
                return self._items(avro)
            case "enum":
                return _enum(len(avro.symbols))
            case "fixed":
                return _fixed(avro.size)
            case "float" | "double":
                return _fixed(_FIXED[avro.kind])
        return _SIMPLE[avro.kind]

    def _record(self, avro: AvroType) -> _Skip:
        if id(avro) in self._records:
            return self._records[id(avro)]
        parts: list[_Skip] = []

        def skip(data: bytes, at: int) -> int:
            for part in parts:
                at = part(data, at)
            return at

        self._records[id(avro)] = skip  # before its fields: it may contain itself
        parts += [self.of(field.type) for field in avro.fields]
        return skip

    def _items(self, avro: AvroType) -> _Skip:
        item, keyed = self.of(avro.inner), avro.kind == "map"
        empty = not keyed and self._takes_nothing(avro.inner)

        def skip(data: bytes, at: int) -> int:
            none = 0
            while True:
                count, at = _long(data, at)
                if not count:
                    return at
                if count < 0:
                    count = -count
                    at = _int_of(data, at, 10)  # the block's size in bytes
                if empty:
                    none += count
                    if none > MAX_EMPTY:
                        raise SchemaError(f"an array claims {none} items that take no bytes; the limit is {MAX_EMPTY}")
                    continue
                for _ in range(count):
                    at = item(data, _string(data, at) if keyed else at)

        return skip

    def _takes_nothing(self, avro: AvroType) -> bool:
        """Returns True if every value of the type is written as no bytes."""
        if avro.kind == "record":
            if id(avro) not in self._empty:
                self._empty[id(avro)] = False  # a record that contains itself has no value
                self._empty[id(avro)] = all(self._takes_nothing(field.type) for field in avro.fields)
            return self._empty[id(avro)]
        return avro.kind == "null" or (avro.kind == "fixed" and avro.size == 0)


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), at
    value, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value >> 1 ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise SchemaError("the payload does not fit its schema: a number has more than 10 bytes")


def _int_of(data: bytes, at: int, most: int) -> int:
    for end in range(at, at + most):
        if data[end] < 128:
            return end + 1
    raise SchemaError(f"the payload does not fit its schema: a number has more than {most} bytes")


def _int(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 128 else _int_of(data, at, 5)


def _int64(data: bytes, at: int) -> int:
    return at + 1 if data[at] < 128 else _int_of(data, at, 10)


def _null(_data: bytes, at: int) -> int:
    return at


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise SchemaError(f"the payload does not fit its schema: a boolean is 0x{data[at]:02x}")
    return at + 1


def _bytes(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    end = at + size
    if size < 0:
        raise SchemaError(f"the payload does not fit its schema: a length is {size}")
    if end > len(data):
        raise IndexError
    return end


def _string(data: bytes, at: int) -> int:
    size, at = _long(data, at)
    end = at + size
    if size < 0:
        raise SchemaError(f"the payload does not fit its schema: a length is {size}")
    if end > len(data):
        raise IndexError
    data[at:end].decode()
    return end


def _fixed(size: int) -> _Skip:
    def skip(data: bytes, at: int) -> int:
        end = at + size
        if end > len(data):
            raise IndexError
        return end

    return skip


def _enum(symbols: int) -> _Skip:
    def skip(data: bytes, at: int) -> int:
        index, at = _long(data, at)
        if not 0 <= index < symbols:
            raise SchemaError(
                f"the payload does not fit its schema: an enum of {symbols} symbols has the index {index}"
            )
        return at

    return skip


def _union(branches: Sequence[_Skip]) -> _Skip:
    total = len(branches)

    def skip(data: bytes, at: int) -> int:
        index, at = _long(data, at)
        if not 0 <= index < total:
            raise SchemaError(f"the payload does not fit its schema: a union of {total} types has the index {index}")
        return branches[index](data, at)

    return skip


_SIMPLE: Final[dict[str, _Skip]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _int64,
    "bytes": _bytes,
    "string": _string,
}
