"""One record of a batch in bytes, magic 2: length, attributes, deltas, key, value, headers."""

from __future__ import annotations

from typing import Final

from .record import Headers
from .varint import SMALL, VARINT, encode_varint

__all__ = ["NO_HEADERS", "RecordTuple", "encode_headers", "encode_record"]

RecordTuple = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp in ms, key, value, headers."""
NO_HEADERS: Final = VARINT[0]
"""The result of `encode_headers` without headers."""
_NULL: Final = encode_varint(-1)


def encode_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, more: bytes
) -> bytes:
    """Returns one record that begins with its length; `more` is the result of `encode_headers`."""
    if key is None:
        key, key_size = b"", _NULL
    else:
        n = len(key)
        key_size = VARINT[n] if n < SMALL else encode_varint(n)
    if value is None:
        value, value_size = b"", _NULL
    else:
        n = len(value)
        value_size = VARINT[n] if n < SMALL else encode_varint(n)
    body = b"".join(
        (
            b"\0",
            VARINT[timestamp_delta] if 0 <= timestamp_delta < SMALL else encode_varint(timestamp_delta),
            VARINT[offset_delta] if offset_delta < SMALL else encode_varint(offset_delta),
            key_size,
            key,
            value_size,
            value,
            more,
        )
    )
    n = len(body)
    return (VARINT[n] if n < SMALL else encode_varint(n)) + body


def encode_headers(headers: Headers) -> bytes:
    """Returns the header count and the headers, with names in UTF-8."""
    if not headers:
        return NO_HEADERS
    out = bytearray(encode_varint(len(headers)))
    for name, value in headers:
        raw = name.encode()
        out += encode_varint(len(raw))
        out += raw
        if value is None:
            out += _NULL
        else:
            out += encode_varint(len(value))
            out += value
    return bytes(out)
