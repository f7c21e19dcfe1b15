"""Kafka's primitive types, for what is read or written by hand: Produce, Fetch, the records of `__consumer_offsets`."""

from __future__ import annotations

import struct

from ..errors import ProtocolError
from .bounds_check import MAX_ELEMENTS, read_uvarint, write_uvarint

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")


class Reader:
    """A position in a message; flexible versions use compact forms and tagged fields. `ProtocolError` on bad input."""

    __slots__ = ("_data", "_elements", "flexible", "position")

    def __init__(self, data: memoryview, position: int, flexible: bool) -> None:
        self._data = data
        self.flexible = flexible
        self._elements = 0
        self.position = position

    def int16(self) -> int:
        return int(self._fixed(INT16))

    def int32(self) -> int:
        return int(self._fixed(INT32))

    def int64(self) -> int:
        return int(self._fixed(INT64))

    def _fixed(self, form: struct.Struct) -> int:
        try:
            (value,) = form.unpack_from(self._data, self.position)
        except struct.error as error:
            raise ProtocolError(f"the frame ends at byte {len(self._data)}, in the middle of a number") from error
        self.position += form.size
        return int(value)

    def _uvarint(self) -> int:
        try:
            value, self.position = read_uvarint(self._data, self.position)
        except IndexError as error:
            raise ProtocolError(f"the frame ends at byte {len(self._data)}, in the middle of a number") from error
        return value

    def _take(self, size: int) -> memoryview:
        end = self.position + size
        if size < 0 or end > len(self._data):
            raise ProtocolError(f"a length of {size} with {len(self._data) - self.position} bytes left")
        piece = self._data[self.position : end]
        self.position = end
        return piece

    def nullable_string(self) -> str | None:
        size = self._uvarint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string before byte {self.position} is not UTF-8") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise ProtocolError(f"a null string before byte {self.position}")
        return text

    def uuid(self) -> bytes:
        """Reads an id, as its 16 bytes."""
        return bytes(self._take(16))

    def nullable_bytes(self) -> memoryview | None:
        """Reads bytes as a view into the frame, not a copy."""
        size = self._uvarint() - 1 if self.flexible else self.int32()
        return None if size == -1 else self._take(size)

    def count(self) -> int:
        """Reads the number of an array's elements; null reads as none."""
        count = self._uvarint() - 1 if self.flexible else self.int32()
        if count > len(self._data) - self.position:
            raise ProtocolError(f"an array claims {count} elements, more than the frame holds")
        self._elements += max(count, 0)
        if self._elements > MAX_ELEMENTS:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one message")
        return max(count, 0)

    def tags(self) -> dict[int, memoryview]:
        """Reads a section of tagged fields: their bytes by tag. A version that is not flexible has none."""
        fields: dict[int, memoryview] = {}
        if self.flexible:
            count = self._uvarint()
            if count > len(self._data) - self.position:
                raise ProtocolError(f"{count} tagged fields, more than the frame holds")
            for _ in range(count):
                tag = self._uvarint()
                fields[tag] = self._take(self._uvarint())
        return fields


def string(text: str | None, flexible: bool) -> bytes:
    """Returns an encoded nullable string."""
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    return (write_uvarint(len(data) + 1) if flexible else INT16.pack(len(data))) + data


def tagged(number: int, field: bytes) -> bytes:
    """Returns one encoded tagged field, without the count that comes before all of them."""
    return write_uvarint(number) + write_uvarint(len(field)) + field


def array(count: int, flexible: bool) -> bytes:
    """Returns the encoded length of an array."""
    return write_uvarint(count + 1) if flexible else INT32.pack(count)
