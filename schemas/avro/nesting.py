"""Bounds how deep a payload's values are nested. fastavro decodes nested values in nested C calls without a limit: 5 KB
of a type that contains itself end the process. So such payloads are checked first, with a stack in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from klamm.core.errors import SchemaError

from .model import AvroType

MAX_NESTING: Final = 1000
"""Records, arrays and maps within each other; `send` ends there too, at Python's recursion limit."""
_FIXED_SIZE: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def contains_itself(root: AvroType) -> bool:
    """Returns True if a value of the type may be nested without a bound."""
    return _meets(root, set(), set())


def _meets(avro: AvroType, inside: set[int], done: set[int]) -> bool:
    if id(avro) in inside:
        return True
    if id(avro) in done:
        return False
    inside.add(id(avro))
    found = any(_meets(part, inside, done) for part in avro.parts)
    inside.discard(id(avro))
    done.add(id(avro))
    return found


def check_nesting(avro: AvroType, data: memoryview) -> None:
    """Raises `SchemaError` if the payload's values are nested too deeply. Damaged bytes are left to the decoder."""
    walk = _Walk(data)
    waiting: list[Iterator[AvroType]] = [iter((avro,))]
    try:
        while waiting:
            part = next(waiting[-1], None)
            if part is None:
                waiting.pop()
                continue
            while part.kind == "union":
                part = part.branches[walk.long()]
            inner = walk.enter(part)
            if inner is not None:
                waiting.append(inner)
            if len(waiting) > MAX_NESTING + 1:
                raise SchemaError(f"values are nested deeper than {MAX_NESTING}")
    except IndexError:
        return


class _Walk:
    """A position in a payload. `IndexError` at its end."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def enter(self, avro: AvroType) -> Iterator[AvroType] | None:
        """Skips a value; of one with parts, returns the parts' types instead."""
        match avro.kind:
            case "record":
                return (field.type for field in avro.fields)
            case "array" | "map":
                return self._items(avro)
            case "string" | "bytes":
                self._skip(self.long())
            case "int" | "long" | "enum":
                self.long()
            case "fixed":
                self._skip(avro.size)
            case kind:
                self._skip(_FIXED_SIZE[kind])
        return None

    def _items(self, avro: AvroType) -> Iterator[AvroType]:
        while count := self.long():
            if count < 0:
                self.long()  # the size of the block in bytes
            for _ in range(abs(count)):
                if avro.kind == "map":
                    self._skip(self.long())
                yield avro.inner

    def _skip(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise IndexError

    def long(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number >> 1 ^ -(number & 1)
            shift += 7
