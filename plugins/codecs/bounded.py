"""Decompression with an output limit, for decoders with the interface of the standard library's `bz2`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from klamm.plugin import Buffer, CorruptRecordError, DecompressionBombError


class MemberDecoder(Protocol):
    """Decodes one member (gzip) or frame (lz4, zstd)."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


def bomb(max_size: int) -> DecompressionBombError:
    return DecompressionBombError(f"the records decompress to more than the limit of {max_size} bytes")


def drain_members(decoder: Callable[[], MemberDecoder], data: Buffer, max_size: int) -> bytes:
    """Returns the decompressed members of `data`, at least one, and never holds more than `max_size` + 1 bytes of
    output."""
    parts: list[bytes] = []
    room = max_size + 1  # one more than allowed, to tell "full" from "too much"
    rest: Buffer = data
    while True:
        member = decoder()
        part = member.decompress(rest, room)
        room -= len(part)
        parts.append(part)
        if room <= 0:
            raise bomb(max_size)
        if not member.eof:
            raise CorruptRecordError("the compressed records end early")
        rest = member.unused_data or b""
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
