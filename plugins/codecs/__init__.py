"""Built-in codecs: gzip, snappy, lz4, zstd."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.plugin import Provider, hookimpl

if TYPE_CHECKING:
    from klamm.plugin import Codec


@hookimpl
def klamm_codecs() -> Iterable[Provider[[], Codec]]:
    """The four codecs of Kafka."""
    from .gzip import GzipCodec, GzipConfig  # here, so that `klamm --help` does not load them
    from .lz4 import Lz4Codec, Lz4Config
    from .snappy import SnappyCodec
    from .zstd import ZstdCodec, ZstdConfig

    return [
        Provider("gzip", GzipCodec, GzipConfig, "gzip, by zlib"),
        Provider("snappy", lambda _: SnappyCodec(), summary="snappy: raw and xerial framing read, xerial written"),
        Provider("lz4", Lz4Codec, Lz4Config, "lz4 frames of independent blocks"),
        Provider("zstd", ZstdCodec, ZstdConfig, "zstd"),
    ]
