"""The message indexes of Confluent's wire format: where the message stands in its file, as zig-zag varints. The number
of indexes comes first; the first message of the file is the one byte 0.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

MAX_NESTED: Final = 64
"""Messages within each other."""


def encode(indexes: tuple[int, ...]) -> bytes:
    """`indexes`: the index of the top-level message in the file, then of each nested message in its parent."""
    return b"\0" if indexes == (0,) else b"".join(map(_varint, (len(indexes), *indexes)))


def decode(stream: BytesIO) -> tuple[int, ...]:
    """Raises `EOFError` at the end of the stream, `ValueError` for bytes that are not indexes."""
    count = _number(stream)
    if not 0 <= count <= MAX_NESTED:
        raise ValueError(f"the Protobuf message indexes claim to be {count}")
    return tuple(_number(stream) for _ in range(count)) or (0,)


def _varint(value: int) -> bytes:
    left = value << 1  # zig-zag of a number that is not negative
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _number(stream: BytesIO) -> int:
    value = 0
    for shift in range(0, 35, 7):
        byte = stream.read(1)
        if not byte:
            raise EOFError("the Protobuf message indexes are cut off")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a Protobuf message index has more than 5 bytes")
