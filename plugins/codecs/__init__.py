"""Built-in codecs: gzip, snappy, lz4, zstd."""

from __future__ import annotations

from collections.abc import Iterable

from klamm.core.hookspecs import hookimpl
from klamm.core.interfaces.codec import Codec
from klamm.core.interfaces.provider import NoConfig, Provider

from .gzip import GzipCodec, GzipConfig
from .lz4 import Lz4Codec, Lz4Config
from .snappy import SnappyCodec
from .zstd import ZstdCodec, ZstdConfig


def _snappy(_: NoConfig) -> SnappyCodec:
    return SnappyCodec()


@hookimpl
def klamm_codecs() -> Iterable[Provider[Codec]]:
    """The four codecs of Kafka."""
    return [
        Provider("gzip", GzipCodec, GzipConfig, "gzip, by zlib"),
        Provider("snappy", _snappy, NoConfig, "snappy: raw and xerial framing read, xerial written"),
        Provider("lz4", Lz4Codec, Lz4Config, "lz4 frames of independent blocks"),
        Provider("zstd", ZstdCodec, ZstdConfig, "zstd"),
    ]
