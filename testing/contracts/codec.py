"""The contract of `klamm.plugin.Codec`."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from klamm.core.errors import CorruptRecordError, KlammError
from klamm.core.interfaces.codec import Codec, DecompressionBombError

__all__ = ["BOUND", "LARGE", "CodecContract"]

LARGE: Final = b"".join(b"record %d of a topic;" % i for i in range(200_000))
BOUND: Final = 1 << 24
"""More bytes than any of these tests decompresses."""
_SEEDS: Final = 200


class CodecContract:
    """The suite of a codec. Define `codec`, a fixture that returns the codec."""

    @pytest.fixture
    def codec(self) -> Codec:
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `codec` that returns the codec under test")

    def test_its_id_and_name(self, codec: Codec) -> None:
        assert codec.name
        assert 1 <= codec.codec_id <= 7, "0 is no compression, and a batch's attributes have 3 bits for it"

    @pytest.mark.parametrize("data", [b"", b"x", b"\0" * 100_000, LARGE], ids=["empty", "one", "zeros", "large"])
    def test_round_trip(self, codec: Codec, data: bytes) -> None:
        packed = codec.compress(data)
        assert isinstance(packed, bytes)
        assert codec.decompress(packed, BOUND) == data

    @pytest.mark.parametrize("kind", [bytearray, memoryview])
    def test_any_buffer_will_do(self, codec: Codec, kind: Callable[[bytes], bytes]) -> None:
        packed = codec.compress(kind(LARGE[:5000]))
        assert isinstance(packed, bytes)
        assert codec.decompress(kind(packed), BOUND) == LARGE[:5000]

    def test_round_trip_of_any_bytes(self, codec: Codec) -> None:
        for seed in range(_SEEDS):
            source = random.Random(seed)
            data = source.randbytes(source.randrange(5000)) * source.randrange(1, 3)
            assert codec.decompress(codec.compress(data), len(data)) == data, f"seed {seed}"

    def test_the_bound_is_exact(self, codec: Codec) -> None:
        packed = codec.compress(b"x" * 100_000)
        assert len(codec.decompress(packed, 100_000)) == 100_000
        with pytest.raises(DecompressionBombError, match="99999"):
            codec.decompress(packed, 99_999)

    def test_a_bomb_is_not_unpacked(self, codec: Codec) -> None:
        packed = codec.compress(b"\0" * 50_000_000)
        tracemalloc.start()
        try:
            with pytest.raises(DecompressionBombError):
                codec.decompress(packed, 1_000_000)
            assert tracemalloc.get_traced_memory()[1] < len(packed) * 3 + 20_000_000
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("junk", [b"\x01", b"\xff" * 50, b"not compressed at all, just text", b"\x1f\x8b\x08"])
    def test_junk_is_one_error(self, codec: Codec, junk: bytes) -> None:
        with pytest.raises(CorruptRecordError):
            codec.decompress(junk, BOUND)

    def test_every_truncation_is_an_error(self, codec: Codec) -> None:
        packed = codec.compress(LARGE[:3000])
        for end in range(1, len(packed)):
            try:
                got = codec.decompress(packed[:end], BOUND)
            except CorruptRecordError:
                continue
            assert (codec.name, got) == ("snappy", b""), "only xerial's bare header is a whole stream"

    def test_flipped_bytes_raise_the_one_error_or_nothing(self, codec: Codec) -> None:
        whole = codec.compress(LARGE[:2000])
        for seed in range(_SEEDS):
            source, packed = random.Random(seed), bytearray(whole)
            for _ in range(source.randint(1, 3)):
                packed[source.randrange(len(packed))] = source.randrange(256)
            try:
                codec.decompress(packed, 100_000)
            except KlammError as error:
                assert isinstance(error, CorruptRecordError), f"seed {seed}"  # noqa: PT017 - the one allowed kind

    def test_threads_share_a_codec(self, codec: Codec) -> None:
        blobs = [bytes([i % 251]) * (1000 + i * 37) for i in range(200)]
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda blob: codec.decompress(codec.compress(blob), BOUND), blobs))
        assert got == blobs
