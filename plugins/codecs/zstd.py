"""zstd (id 4). Frames without a content size and several frames in a row are read, as other clients write them.

The package is imported on first use: a broker decompresses few batches or none.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import cast

from pydantic import BaseModel, ConfigDict, Field

from klamm.plugin import Buffer, CorruptRecordError

from .bounded import drain_members


def _zstd() -> ModuleType:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class ZstdConfig(BaseModel):
    """`compression.level` 1 (fast) to 22 (small); negative levels are faster than 1."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    level: int = Field(default=3, ge=-131072, le=22, alias="compression.level")


class ZstdCodec:
    name = "zstd"
    codec_id = 4

    def __init__(self, config: ZstdConfig) -> None:
        self._level = config.level

    def compress(self, data: Buffer) -> bytes:
        return cast(bytes, _zstd().compress(data, self._level))

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        zstd = _zstd()
        try:
            return drain_members(zstd.ZstdDecompressor, data, max_size)
        except zstd.ZstdError as error:
            raise CorruptRecordError(f"zstd: {error}") from error
