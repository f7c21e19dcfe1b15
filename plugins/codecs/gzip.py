"""gzip (id 1), through zlib. Concatenated members are read as one stream, as gzip defines it."""

from __future__ import annotations

import zlib

from pydantic import BaseModel, ConfigDict, Field

from klamm.plugin import Buffer, CorruptRecordError

from .bounded import drain_members

_GZIP_FRAME = 16 + zlib.MAX_WBITS


class GzipConfig(BaseModel):
    """`compression.level` 1 (fast) to 9 (small), -1 for zlib's own choice."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    level: int = Field(default=-1, ge=-1, le=9, alias="compression.level")


class GzipCodec:
    name = "gzip"
    codec_id = 1

    def __init__(self, config: GzipConfig) -> None:
        self._level = config.level

    def compress(self, data: Buffer) -> bytes:
        return zlib.compress(data, self._level, _GZIP_FRAME)

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        try:
            return drain_members(lambda: zlib.decompressobj(_GZIP_FRAME), data, max_size)
        except zlib.error as error:
            raise CorruptRecordError(f"gzip: {error}") from error
