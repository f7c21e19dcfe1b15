"""What no CRC covers (base offset, length, leader epoch, magic) is checked by its neighbours, on every read."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import CorruptRecordError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.segment.reading import ChainRules
from klamm.core.records.header import CRC_FROM, BatchHeader, crc_matches, iter_headers
from klammtest.logs import START_MS, append, batch, open_log

COUNT = 30
UNCOVERED = [*range(17), *range(17, CRC_FROM)]


def fill(directory: Path, **config: object) -> PartitionLog:
    log = open_log(directory, index_interval_bytes=300, **config)
    for n in range(COUNT):
        append(log, batch([b"%04d" % n] * (n % 3 + 1), timestamp_ms=START_MS + n), leader_epoch=n // 8)
    return log


def flip(path: Path, at: int, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def consume(log: PartitionLog, written: bytes, limit: int) -> tuple[set[int], int]:
    """Base offsets of batches that a consumer believes, and how often it was refused; asserts that they are right."""
    truth = {h.base_offset: written[pos : pos + h.size] for pos, h in iter_headers(written)}
    seen, refused, at = set(), 0, 0
    while at < log.log_end_offset:
        before = at
        try:
            data = log.read(at, limit).data
        except CorruptRecordError:
            data, refused = b"", refused + 1
        pos = 0
        while pos < len(data):
            header = BatchHeader.parse(data, pos)
            if not crc_matches(data, pos, header):
                refused += 1
                break
            assert truth.get(header.base_offset) == data[pos : pos + header.size]
            seen.add(header.base_offset)
            pos, at = pos + header.size, header.next_offset
        if at == before:
            at = next((base for base in truth if base > at), log.log_end_offset)
    return seen, refused


@given(
    st.integers(0, COUNT - 1), st.sampled_from(UNCOVERED), st.integers(0, 7), st.sampled_from([1, 400, 1 << 20]),
    st.booleans(),
)  # fmt: skip
@settings(max_examples=120)
def test_a_flipped_bit_under_an_open_log_is_never_served(
    tmp_path_factory: pytest.TempPathFactory, number: int, byte: int, bit: int, limit: int, verify: bool
) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = fill(directory)
    log.verify_on_read = verify
    path = log.directory / f"{0:020d}.log"
    written = path.read_bytes()
    position, header = list(iter_headers(written))[number]
    flip(path, position + byte, bit)
    seen, refused = consume(log, written, limit)
    assert refused
    assert header.base_offset not in seen
    assert {h.base_offset for _, h in list(iter_headers(written))[:number]} <= seen, "what lies before is served"
    log.close(clean=False)
    shutil.rmtree(directory)


def test_it_is_said_once_where_the_damage_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = fill(tmp_path)
    path = log.directory / f"{0:020d}.log"
    position, header = list(iter_headers(path.read_bytes()))[9]
    flip(path, position + 15, 5)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            with pytest.raises(CorruptRecordError, match=rf"{path}, byte {position}: the batch at offset"):
                log.read(header.base_offset, 100)
    assert log.corrupt_batches == 1
    (line,) = (r.getMessage() for r in caplog.records)
    assert line == (
        f"events-0: {path}, byte {position}: the batch at offset {header.base_offset} has the leader epoch 33, not 1; "
        "it is not served"
    )


def test_verify_on_read_withholds_what_fails_its_crc(tmp_path: Path) -> None:
    log = fill(tmp_path)
    path = log.directory / f"{0:020d}.log"
    written = path.read_bytes()
    position, header = list(iter_headers(written))[5]
    flip(path, position + header.size - 1, 0)
    assert log.read(0, 1 << 20).data != written
    log.verify_on_read = True
    assert log.read(0, 1 << 20).data == written[:position]
    with pytest.raises(CorruptRecordError, match="fails its CRC"):
        log.read(header.base_offset, 1 << 20)


def test_a_log_that_was_compacted_may_have_holes_for_ever(tmp_path: Path) -> None:
    log = fill(tmp_path)
    assert log._segments.dense
    log.reconfigure(log.config.model_copy(update={"cleanup_policy": "compact"}))
    log.reconfigure(log.config.model_copy(update={"cleanup_policy": "delete"}))
    log.close()
    assert not open_log(tmp_path)._segments.dense


def test_more_epochs_than_one_look_takes_are_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for n in range(100):
        append(log, batch([b"x"]), leader_epoch=n)
    assert len(list(iter_headers(log.read(0, 1 << 20).data))) == 100


def test_epochs_before_the_first_known_one_are_its() -> None:
    rules = ChainRules(True, False, [3, 5], [10, 20])
    assert [rules.epoch_at(offset) for offset in (8, 10, 19, 20, 99)] == [3, 3, 3, 5, 5]
