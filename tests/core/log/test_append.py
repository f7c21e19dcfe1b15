"""Appending: what is refused with which error, what is rewritten, how offsets grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import ErrorCode, KlammError, LogEndMovedError
from klamm.core.log.errors import FencedLeaderEpochError, InvalidRecordError, LogClosedError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.validation import AppendOrigin
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import BatchHeader, crc_matches, crc_of, set_crc
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klammtest.logs import (
    START_MS,
    ManualClock,
    append,
    batch,
    codec_table,
    from_request,
    open_log,
    read_all,
    records_of,
)

CODECS = codec_table()


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path)


def changed(raw: bytearray, at: int, new: bytes, *, crc: bool = True) -> bytearray:
    raw[at : at + len(new)] = new
    if crc:
        set_crc(raw, 0, crc_of(raw, 0, len(raw)))
    return raw


def test_offsets_are_sequential(log: PartitionLog) -> None:
    assert append(log, batch([b"a", b"b"])) == (0, 1)
    assert append(log, batch([b"c"])) == (2, 2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset) == (0, 3, 3, 3)
    assert [(r.offset, r.value) for r in read_all(log)] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_base_offset_and_epoch_are_set_in_place(log: PartitionLog) -> None:
    append(log, batch([b"a"] * 5))
    raw = batch([b"b"])
    append(log, raw, leader_epoch=3)
    header = BatchHeader.parse(raw)
    assert (header.base_offset, header.leader_epoch) == (5, 3)
    assert log.read(5, 1 << 20).data == bytes(raw)
    assert log.leader_epoch == 3


def count(n: int) -> bytes:
    return n.to_bytes(4, "big", signed=True)


REFUSED = {
    "wrong magic": (lambda: changed(batch(), 16, b"\1"), ErrorCode.invalid_record),
    "two batches": (lambda: batch() + batch(), ErrorCode.invalid_record),
    "trailing bytes": (lambda: batch() + b"x", ErrorCode.invalid_record),
    "no records": (lambda: changed(batch(), 57, count(0)), ErrorCode.invalid_record),
    "negative count": (lambda: changed(batch(), 57, count(-5)), ErrorCode.invalid_record),
    "count against delta": (lambda: changed(batch([b"a"] * 3), 57, count(2)), ErrorCode.invalid_record),
    "control batch": (lambda: changed(batch(), 21, b"\0\x20"), ErrorCode.invalid_record),
    "transaction": (lambda: changed(batch(), 21, b"\0\x10"), ErrorCode.invalid_record),
    "producer without sequence": (lambda: batch(producer=(5, 0, -1)), ErrorCode.invalid_record),
    "negative producer": (lambda: batch(producer=(-2, 0, 0)), ErrorCode.invalid_record),
    "bad CRC": (lambda: changed(batch(), 17, b"\0\0\0\0", crc=False), ErrorCode.corrupt_message),
    "cut off": (lambda: batch()[:-1], ErrorCode.corrupt_message),
    "too short": (lambda: batch()[:40], ErrorCode.corrupt_message),
    "nothing": (bytearray, ErrorCode.corrupt_message),
    "impossible length": (lambda: changed(batch(), 8, count(-1), crc=False), ErrorCode.corrupt_message),
    "unknown codec": (lambda: changed(batch(), 21, b"\0\7"), ErrorCode.unsupported_compression_type),
    "too large": (lambda: batch([b"x" * 2_000_000]), ErrorCode.message_too_large),
    "stamped by the client": (lambda: changed(batch(), 21, b"\0\x08"), ErrorCode.invalid_timestamp),
    "from the future": (lambda: batch(timestamp_ms=START_MS + 3_600_001), ErrorCode.invalid_timestamp),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_leaves_nothing(log: PartitionLog, name: str) -> None:
    make, code = REFUSED[name]
    with pytest.raises(KlammError) as caught:
        log.append_as_leader(make(), 0)
    assert caught.value.code is code, caught.value
    assert "\n" not in str(caught.value)
    assert (log.log_end_offset, log.size) == (0, 0)
    assert append(log, batch()) == (0, 0)


def test_a_batch_larger_than_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=500)
    with pytest.raises(KlammError) as caught:
        log.append_as_leader(batch([b"x" * 1000]), 0)
    assert caught.value.code is ErrorCode.record_list_too_large


def test_old_records_are_taken_unless_the_topic_says_otherwise(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(timestamp_ms=0))
    append(log, batch(timestamp_ms=-1))
    log.reconfigure(log.config.model_copy(update={"message_timestamp_before_max_ms": 1000}))
    append(log, batch(timestamp_ms=START_MS - 1000))
    append(log, batch(timestamp_ms=-1))
    with pytest.raises(KlammError) as caught:
        log.append_as_leader(batch(timestamp_ms=START_MS - 1001), 0)
    assert caught.value.code is ErrorCode.invalid_timestamp


def test_log_append_time(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock, message_timestamp_type="LogAppendTime")
    clock.advance(77)
    raw = batch([b"a", b"b"], timestamp_ms=5)
    assert log.append_as_leader(raw, 0).log_append_time_ms == START_MS + 77
    assert crc_matches(raw, 0, BatchHeader.parse(raw))
    assert [r.timestamp_ms for r in read_all(log)] == [START_MS + 77] * 2


def test_create_time_has_no_append_time(log: PartitionLog) -> None:
    assert log.append_as_leader(batch(), 0).log_append_time_ms == -1


def test_third_party_codecs_only_where_the_topic_names_them(tmp_path: Path) -> None:
    class Rot:
        name, codec_id = "rot", 6

        def compress(self, data: bytes) -> bytes:
            return bytes(data)[::-1]

        def decompress(self, data: bytes, max_size: int) -> bytes:
            return bytes(data)[::-1]

    codecs = CodecTable([Rot()])
    log = open_log(tmp_path, codecs=codecs)
    with pytest.raises(KlammError) as caught:
        log.append_as_leader(batch(codec=Rot()), 0)
    assert caught.value.code is ErrorCode.unsupported_compression_type
    log.reconfigure(log.config.model_copy(update={"compression_type": "rot"}))
    append(log, batch(codec=Rot()))


@pytest.mark.parametrize(("stored", "codec_id"), [("zstd", 4), ("uncompressed", 0), ("gzip", 1), ("producer", 2)])
def test_a_topic_stores_its_own_codec(tmp_path: Path, stored: str, codec_id: int) -> None:
    log = open_log(tmp_path, compression_type=stored)
    raw = batch([b"a"] * 50, codec=CODECS.by_name("snappy"))
    assert log.append_may_block(raw) == (stored != "producer")
    append(log, raw)
    data = log.read(0, 1 << 20).data
    assert BatchHeader.parse(data).codec_id == codec_id
    assert [r.value for r in records_of(data)] == [b"a"] * 50


def test_compacted_topics_refuse_records_without_a_key(tmp_path: Path) -> None:
    log = open_log(tmp_path, cleanup_policy="compact")
    raw = bytearray(
        encode_batch([(START_MS, b"k", b"v", ()), (START_MS, None, b"v", ())], codec=CODECS.by_name("zstd"))
    )
    assert log.append_may_block(raw)
    with pytest.raises(InvalidRecordError, match="1 of 2 records have no key"):
        log.append_as_leader(raw, 0)
    append(log, batch(key=b"k"))
    lying = batch([b"a"] * 3, codec=CODECS.by_name("gzip"))
    with pytest.raises(InvalidRecordError, match="cannot be read"):
        log.append_as_leader(changed(changed(lying, 57, count(2)), 23, count(1)), 0)


def test_plain_appends_do_not_block(log: PartitionLog) -> None:
    assert not log.append_may_block(batch())
    assert not log.append_may_block(b"junk")


def test_an_older_leader_is_fenced(log: PartitionLog) -> None:
    append(log, batch(), leader_epoch=5)
    with pytest.raises(FencedLeaderEpochError, match="epoch 4, but the latest epoch is 5"):
        log.append_as_leader(batch(), 4)
    append(log, batch(), leader_epoch=5)


def test_an_epoch_may_begin_before_its_first_batch(log: PartitionLog) -> None:
    append(log, batch())
    log.begin_leader_epoch(4)
    log.begin_leader_epoch(3)
    assert (log.leader_epoch, log.end_offset_for_epoch(4)) == (4, (4, 1))
    with pytest.raises(FencedLeaderEpochError):
        log.append_as_leader(batch(), 3)


@pytest.mark.parametrize("offset", [1, 7])
def test_truncation_to_the_end_forgets_an_epoch_without_records(log: PartitionLog, offset: int) -> None:
    append(log, batch(), leader_epoch=2)
    log.begin_leader_epoch(4)
    log.truncate_to(offset)
    assert (log.log_end_offset, log.leader_epoch) == (1, 2)


def test_a_replica_keeps_the_leader_s_offsets(log: PartitionLog) -> None:
    raw = bytearray(encode_batch([(START_MS, None, b"v", ())], base_offset=10, leader_epoch=2))
    log.append_as_follower(raw, 2)
    assert (log.log_end_offset, log.high_watermark, log.leader_epoch) == (11, 0, 2)
    with pytest.raises(InvalidRecordError, match="before the log end offset 11"):
        log.append_as_follower(raw, 2)
    assert log.read(0, 1000, isolation=ReadIsolation.LOG_END).data == bytes(raw)


def test_the_broker_may_write_control_batches(log: PartitionLog) -> None:
    log.append_as_leader(changed(batch(), 21, b"\0\x20"), 0, origin=AppendOrigin.INTERNAL)
    assert log.log_end_offset == 1


def test_a_closed_log_says_so(log: PartitionLog) -> None:
    log.close()
    for call in (
        lambda: log.append_as_leader(batch(), 0),
        lambda: log.read(0, 10),
        log.flush,
        lambda: log.truncate_to(0),
    ):
        with pytest.raises(LogClosedError, match="events-0: the log is closed"):
            call()
    log.close()


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("on_loop", [False, True])
def test_a_conditional_append_needs_the_log_to_end_there(tmp_path: Path, checked: bool, on_loop: bool) -> None:
    log = open_log(tmp_path)

    def data() -> Any:
        return from_request(batch()) if checked else batch()

    assert log.append_as_leader(data(), 3, on_loop=on_loop, after=OffsetAndEpoch(0)).base_offset == 0
    for end in (OffsetAndEpoch(0), OffsetAndEpoch(2), OffsetAndEpoch(2, 3), OffsetAndEpoch(1, 2), OffsetAndEpoch(1, 4)):
        with pytest.raises(LogEndMovedError, match=f"the log ends at offset 1 after epoch 3, not at {end}"):
            log.append_as_leader(data(), 5, on_loop=on_loop, after=end)
    assert log.log_end_offset == 1
    log.begin_leader_epoch(5)  # the record before the end is still one of epoch 3
    assert log.append_as_leader(data(), 5, on_loop=on_loop, after=OffsetAndEpoch(1, 3)).base_offset == 1
    assert log.append_as_leader(data(), 5, on_loop=on_loop, after=OffsetAndEpoch(2, 5)).base_offset == 2
    assert log.append_as_leader(data(), 5, on_loop=on_loop, after=OffsetAndEpoch(3)).base_offset == 3
