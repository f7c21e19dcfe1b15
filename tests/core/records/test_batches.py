"""Encoding and decoding: round trips, what Kafka's other clients read and write, and lying batches."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import CorruptRecordError, KlammError
from klamm.core.interfaces.codec import DecompressionBombError
from klamm.core.records.codecs import CodecTable, UnsupportedCodecError
from klamm.core.records.decode import MAX_DECOMPRESSED, decode_batch
from klamm.core.records.editing.recompress import recompress
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import HEADER_SIZE, BatchHeader, crc_of, set_crc
from klamm.core.records.record import Record
from klamm.core.records.varint import encode_varint
from klammtest.logs import START_MS, TP, batch, codec_table

CODECS = codec_table()
NAMES = CODECS.names()
blobs = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
records = st.lists(st.tuples(st.integers(-(2**40), 2**40), blobs, blobs, header_lists), min_size=1, max_size=30)


def sealed(raw: bytearray) -> bytearray:
    """`raw` with its length and CRC made right, so that only the lie under test is left."""
    raw[8:12] = (len(raw) - 12).to_bytes(4, "big")
    set_crc(raw, 0, crc_of(raw, 0, len(raw)))
    return raw


def decode(raw: bytes | bytearray, codecs: CodecTable = CODECS, **more: int) -> list[Record]:
    return decode_batch(raw, 0, BatchHeader.parse(raw), codecs, partition=TP, **more)


@given(records, st.sampled_from(NAMES), st.integers(0, 2**50))
@settings(max_examples=150)
def test_round_trip(rows: list, name: str, base: int) -> None:
    raw = encode_batch(rows, codec=CODECS.by_name(name), base_offset=base, producer_id=4, base_sequence=2)
    header = BatchHeader.parse(raw)
    assert (header.base_timestamp, header.max_timestamp) == (rows[0][0], max(row[0] for row in rows))
    assert decode(raw) == [Record(base + i, *row) for i, row in enumerate(rows)]


def test_an_empty_batch_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


def test_another_library_reads_what_is_written() -> None:
    rows = [(START_MS + i, b"k%d" % i, b"v" * i, (("h", b"x"),)) for i in range(200)]
    raw = encode_batch(rows, codec=CODECS.by_name("gzip"))
    theirs = DefaultRecordBatch(bytearray(raw))
    assert theirs.validate_crc()
    found = [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    assert found == rows


def test_what_another_library_writes_is_read() -> None:
    theirs = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i in range(100):
        theirs.append(i, START_MS - i, b"k" if i % 2 else None, None if i % 3 else b"v", [("h", b"x")])
    found = decode(bytes(theirs.build()))
    assert [(r.offset, r.timestamp_ms) for r in found] == [(i, START_MS - i) for i in range(100)]
    assert (found[1].key, found[1].value, found[1].headers) == (b"k", None, (("h", b"x"),))


def test_log_append_time_is_every_record_s() -> None:
    raw = batch([b"a", b"b"], step_ms=5)
    raw[22] |= 0x08
    assert [r.timestamp_ms for r in decode(sealed(raw))] == [START_MS + 5] * 2


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(UnsupportedCodecError, match="id 4"):
        decode(batch(codec=CODECS.by_name("zstd")), CodecTable())


def test_the_error_names_partition_and_offset() -> None:
    raw = batch([b"a"] * 3)
    raw[0:8] = (4711).to_bytes(8, "big")
    raw[-1] ^= 0xFF
    with pytest.raises(CorruptRecordError, match=r"events-0 offset 4711: the CRC"):
        decode(raw)


@pytest.mark.parametrize("count", [0, 2, 4, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("name", NAMES)
def test_a_lying_count(count: int, name: str) -> None:
    raw = batch([b"a"] * 3, codec=CODECS.by_name(name))
    raw[57:61] = count.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordError, match="events-0 offset 0"):
        decode(sealed(raw))


def one_record(body: bytes, length: int | None = None) -> bytearray:
    """A batch whose one record has these bytes after its length."""
    raw = batch([b"a"])[:HEADER_SIZE]
    return sealed(raw + encode_varint(len(body) if length is None else length) + body)


@pytest.mark.parametrize(
    ("body", "length", "match"),
    [
        (b"\0\0\0\x01\x01\0", 200, "bytes are left"),
        (b"\0\0\0\x01\x01\0", -3, "length is -3"),
        (b"\0\0\0\x03\x01\0", None, "its key has the length -2"),
        (b"\0\0\0\x01\x05\0", None, "its value has the length -3"),
        (b"\0\0\0\x40\x01\0", None, "run past its length"),
        (b"\0\0\x04\x01\x01\0", None, "offset delta is 2"),
        (b"\0\0\x01\x01\x01\0", None, "offset delta is -1"),
        (b"\0\0\0\x01\x01\x80\x80\x01", None, "headers in"),
        (b"\0\0\0\x01\x01\x01", None, "headers in"),
        (b"\0\0\0\x01\x01\x02\x01\0", None, "name has the length -1"),
        (b"\0\0\0\x01\x01\x02\x02\xff\x01", None, "not UTF-8"),
        (b"\0\0\0\x01\x01\x02\x02a\x03", None, "header's value has the length -2"),
        (b"\0\0\0\x01\x01\x02\x02a\x40", None, "header's value has the length 32"),
        (b"\0" + b"\xff" * 10, None, "64 bits"),
        (b"\0\0\0" + b"\xff" * 6, None, "32 bits"),
        (b"\0\0\0\x01\x01\0\0", None, "1 bytes are left over in it"),
        (b"", None, "run past its length"),
        (b"\0" + encode_varint(2**63 - 1) + b"\0\x01\x01\0", None, "longer than 64 bits"),
    ],
)
def test_lying_fields(body: bytes, length: int | None, match: str) -> None:
    with pytest.raises(CorruptRecordError, match=match):
        decode(one_record(body, length))


def test_trailing_bytes() -> None:
    with pytest.raises(CorruptRecordError, match="2 bytes are left over after 1 records"):
        decode(sealed(batch([b"a"]) + b"\0\0"))


@given(st.data())
@settings(max_examples=300)
def test_flipped_bytes_raise_the_one_error_or_nothing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    raw = batch([b"abc", None, b"x" * 300], codec=CODECS.by_name(name))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(HEADER_SIZE - 4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(sealed(raw), max_size=10_000)
    except KlammError as error:
        assert isinstance(error, CorruptRecordError)  # noqa: PT017 - the one allowed kind


def test_output_is_bounded() -> None:
    raw = batch([b"\0" * 5_000_000], codec=CODECS.by_name("zstd"))
    assert len(raw) < 1000
    with pytest.raises(DecompressionBombError, match=r"events-0 offset 0.*1000000"):
        decode(raw, max_size=1_000_000)


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_recompression_keeps_the_records(source: str, target: str) -> None:
    raw = batch([b"abc"] * 50, codec=CODECS.by_name(source), producer=(5, 0, 10))
    records = CODECS.by_name(source).decompress(raw[HEADER_SIZE:], MAX_DECOMPRESSED)
    out, header = recompress(BatchHeader.parse(raw), records, CODECS.by_name(target))
    assert BatchHeader.parse(out) == header
    assert header.codec_id == CODECS.by_name(target).codec_id
    assert (header.producer_id, header.base_sequence) == (5, 10)
    assert decode(out) == decode(raw)
