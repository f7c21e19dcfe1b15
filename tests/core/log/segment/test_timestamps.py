"""Offsets by record time, against looking at every record."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import CorruptRecordError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.records.encode import encode_batch
from klammtest.logs import START_MS, ManualClock, append, batch, codec_table, open_log, read_all
from klammtest.transactional_logs import add, end, transactional

CODECS = codec_table()


def brute_force(log: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    for record in read_all(log):
        if record.timestamp_ms >= timestamp_ms:
            return record.timestamp_ms, record.offset
    return None


def looked_up(log: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    found = log.offset_for_timestamp(timestamp_ms)
    return None if found is None else (found.timestamp_ms, found.offset)


stamps = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=25)


@given(stamps, st.sampled_from(["none", "zstd"]), st.sampled_from([400, 10**6]), st.booleans())
@settings(max_examples=60)
def test_the_first_record_of_a_time_or_later(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], codec: str, segment_bytes: int, reopen: bool
) -> None:
    directory = tmp_path_factory.mktemp("log")
    config = {"segment_bytes": segment_bytes, "index_interval_bytes": 100, "segment_ms": 10**9}
    log = open_log(directory, **config)
    for times in batches:
        rows = [(time, b"k", b"v", ()) for time in times]
        append(log, bytearray(encode_batch(rows, codec=CODECS.by_name(codec))), leader_epoch=1)
    if reopen:
        log.close(clean=False)
        log = open_log(directory, **config)
        log.advance_high_watermark(log.log_end_offset)
    for time in range(-1, 62):
        assert looked_up(log, time) == brute_force(log, time)
    largest = max(max(times) for times in batches)
    assert log.offset_of_largest_timestamp() == (*(brute_force(log, largest) or ()), 1)
    log.close()


def test_an_empty_log_has_no_times(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_largest_timestamp() is None
    append(log, batch(timestamp_ms=-1))
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_largest_timestamp() is None


def test_what_consumers_cannot_see_is_not_found(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append_as_leader(batch([b"a"]), 0)
    assert log.offset_for_timestamp(START_MS) is None
    found = log.offset_for_timestamp(START_MS, isolation=ReadIsolation.LOG_END)
    assert found == (START_MS, 0, 0)


def test_what_retention_has_passed_is_not_found(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=300, retention_bytes=300)
    for n in range(9):
        append(log, batch([b"x" * 100], timestamp_ms=START_MS + n))
    log.apply_retention(START_MS)
    assert log.log_start_offset > 1
    assert looked_up(log, 0) == (START_MS + log.log_start_offset, log.log_start_offset)


def test_log_append_time_finds_the_batch_s_first_record(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    append(log, batch([b"a"] * 3))
    assert looked_up(log, 0) == (START_MS, 0)
    assert log.offset_of_largest_timestamp() == (START_MS, 0, 0)


def test_a_marker_may_have_the_largest_timestamp(tmp_path: Path) -> None:
    """As in Kafka; a time that only a marker has is not found, since no record has it."""
    clock = ManualClock()
    log = open_log(tmp_path, clock)
    add(log, transactional([b"a"], producer=(1, 0, 0)))
    clock.advance(50)
    end(log, 1, commit=True)
    assert log.offset_of_largest_timestamp() == (START_MS + 50, 1, 0)
    assert looked_up(log, START_MS) == (START_MS, 0)
    assert looked_up(log, START_MS + 1) is None


def test_a_lying_batch_is_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch([b"a"]))
    raw = batch([b"abc"] * 3, codec=CODECS.by_name("gzip"))
    from klamm.core.records.header import crc_of, set_crc

    raw[57:61] = (2).to_bytes(4, "big")
    raw[23:27] = (1).to_bytes(4, "big")
    raw[35:43] = (START_MS + 50).to_bytes(8, "big")
    set_crc(raw, 0, crc_of(raw, 0, len(raw)))
    append(log, raw)
    with pytest.raises(CorruptRecordError, match="events-0 offset 1"):
        log.offset_for_timestamp(START_MS + 1)
