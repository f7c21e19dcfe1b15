"""The codec interface: compression of a batch's records.

A codec that raises refuses the request or the read that needed it; nothing is stored or served in part.
"""

from __future__ import annotations

from typing import Protocol

from ..errors import CorruptRecordError

__all__ = ["Buffer", "Codec", "DecompressionBombError"]

Buffer = bytes | bytearray | memoryview


class DecompressionBombError(CorruptRecordError):
    """The output would be larger than the limit."""


class Codec(Protocol):
    """One compression codec; stateless and safe to call from several threads.

    `codec_id` is the number in a batch's attributes (bits 0-2): 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5-7 are for third
    parties (design, section 5).
    """

    @property
    def name(self) -> str: ...

    @property
    def codec_id(self) -> int: ...

    def compress(self, data: Buffer) -> bytes:
        """Returns the compressed form of `data`, in the framing that Kafka's own clients write."""
        ...

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        """Returns the original; raises `CorruptRecordError` for bad input, `DecompressionBombError` above `max_size`
        bytes.
        """
        ...
