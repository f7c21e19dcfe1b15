"""The codecs that a process knows, by id and by name. Id 0, `none`, is always there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import ConfigError, ErrorCode, KlammError
from ..interfaces.codec import Buffer, Codec, DecompressionBombError

__all__ = ["NONE", "CodecTable", "NoCompression", "UnsupportedCodecError"]


class UnsupportedCodecError(KlammError):
    """A batch names a codec that this process does not have."""

    code = ErrorCode.unsupported_compression_type


class NoCompression:
    """Codec 0: the bytes as they are."""

    name = "none"
    codec_id = 0

    def compress(self, data: Buffer) -> bytes:
        return bytes(data)

    def decompress(self, data: Buffer, max_size: int) -> bytes:
        if len(data) > max_size:
            raise DecompressionBombError(f"{len(data)} bytes of records, more than the bound of {max_size}")
        return bytes(data)


NONE: Final = NoCompression()


class CodecTable:
    """Codecs by id (0-7) and by name. Immutable, thread-safe."""

    def __init__(self, codecs: Iterable[Codec] = ()) -> None:
        self._by_id: dict[int, Codec] = {}
        self._by_name: dict[str, Codec] = {}
        for codec in (NONE, *codecs):
            if codec.codec_id in self._by_id:
                other = self._by_id[codec.codec_id].name
                raise ConfigError(f"the codecs {other!r} and {codec.name!r} have the same id {codec.codec_id}")
            if not 0 <= codec.codec_id <= 7:
                raise ConfigError(f"the codec {codec.name!r} has the id {codec.codec_id}; ids are 0 to 7")
            self._by_id[codec.codec_id] = codec
            self._by_name[codec.name] = codec

    def __contains__(self, codec_id: object) -> bool:
        return codec_id in self._by_id

    def ids(self) -> frozenset[int]:
        return frozenset(self._by_id)

    def names(self) -> list[str]:
        """The names, sorted, `none` included."""
        return sorted(self._by_name)

    def by_id(self, codec_id: int) -> Codec:
        """Returns the codec; raises `UnsupportedCodecError` if there is none."""
        codec = self._by_id.get(codec_id)
        if codec is None:
            raise UnsupportedCodecError(f"no codec has the id {codec_id} (there are: {', '.join(self.names())})")
        return codec

    def by_name(self, name: str) -> Codec:
        """Returns the codec; raises `UnsupportedCodecError` if there is none."""
        codec = self._by_name.get(name)
        if codec is None:
            raise UnsupportedCodecError(f"unknown codec {name!r} (there are: {', '.join(self.names())})")
        return codec
