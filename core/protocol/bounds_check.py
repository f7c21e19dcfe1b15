"""The bounds check of a message: walks through it by its schema without building it.

It bounds element counts and finds unknown tagged fields. kio refuses a tag that it does not know; KIP-482 says that a
reader skips it. The check follows the same schema as kio (its dataclasses), so that unknown fields can be cut out and
the rest be read as usual. It compares the counts that arrays claim with the bytes that are present, because kio's
native reader trusts a claim and ends the process if there is not that much memory; and it counts their elements, so
that a frame of a million empty names is refused before it blocks the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

from ..errors import ProtocolError

MAX_ELEMENTS = 100_000
"""The most array elements in one message, at all levels together; a Fetch of 90,000 partitions still fits."""

_FIXED_SIZES = {
    "int8": 1,
    "bool": 1,
    "int16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_NULL_STRUCT = 0xFF
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


@dataclass(slots=True)
class BoundsCheck:
    """The state of one check: `cuts` are (start, end, replacement) pieces of the data, in order."""

    data: memoryview
    cuts: list[tuple[int, int, bytes]] = field(default_factory=list)
    elements: int = 0

    def count(self, elements: int, smallest: int, position: int) -> None:
        """Counts elements of at least `smallest` bytes each; raises `ProtocolError` if the data are too short for
        them."""
        self.elements += elements
        if elements * smallest > len(self.data) - position:
            raise ProtocolError(f"an array at byte {position} claims {elements} elements, more than the frame holds")
        if self.elements > MAX_ELEMENTS:
            raise ProtocolError(f"more than {MAX_ELEMENTS} array elements in one message")

    def remains(self, offset: int) -> bytes:
        """Returns `data[offset:]` without the pieces that were cut."""
        out = bytearray()
        position = offset
        for start, end, replacement in self.cuts:
            out += self.data[position:start]
            out += replacement
            position = end
        out += self.data[position:]
        return bytes(out)


Step = Callable[[BoundsCheck, int], int]
"""Returns the position after the field; it may be past the end, which the caller checks."""


def check_bounds(root: type[Any], data: memoryview, offset: int) -> BoundsCheck:
    """Checks one message of this kio class; raises `ProtocolError` if it exceeds the data or the bounds."""
    state = BoundsCheck(data)
    try:
        end = _entity(cast(Hashable, root))(state, offset)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"the frame ends in the middle of {root.__name__} v{root.__version__}") from error
    if end > len(data):
        raise ProtocolError(f"the frame ends in the middle of {root.__name__} v{root.__version__}")
    return state


def read_uvarint(data: memoryview | bytes | bytearray, position: int) -> tuple[int, int]:
    """Returns (value, next position) of an unsigned varint of at most 5 bytes; raises `ProtocolError` for a
    longer one.
    """
    value = data[position]
    if value < 0x80:
        return value, position + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise ProtocolError(f"a varint of more than 5 bytes before byte {position}")


def write_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@cache
def _entity(cls: Hashable) -> Step:
    """Returns the check of one struct, compiled once."""
    entity = cast("type[Any]", cls)
    flexible: bool = entity.__flexible__
    steps = [_field(f, flexible)[0] for f in fields(entity) if "tag" not in f.metadata]
    tags = {f.metadata["tag"]: _field(f, flexible)[0] for f in fields(entity) if "tag" in f.metadata}

    def run(state: BoundsCheck, position: int) -> int:
        for step in steps:
            position = step(state, position)
        return _tagged(state, position, tags) if flexible else position

    return run


def _tagged(state: BoundsCheck, position: int, known: Mapping[int, Step]) -> int:
    """Skips a tag section: unknown tags are cut, known ones checked, counts and sizes corrected where that shortens
    them.
    """
    section, first_cut = position, len(state.cuts)
    count, position = read_uvarint(state.data, position)
    after_count = position
    state.count(count, 2, position)
    unknown = 0
    for _ in range(count):
        begin = position
        tag, position = read_uvarint(state.data, position)
        size_at = position
        size, position = read_uvarint(state.data, position)
        if tag in known:
            _enter(state, known[tag], size_at, position, size)
        else:
            state.cuts.append((begin, position + size, b""))
            unknown += 1
        position += size
    if unknown:
        state.cuts.insert(first_cut, (section, after_count, write_uvarint(count - unknown)))
    return position


def _enter(state: BoundsCheck, step: Step, size_at: int, start: int, size: int) -> None:
    """Checks a known tagged field, and shortens its size by the bytes that were cut in it."""
    first_cut = len(state.cuts)
    if step(state, start) != start + size:
        raise ProtocolError(f"the tagged field at byte {size_at} does not have the size it claims")
    removed = sum(end - begin - len(new) for begin, end, new in state.cuts[first_cut:])
    if removed:
        state.cuts.insert(first_cut, (size_at, start, write_uvarint(size - removed)))


def _field(f: Field[Any], flexible: bool) -> tuple[Step, int]:
    """Returns (step, smallest size in bytes) of a field's value."""
    kind = inner(f.type)
    if get_origin(kind) is not tuple:
        if "kafka_type" not in f.metadata:
            if kind is not f.type and "tag" not in f.metadata:
                return _nullable(_entity(kind)), 1
            return _entity(kind), _smallest(kind, flexible)
        return _scalar(f.metadata["kafka_type"], flexible)
    element = inner(get_args(kind)[0])
    if "kafka_type" in f.metadata:
        step, smallest = _scalar(f.metadata["kafka_type"], flexible)
    else:
        step, smallest = _entity(element), _smallest(element, flexible)
    return _array(step, smallest, flexible, nullable=kind is not f.type), 1 if flexible else 4


