"""Messages made from their schema, with the position of every length, so that each length can be falsified.

The kio classes describe the shape by which the broker reads; no kio writer is used, since it would refuse false values.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, Union, get_args, get_origin

from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.bounds_check import write_uvarint
from klamm.core.protocol.headers import request_frame
from klammtest.apis import SERVED

SIZES = {
    "int8": 1, "bool": 1, "int16": 2, "error_code": 2, "int32": 4, "timedelta_i32": 4, "int64": 8, "timedelta_i64": 8,
    "datetime_i64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip
LIES_OF_INT = (2**31 - 1, -1, -(2**31), 2**24, 32_767, 0)
LIES_OF_VARINT = (
    write_uvarint(2**31 - 1), write_uvarint(2**32 - 1), write_uvarint(2**24), b"\0", b"\x80" * 4 + b"\x10",
    b"\xff" * 5, b"\xff" * 10, b"\x80" * 60,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Length:
    """A length or count in a message: `size` bytes at `at`; size 0 is a varint of one byte."""

    at: int
    size: int

    def lies(self) -> Iterator[bytes]:
        if self.size == 0:
            yield from LIES_OF_VARINT
            return
        for value in LIES_OF_INT:
            low, high = -(1 << 8 * self.size - 1), (1 << 8 * self.size - 1) - 1
            yield struct.pack({2: ">h", 4: ">i"}[self.size], min(max(value, low), high))


@dataclass(slots=True)
class Forged:
    """A well-formed message: its bytes, and the positions of its lengths."""

    data: bytearray = field(default_factory=bytearray)
    lengths: list[Length] = field(default_factory=list)

    def length(self, value: int, flexible: bool, size: int) -> None:
        """Writes a length, plus one in a flexible message; `size` is that of the fixed kind."""
        self.lengths.append(Length(len(self.data), 0 if flexible else size))
        self.data += write_uvarint(value + 1) if flexible else struct.pack({2: ">h", 4: ">i"}[size], value)

    def lied(self) -> Iterator[bytes]:
        """Yields the message with one length replaced, for each length."""
        for length in self.lengths:
            for lie in length.lies():
                yield bytes(self.data[: length.at]) + lie + bytes(self.data[length.at + max(length.size, 1) :])


def requests() -> Iterator[tuple[ApiKey, int]]:
    """Yields every API and version that is served."""
    for api, (low, high) in SERVED.items():
        for version in range(low, high + 1):
            yield api, version


def forge_request(api: ApiKey, version: int, chance: random.Random) -> Forged:
    return forge(messages.request(api, version).root, chance)


def forge(root: type[Any], chance: random.Random) -> Forged:
    """Makes a message of this kio class with one or two elements in every array, and sometimes tags, known and
    unknown."""
    forged = Forged()
    _entity(forged, root, chance)
    return forged


def framed(api: ApiKey, version: int, body: bytes, correlation_id: int = 1) -> bytes:
    return request_frame(api, version, correlation_id, "forged", body)


def _entity(forged: Forged, cls: Any, chance: random.Random) -> None:
    flexible: bool = cls.__flexible__
    for f in fields(cls):
        if "tag" not in f.metadata:
            _value(forged, f.type, f.metadata.get("kafka_type"), flexible, chance)
    if flexible:
        _tags(forged, [f for f in fields(cls) if "tag" in f.metadata], chance)


def _tags(forged: Forged, known: list[Any], chance: random.Random) -> None:
    chosen = [f for f in sorted(known, key=lambda f: f.metadata["tag"]) if chance.random() < 0.5]
    unknown = chance.randrange(3)
    forged.lengths.append(Length(len(forged.data), 0))
    forged.data += write_uvarint(len(chosen) + unknown)
    for f in chosen:
        inner = Forged()
        _value(inner, f.type, f.metadata.get("kafka_type"), True, chance)
        _tag(forged, f.metadata["tag"], inner)
    for n in range(unknown):
        _tag(forged, 100 + n, Forged(bytearray(chance.randbytes(chance.randrange(20)))))


def _tag(forged: Forged, number: int, inner: Forged) -> None:
    forged.data += write_uvarint(number)
    forged.lengths.append(Length(len(forged.data), 0))
    size = write_uvarint(len(inner.data))
    if len(size) > 1:  # a length of several bytes is not falsified: `lied` replaces one byte
        forged.lengths.pop()
    forged.data += size
    begin = len(forged.data)
    forged.data += inner.data
    forged.lengths += [Length(begin + length.at, length.size) for length in inner.lengths]


def _value(forged: Forged, kind: Any, kafka_type: str | None, flexible: bool, chance: random.Random) -> None:
    kind = _inner(kind)
    if get_origin(kind) is not tuple:
        if kafka_type is None:
            _entity(forged, kind, chance)
        else:
            _scalar(forged, kafka_type, flexible, chance)
        return
    element, count = _inner(get_args(kind)[0]), chance.randint(1, 2)
    forged.length(count, flexible, 4)
    for _ in range(count):
        if kafka_type is None:
            _entity(forged, element, chance)
        else:
            _scalar(forged, kafka_type, flexible, chance)


def _scalar(forged: Forged, kafka_type: str, flexible: bool, chance: random.Random) -> None:
    size = SIZES.get(kafka_type)
    if size is None:
        text = chance.choice((b"forged", b"other", b"x" * 40, b""))
        forged.length(len(text), flexible, 2 if kafka_type == "string" else 4)
        forged.data += text
    elif kafka_type == "float64":
        forged.data += struct.pack(">d", chance.random())
    elif size == 16:
        forged.data += chance.randbytes(16)
    else:  # small numbers: some are waiting times
        forged.data += chance.choice((0, 1, 2, 60)).to_bytes(size, "big")


def _inner(kind: Any) -> Any:
    """Returns `X` for `X | None`."""
    if get_origin(kind) in (UnionType, Union):
        return next(arm for arm in get_args(kind) if arm is not type(None))
    return kind
