"""The headers of a batch's first record, read and added to without the other records."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from ...errors import CorruptRecordError
from ..header import HEADER_SIZE, Buffer
from ..one_record import encode_headers
from ..record import Headers
from ..varint import encode_varint, read_varint, read_varlong

__all__ = ["add_to_first", "first_headers"]

_encoded_headers: Final = lru_cache(256)(encode_headers)


class _Place(NamedTuple):
    """`body`: behind the record's length; `count_at`: where the `number` of headers is; `headers`: behind it."""

    body: int
    count_at: int
    number: int
    headers: int
    end: int


def _find(data: Buffer, at: int) -> _Place:
    """Raises `CorruptRecordError` for a length or number that no record has, `IndexError` past the end of `data`."""
    length, body = read_varint(data, at)
    _, at = read_varlong(data, body + 1)  # behind the attributes: the timestamp's delta
    _, at = read_varint(data, at)  # the offset's delta
    for part in ("key", "value"):
        size, at = read_varint(data, at)
        if size < -1:
            raise CorruptRecordError(f"the first record's {part} has the length {size}")
        at += max(size, 0)
    number, headers = read_varint(data, at)
    if number < 0 or headers > body + length:
        raise CorruptRecordError(f"the first record, of {length} bytes, says that it has {number} headers")
    return _Place(body, at, number, headers, body + length)


def add_to_first(batch: bytearray, headers: Headers) -> None:
    """Adds headers to the first record of `batch` (room for the batch's header, then uncompressed records), in place,
    behind those that the record has."""
    place = _find(batch, HEADER_SIZE)
    more = _encoded_headers(headers)[len(encode_varint(len(headers))) :]
    number = encode_varint(place.number + len(headers))
    record = b"".join((batch[place.body : place.count_at], number, batch[place.headers : place.end], more))
    batch[HEADER_SIZE : place.end] = encode_varint(len(record)) + record


def first_headers(data: Buffer, start: int, end: int) -> bytes | None:
    """The bytes of the headers, behind their number, of the record that begins at `start`; None where no record is
    whole in [start, end)."""
    try:
        place = _find(data, start)
    except (IndexError, CorruptRecordError):
        return None
    return bytes(data[place.headers : place.end]) if place.end <= end else None