def _nullable(present: Step) -> Step:
    """Returns the check of a struct that may be null: a byte is in front of it, -1 for null."""

    def run(state: BoundsCheck, position: int) -> int:
        return position + 1 if state.data[position] == _NULL_STRUCT else present(state, position + 1)

    return run


def _smallest(entity: type[Any], flexible: bool) -> int:
    sizes = [_field(f, flexible)[1] for f in fields(entity) if "tag" not in f.metadata]
    return sum(sizes) + (1 if flexible else 0)


def inner(kind: Any) -> Any:
    """Returns `X` for `X | None`."""
    if get_origin(kind) in (UnionType, Union):
        return next(arm for arm in get_args(kind) if arm is not type(None))
    return kind


def _array(element: Step, smallest: int, flexible: bool, *, nullable: bool) -> Step:
    """Returns the check of an array. kio reads a null where Kafka's definition allows none; handlers rely on the
    definition.
    """

    def run(state: BoundsCheck, position: int) -> int:
        if flexible:
            count, position = read_uvarint(state.data, position)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(state.data, position)
            position += 4
        if count <= 0:
            if count < 0 and not nullable:
                raise ProtocolError(f"a null array before byte {position}, where Kafka's definition allows none")
            return position
        state.count(count, smallest, position)
        for _ in range(count):
            position = element(state, position)
        return position

    return run


def _scalar(kafka_type: str, flexible: bool) -> tuple[Step, int]:
    size = _FIXED_SIZES.get(kafka_type)
    if size is not None:
        return _fixed(size), size
    if flexible:
        return _compact_bytes, 1
    return (_legacy_string, 2) if kafka_type == "string" else (_legacy_bytes, 4)


def _fixed(size: int) -> Step:
    def run(_: BoundsCheck, position: int) -> int:
        return position + size

    return run


def _compact_bytes(state: BoundsCheck, position: int) -> int:
    size, position = read_uvarint(state.data, position)
    return position + max(size - 1, 0)


def _legacy_string(state: BoundsCheck, position: int) -> int:
    (size,) = _INT16.unpack_from(state.data, position)
    return int(position + 2 + max(size, 0))


def _legacy_bytes(state: BoundsCheck, position: int) -> int:
    (size,) = _INT32.unpack_from(state.data, position)
    return int(position + 4 + max(size, 0))
