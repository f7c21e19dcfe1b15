"""The contract of a codec, over every one that is installed, and what is of one of them."""

from __future__ import annotations

import gzip
import random
import struct

import cramjam
import lz4.frame
import pytest
from aiokafka import codec as aiokafka_codec
from backports import zstd

from klamm.core.errors import CorruptRecordError
from klamm.core.interfaces.codec import Codec, DecompressionBombError
from klamm.core.plugins import plugin_host
from klamm.testing.contracts import CodecContract
from klamm.testing.contracts.codec import BOUND, LARGE

NAMES = plugin_host().codecs.names()
KAFKAS_IDS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
WORDS = " ".join(random.Random(1).choices([f"word{n}" for n in range(500)], k=50_000)).encode()


def codec_named(name: str) -> Codec:
    return plugin_host().codecs.create(name)


class TestCodecs(CodecContract):
    @pytest.fixture(params=NAMES)
    def codec(self, request: pytest.FixtureRequest) -> Codec:
        return codec_named(request.param)


def test_ids_and_names() -> None:
    for name, number in KAFKAS_IDS.items():
        assert (codec_named(name).name, codec_named(name).codec_id) == (name, number)
    ids = [codec_named(name).codec_id for name in NAMES]
    assert len(set(ids)) == len(ids)
    assert all(1 <= number <= 7 for number in ids)


# -- framings that other clients write ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd", "snappy"])
def test_concatenated_streams_are_one(name: str) -> None:
    codec = codec_named(name)
    assert codec.decompress(codec.compress(b"first,") + codec.compress(b"second"), BOUND) == b"first,second"


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_trailing_junk_is_an_error(name: str) -> None:
    codec = codec_named(name)
    with pytest.raises(CorruptRecordError):
        codec.decompress(codec.compress(b"first") + b"junk", BOUND)


def test_snappy_reads_raw_and_writes_xerial() -> None:
    codec = codec_named("snappy")
    assert codec.decompress(bytes(cramjam.snappy.compress_raw(LARGE)), BOUND) == LARGE
    packed = codec.compress(LARGE)
    assert packed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (first,) = struct.unpack_from(">i", packed, 16)
    assert cramjam.snappy.decompress_raw(packed[20 : 20 + first]).read() == LARGE[: 32 * 1024]


@pytest.mark.parametrize("length", [-1, 0, 5000, 2**31 - 1])
def test_snappy_refuses_a_lying_block_length(length: int) -> None:
    header = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, length)
    with pytest.raises(CorruptRecordError, match="length"):
        codec_named("snappy").decompress(header + b"x" * 100, BOUND)


def test_snappy_refuses_a_claim_before_allocating_it() -> None:
    with pytest.raises(DecompressionBombError):
        codec_named("snappy").decompress(b"\xff\xff\xff\xff\x0f" + b"x" * 100, BOUND)


def test_lz4_writes_independent_blocks_and_reads_linked_ones() -> None:
    codec = codec_named("lz4")
    info = lz4.frame.get_frame_info(codec.compress(LARGE))
    assert not info["block_linked"]
    assert info["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB
    assert info["content_size"] == 0
    linked = lz4.frame.compress(LARGE, block_linked=True, content_checksum=True, block_checksum=True)
    assert codec.decompress(linked, BOUND) == LARGE


def test_zstd_reads_frames_without_content_size() -> None:
    streamed = zstd.ZstdCompressor()
    packed = streamed.compress(LARGE) + streamed.flush()
    assert zstd.get_frame_info(packed).decompressed_size is None
    assert codec_named("zstd").decompress(packed, BOUND) == LARGE
    with pytest.raises(DecompressionBombError):
        codec_named("zstd").decompress(packed, len(LARGE) - 1)


THEIRS = {
    "gzip": (aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
    "snappy": (aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
    "lz4": (aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
    "zstd": (aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
}


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_another_client_s_library_understands_us_and_we_it(name: str) -> None:
    encode, decode = THEIRS[name]
    codec = codec_named(name)
    assert codec.decompress(bytes(encode(LARGE)), BOUND) == LARGE
    assert bytes(decode(codec.compress(LARGE))) == LARGE


def test_gzip_is_gzip() -> None:
    assert gzip.decompress(codec_named("gzip").compress(LARGE)) == LARGE


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gzip", "lz4", "zstd"])
def test_levels(name: str) -> None:
    codecs = plugin_host().codecs
    fast, small = (codecs.create(name, {"compression.level": level}).compress(WORDS) for level in (1, 9))
    assert len(small) < len(fast)
    with pytest.raises(ValueError, match=r"compression.level"):
        codecs.create(name, {"compression.level": 1000})
    with pytest.raises(ValueError, match="levle"):
        codecs.create(name, {"compression.levle": 1})
