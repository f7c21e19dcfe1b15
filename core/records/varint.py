"""Zigzag variable-length integers, as record batches use them (protobuf's encoding, KIP-98)."""

from __future__ import annotations

from typing import Final

from ..errors import CorruptRecordError

__all__ = ["SMALL", "VARINT", "encode_varint", "read_varint", "read_varlong"]

SMALL: Final = 1024
"""Non-negative values below this are cached in `VARINT`: 50 kB, even if the compiled module encodes all records."""

_MAX_SHIFT_32: Final = 28
_MAX_SHIFT_64: Final = 63


def encode_varint(value: int) -> bytes:
    """Returns the zigzag varint of a signed 64-bit value (a 32-bit one has the same bytes)."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


VARINT: Final = tuple(encode_varint(value) for value in range(SMALL))
"""`VARINT[n]` is the varint of n, for 0 <= n < SMALL."""


def read_varint(data: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """Returns a signed 32-bit value at `pos` and the position after it; raises `IndexError` past the end of `data`."""
    low = data[pos]
    if low >= 0x80 and (high := data[pos + 1]) < 0x80:  # two bytes: most lengths, and no loop for them
        value = low & 0x7F | high << 7
        return (value >> 1) ^ -(value & 1), pos + 2
    return _read(data, pos, _MAX_SHIFT_32, 32)


def read_varlong(data: bytes | bytearray | memoryview, pos: int) -> tuple[int, int]:
    """Returns a signed 64-bit value at `pos` and the position after it; raises `IndexError` past the end of `data`."""
    low = data[pos]
    if low >= 0x80 and (high := data[pos + 1]) < 0x80:
        value = low & 0x7F | high << 7
        return (value >> 1) ^ -(value & 1), pos + 2
    return _read(data, pos, _MAX_SHIFT_64, 64)


def _read(data: bytes | bytearray | memoryview, pos: int, max_shift: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > max_shift:
            raise CorruptRecordError(f"a varint is longer than {bits} bits")
    if value >> bits:
        raise CorruptRecordError(f"a varint is longer than {bits} bits")
    return (value >> 1) ^ -(value & 1), pos
