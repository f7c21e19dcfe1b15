"""Batch headers: parsing, walking, rewriting in place."""

from __future__ import annotations

import pytest

from klamm.core.errors import CorruptRecordError
from klamm.core.records.header import (
    HEADER_SIZE,
    BatchHeader,
    crc_matches,
    iter_headers,
    rewrite_base,
    rewrite_log_append_time,
)
from klammtest.logs import START_MS, batch


def test_fields_of_a_batch() -> None:
    raw = batch([b"a", b"b"], producer=(9, 3, 100), step_ms=5)
    header = BatchHeader.parse(raw)
    assert (header.magic, header.record_count, header.last_offset_delta) == (2, 2, 1)
    assert (header.base_timestamp, header.max_timestamp) == (START_MS, START_MS + 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (9, 3, 100, 101)
    assert header.size == len(raw)
    assert (header.last_offset, header.next_offset) == (1, 2)
    assert not any((header.is_control, header.is_transactional, header.log_append_time, header.codec_id))
    assert crc_matches(raw, 0, header)


def test_sequences_wrap_to_zero() -> None:
    header = BatchHeader.parse(batch([b"a", b"b", b"c"], producer=(1, 0, 2**31 - 2)))
    assert header.last_sequence == 0


def test_base_offset_and_epoch_lie_outside_the_crc() -> None:
    raw = batch()
    rewrite_base(raw, 0, 12345678901, 7)
    header = BatchHeader.parse(raw)
    assert (header.base_offset, header.leader_epoch) == (12345678901, 7)
    assert crc_matches(raw, 0, header)


def test_log_append_time_gets_a_new_crc() -> None:
    raw = batch()
    written = rewrite_log_append_time(raw, 0, BatchHeader.parse(raw), START_MS + 99)
    assert BatchHeader.parse(raw) == written
    assert (written.log_append_time, written.max_timestamp) == (True, START_MS + 99)
    assert crc_matches(raw, 0, written)


def test_iteration_ends_at_a_partial_batch() -> None:
    one, two = batch([b"1"]), batch([b"2", b"3"])
    for cut in (0, 11, HEADER_SIZE, len(two) - 1):
        found = list(iter_headers(bytes(one + two[:cut])))
        assert [(pos, header.record_count) for pos, header in found] == [(0, 1)]
    assert [pos for pos, _ in iter_headers(one + two)] == [0, len(one)]


def test_a_flipped_bit_fails_the_crc() -> None:
    raw = batch([b"some value"])
    header = BatchHeader.parse(raw)
    raw[-1] ^= 1
    assert not crc_matches(raw, 0, header)
    assert not crc_matches(raw[:-1], 0, header)


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_an_impossible_length_is_refused(length: int) -> None:
    raw = batch()
    raw[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordError, match="length"):
        BatchHeader.parse(raw)


def test_another_magic_is_refused() -> None:
    raw = batch()
    raw[16] = 1
    with pytest.raises(CorruptRecordError, match="magic 1"):
        BatchHeader.parse(raw)


def test_a_cut_header_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="60 are there"):
        BatchHeader.parse(batch()[:60])
