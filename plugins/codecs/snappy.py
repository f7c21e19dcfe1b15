"""snappy (id 2): raw blocks (librdkafka) and snappy-java's "xerial" framing (others) are read, xerial is written.

Xerial: the 8-byte magic, version and lowest compatible version (int32 each), then for each block its compressed length
(int32, big-endian) and the raw snappy block. Streams may be concatenated, each with its magic. The package is imported
on first use: a broker decompresses few batches or none.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from klamm.plugin import Buffer, CorruptRecordError

from .bounded import bomb

_MAGIC: Final = b"\x82SNAPPY\x00"
_VERSIONS: Final = Struct(">ii")
_LENGTH: Final = Struct(">i")
_HEADER: Final = _MAGIC + _VERSIONS.pack(1, 1)
_BLOCK: Final = 32 * 1024
_MAX_LENGTH_BYTES: Final = 5


class SnappyCodec:
    name = "snappy"
    codec_id = 2

    def compress(self, data: Buffer) -> bytes:
        import cramjam

        view = memoryview(data)
        out = [_HEADER]
        for start in range(0, len(view), _BLOCK):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _BLOCK]))
            out += (_LENGTH.pack(len(block)), block)
        return b"".join(out)

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        data = bytes(data)
        if not data.startswith(_MAGIC):
            return _decompress_block(data, max_size, max_size)
        parts: list[bytes] = []
        room, pos = max_size, 0
        while pos < len(data):
            if data.startswith(_MAGIC, pos):
                pos += len(_HEADER)
                if pos > len(data):
                    raise CorruptRecordError("snappy: the header is cut off")
                continue
            if len(data) - pos < _LENGTH.size:
                raise CorruptRecordError("snappy: a block's length is cut off")
            (size,) = _LENGTH.unpack_from(data, pos)
            pos += _LENGTH.size
            if not 0 < size <= len(data) - pos:
                raise CorruptRecordError(f"snappy: a block has the length {size}, {len(data) - pos} bytes are left")
            parts.append(_decompress_block(data[pos : pos + size], room, max_size))
            room -= len(parts[-1])
            pos += size
        return b"".join(parts)


def _decompress_block(block: bytes, room: int, max_size: int) -> bytes:
    """Decompresses one raw block; its declared length is checked before memory of that size is allocated."""
    if _declared_length(block) > room:
        raise bomb(max_size)
    import cramjam

    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except (cramjam.DecompressionError, ValueError) as error:
        raise CorruptRecordError(f"snappy: {error}") from error


def _declared_length(block: bytes) -> int:
    value = 0
    for index, byte in enumerate(block[:_MAX_LENGTH_BYTES]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
    raise CorruptRecordError("snappy: the block does not begin with its length")
