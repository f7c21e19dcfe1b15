"""The codec `xz`: small batches for topics that are written once and rarely read."""

from __future__ import annotations

import lzma

from klamm.plugin import Buffer, CorruptRecordError, DecompressionBombError, Int, Section, key

DECODER_MEMORY = 128 * 1024 * 1024
"""Bytes that the decoder may take, whatever the stream asks for."""


class XzConfig(Section):
    compression_level: Int = key(1, "0 (fast) to 9 (small).", ge=0, le=9)


class XzCodec:
    name = "xz"
    codec_id = 5

    def __init__(self, config: XzConfig) -> None:
        self._preset = config.compression_level

    def compress(self, data: Buffer) -> bytes:
        return lzma.compress(data, preset=self._preset)

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=DECODER_MEMORY)
        try:
            found = decoder.decompress(data, max_size + 1)
        except (lzma.LZMAError, MemoryError) as error:
            raise CorruptRecordError(f"xz: {error}") from error
        if len(found) > max_size:
            raise DecompressionBombError(f"the records decompress to more than the bound of {max_size} bytes")
        if not decoder.eof or decoder.unused_data:
            raise CorruptRecordError("xz: the compressed records end early, or continue after their end")
        return found
