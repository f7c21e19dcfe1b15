"""Kafka's primitive types in the records of `__consumer_offsets`: big-endian integers, strings and bytes.

A string is its length (int16, -1 for null) and UTF-8; bytes have an int32 length. In flexible versions both are
compact: the length + 1 as an unsigned varint, 0 for null; and tagged fields (KIP-482) end each structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct
from struct import error as StructError
from typing import Final, TypeVar

from ...errors import BrokerError, CorruptRecordError, ErrorCode

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
LONGEST_STRING: Final = 32_767
T = TypeVar("T")


def string(text: str | None) -> bytes:
    """Returns the encoded text. Raises `BrokerError` INVALID_REQUEST for a text that is too long."""
    if text is None:
        return INT16.pack(-1)
    raw = text.encode()
    if len(raw) > LONGEST_STRING:
        raise BrokerError(
            ErrorCode.invalid_request,
            f"{text[:20]!r}… has {len(raw)} bytes: a record of a group may have {LONGEST_STRING}",
        )
    return INT16.pack(len(raw)) + raw


def compact_string(text: str) -> bytes:
    raw = text.encode()
    return _unsigned_varint(len(raw) + 1) + raw


def tagged_fields(fields: Mapping[int, bytes]) -> bytes:
    """Returns the tagged fields that end a structure of a flexible version, by tag."""
    parts = [_unsigned_varint(len(fields))]
    for tag, raw in sorted(fields.items()):
        parts += [_unsigned_varint(tag), _unsigned_varint(len(raw)), raw]
    return b"".join(parts)


def _unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def blob(raw: bytes) -> bytes:
    return INT32.pack(len(raw)) + raw


class KafkaValueReader:
    """Reads one value after the other; raises `struct.error` if the data end too early (see `reading`)."""

    def __init__(self, data: bytes) -> None:
        self.flexible = False
        self._data = data
        self._pos = 0

    def int16(self) -> int:
        return self._fixed(INT16)

    def int32(self) -> int:
        return self._fixed(INT32)

    def int64(self) -> int:
        return self._fixed(INT64)

    def nullable_string(self) -> str | None:
        size = self._varint() - 1 if self.flexible else self.int16()
        return None if size < 0 else self._take(size).decode()

    def string(self) -> str:
        """Reads a string; null is read as empty."""
        return self.nullable_string() or ""

    def blob(self) -> bytes:
        """Reads bytes; null is read as empty."""
        size = self._varint() - 1 if self.flexible else self.int32()
        return self._take(max(size, 0))

    def array(self, element: Callable[[], T]) -> tuple[T, ...]:
        """Reads an array; null is read as empty."""
        size = self._varint() - 1 if self.flexible else self.int32()
        if size > len(self._data) - self._pos:
            raise StructError(f"{size} elements, {len(self._data) - self._pos} bytes are left")
        return tuple(element() for _ in range(size))

    def tagged(self) -> dict[int, bytes]:
        """Reads tagged fields, by tag; returns none if the version has none."""
        if not self.flexible:
            return {}
        fields: dict[int, bytes] = {}
        for _ in range(self._varint()):
            tag = self._varint()
            fields[tag] = self._take(self._varint())
        return fields

    def _fixed(self, kind: Struct) -> int:
        (value,) = kind.unpack(self._take(kind.size))
        return int(value)

    def _take(self, size: int) -> bytes:
        end = self._pos + size
        if end > len(self._data):
            raise StructError(f"{size} bytes, {len(self._data) - self._pos} are left")
        taken, self._pos = self._data[self._pos : end], end
        return taken

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            (byte,) = self._take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise StructError("a varint of more than 5 bytes")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translates errors of decoding to `CorruptRecordError`."""
    try:
        yield
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the {what} record cannot be read: {error}") from error
