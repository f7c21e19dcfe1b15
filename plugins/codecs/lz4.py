"""lz4 (id 3): frames of independent 64 KiB blocks, as Kafka's clients write them; linked blocks can be read too.

The package is imported on first use: a broker decompresses few batches or none.
"""

from __future__ import annotations

from typing import Final, cast

from pydantic import BaseModel, ConfigDict, Field

from klamm.plugin import Buffer, CorruptRecordError

from .bounded import drain_members


class Lz4Config(BaseModel):
    """`compression.level`: below 3 the fast compressor (negative levels are faster), 3 to 16 the high-compression
    one."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    level: int = Field(default=0, ge=-16, le=16, alias="compression.level")


_PIECE: Final = 1 << 20


class _Frame:
    """One frame. The package allocates the maximum output before it decodes, so output is requested in pieces of 1 MiB:
    to allocate 64 MiB costs more than to decode 64 KiB."""

    def __init__(self) -> None:
        import lz4.frame  # type: ignore[import-untyped]  # ships no stubs

        self._decoder = lz4.frame.LZ4FrameDecompressor()

    @property
    def eof(self) -> bool:
        return cast(bool, self._decoder.eof)

    @property
    def unused_data(self) -> bytes | None:
        return cast(bytes | None, self._decoder.unused_data)

    def decompress(self, data: Buffer, max_length: int) -> bytes:
        parts = [self._decoder.decompress(data, min(max_length, _PIECE))]
        size = len(parts[0])
        while parts[-1] and size < max_length and not self._decoder.eof and not self._decoder.needs_input:
            parts.append(self._decoder.decompress(b"", min(max_length - size, _PIECE)))
            size += len(parts[-1])
        return cast(bytes, parts[0]) if len(parts) == 1 else b"".join(parts)


class Lz4Codec:
    name = "lz4"
    codec_id = 3

    def __init__(self, config: Lz4Config) -> None:
        self._level = config.level

    def compress(self, data: Buffer) -> bytes:
        import lz4.frame

        # Linked blocks, the package's default, are refused by Java's reader.
        return cast(
            bytes,
            lz4.frame.compress(
                data,
                compression_level=self._level,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            ),
        )

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        try:
            return drain_members(_Frame, data, max_size)
        except (RuntimeError, ValueError, EOFError) as error:
            raise CorruptRecordError(f"lz4: {error}") from error
