"""Request and response headers (v0 to v2), read and written by hand: they come before the schema is known.

Whether a header is flexible follows from the API and version. The client id is a legacy nullable string in every
version, and the response header of ApiVersions is version 0 always (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..errors import ProtocolError
from . import messages
from .apis import ApiKey
from .bounds_check import read_uvarint
from .messages import Buffer

__all__ = [
    "RequestHeader",
    "read_request_header",
    "read_response_header",
    "request_frame",
    "request_pieces",
    "response_frame",
    "skip_tags",
]

_FIXED = struct.Struct(">hhih")
_CORRELATION = struct.Struct(">i")
_LENGTH_AND_CORRELATION = struct.Struct(">ii")
_REQUEST_START = struct.Struct(">ihhih")
_MAX_TAGS = 64


class RequestHeader(NamedTuple):
    """`end` is the position where the client id ends; tagged fields follow in a flexible header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


def read_request_header(frame: Buffer) -> RequestHeader:
    """Reads the part that all versions share; raises `ProtocolError` for a frame that is too short or has a bad client
    id.
    """
    try:
        api_key, api_version, correlation_id, size = _FIXED.unpack_from(frame)
    except struct.error as error:
        raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a request header") from error
    if size < 0:
        return RequestHeader(api_key, api_version, correlation_id, None, _FIXED.size)
    end = _FIXED.size + size
    if end > len(frame):
        raise ProtocolError(f"a client id of {size} bytes in a frame of {len(frame)}")
    try:
        client_id = str(memoryview(frame)[_FIXED.size : end], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("the client id is not UTF-8") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def skip_tags(data: Buffer, position: int) -> int:
    """Returns the position after a section of tagged fields."""
    if position < len(data) and data[position] == 0:  # mostly there are none
        return position + 1
    try:
        count, position = read_uvarint(data, position)
        if count > _MAX_TAGS:
            raise ProtocolError(f"{count} tagged fields in a header")
        for _ in range(count):
            _, position = read_uvarint(data, position)
            size, position = read_uvarint(data, position)
            position += size
    except IndexError as error:
        raise ProtocolError("the frame ends within the header's tagged fields") from error
    if position > len(data):
        raise ProtocolError("the frame ends within the header's tagged fields")
    return position


def response_frame(api: ApiKey, version: int, correlation_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    """Returns a whole response frame, in pieces to be written one after the other."""
    size = sum(map(len, body))
    if api is not ApiKey.API_VERSIONS and messages.response(api, version).header_flexible:
        return [_LENGTH_AND_CORRELATION.pack(size + 5, correlation_id) + b"\0", *body]
    return [_LENGTH_AND_CORRELATION.pack(size + 4, correlation_id), *body]


def request_frame(api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Buffer) -> bytes:
    """Returns a whole request frame; for clients."""
    return b"".join(request_pieces(api, version, correlation_id, client_id, [body]))


def request_pieces(
    api: ApiKey, version: int, correlation_id: int, client_id: str | None, body: Sequence[Buffer]
) -> list[Buffer]:
    """Returns a whole request frame, in pieces to be written one after the other."""
    name_size, end = _header_end(api, version, client_id)
    size = _FIXED.size + len(end) + sum(map(len, body))
    start = _REQUEST_START.pack(size, api, version, correlation_id, name_size)
    return [start + end, *body]


@lru_cache(maxsize=256)
def _header_end(api: ApiKey, version: int, client_id: str | None) -> tuple[int, bytes]:
    """Returns the length of the client id, and what follows it in the header; no tagged fields."""
    name = client_id.encode() if client_id is not None else b""
    tags = b"\0" if messages.request(api, version).header_flexible else b""
    return -1 if client_id is None else len(name), name + tags


def read_response_header(frame: Buffer, api: ApiKey, version: int) -> tuple[int, int]:
    """Returns (correlation id, position of the body); for clients."""
    if len(frame) < _CORRELATION.size:
        raise ProtocolError(f"a frame of {len(frame)} bytes is too short for a response header")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if api is not ApiKey.API_VERSIONS and messages.response(api, version).header_flexible:
        return correlation_id, skip_tags(frame, _CORRELATION.size)
    return correlation_id, _CORRELATION.size
