"""Reads records one by one and checks each length against the record's own end: slow, and exact about the error.

The twin of the compiled module's reader: the same checks in the same order, with the same messages.
"""

from __future__ import annotations

from typing import Any

from ..errors import CorruptRecordError
from .record import Headers

Lists = tuple[list[int], list[int], list[bytes | None], list[bytes | None], list[Headers]]

_PAST = "its fields run past its length"
_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)


class _Wrong(Exception):
    """The error of the record that is being read."""


def read_records(data: bytes, count: int, base_offset: int, last_delta: int, base_timestamp: int, fixed: bool) -> Lists:
    """Returns the columns of the records as `fallback.lists` does."""
    found: tuple[list[Any], list[Any], list[Any], list[Any], list[Any]] = ([], [], [], [], [])
    pos, previous = 0, -1
    for index in range(count):
        start = pos
        try:
            pos, previous, *record = _record(data, start, previous, base_offset, last_delta, base_timestamp, fixed)
        except _Wrong as wrong:
            raise CorruptRecordError(f"record {index} at byte {start}: {wrong}") from None
        for column, field in zip(found, (base_offset + previous, *record), strict=True):
            column.append(field)
    if pos != len(data):
        raise CorruptRecordError(f"{len(data) - pos} bytes are left over after {count} records")
    return found


def _record(
    data: bytes, pos: int, previous: int, base_offset: int, last_delta: int, base_timestamp: int, fixed: bool
) -> tuple[int, int, int, bytes | None, bytes | None, Headers]:
    """Returns the position after the record, its offset delta, its timestamp, key, value and headers."""
    n, pos = _varint(data, pos, len(data), 32, "the records end early")
    if n < 0 or n > len(data) - pos:
        raise _Wrong(f"its length is {n}, {len(data) - pos} bytes are left")
    end = pos + n
    if pos >= end:
        raise _Wrong(_PAST)
    n, pos = _varint(data, pos + 1, end, 64)
    timestamp = base_timestamp if fixed else base_timestamp + n
    if not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise _Wrong("its timestamp is longer than 64 bits")
    delta, pos = _varint(data, pos, end, 32)
    if not previous < delta <= last_delta:
        raise _Wrong(f"its offset delta is {delta} after {previous}, the last is {last_delta}")
    if base_offset + delta > _INT64_MAX:
        raise _Wrong("its offset is longer than 64 bits")
    parts: list[bytes | None] = []
    for what in ("key", "value"):
        n, pos = _varint(data, pos, end, 32)
        if n < -1:
            raise _Wrong(f"its {what} has the length {n}")
        if n > end - pos:
            raise _Wrong(_PAST)
        parts.append(None if n < 0 else data[pos : pos + n])
        pos += max(n, 0)
    headers, pos = _headers(data, pos, end)
    if pos != end:
        raise _Wrong(f"{end - pos} bytes are left over in it")
    return pos, delta, timestamp, parts[0], parts[1], headers


def _headers(data: bytes, pos: int, end: int) -> tuple[Headers, int]:
    found: list[tuple[str, bytes | None]] = []
    count, pos = _varint(data, pos, end, 32)
    if not 0 <= count <= end - pos:
        raise _Wrong(f"it has {count} headers in {end - pos} bytes")
    for _ in range(count):
        n, pos = _varint(data, pos, end, 32)
        if not 0 <= n <= end - pos:
            raise _Wrong(f"a header's name has the length {n}")
        try:
            name = data[pos : pos + n].decode()
        except UnicodeDecodeError:
            raise _Wrong("a header's name is not UTF-8") from None
        n, pos = _varint(data, pos + n, end, 32)
        if not -1 <= n <= end - pos:
            raise _Wrong(f"a header's value has the length {n}")
        found.append((name, None if n < 0 else data[pos : pos + n]))
        pos += max(n, 0)
    return tuple(found), pos


def _varint(data: bytes, pos: int, end: int, bits: int, past: str = _PAST) -> tuple[int, int]:
    value = shift = 0
    while True:
        if pos >= end:
            raise _Wrong(past)
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > (28 if bits == 32 else 63):
            raise _Wrong(f"a varint is longer than {bits} bits")
    if value >> bits:
        raise _Wrong(f"a varint is longer than {bits} bits")
    return (value >> 1) ^ -(value & 1), pos
