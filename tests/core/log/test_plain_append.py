"""The short way of appending a plain batch is held against `append`: the same files, bounds and refusals."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from klamm.core.errors import StorageError
from klamm.core.faults import install
from klamm.core.log.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.records.native import plain_produce
from klamm.core.records.plain_produce import CHECKED_BYTES, PlainProduce
from klammtest.logs import START_MS, ManualClock, append, batch, clean_start, codec_table, open_log, read_all


def plain(records: bytes) -> PlainProduce:
    """The batch as it comes in a request."""
    around = struct.pack(">hhihhhiih", 0, 7, 1, -1, -1, 1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, len(records))
    read = plain_produce(bytearray(around + records))
    assert read is not None
    return read


def some_batch(rng: random.Random) -> bytearray:
    values = [rng.randbytes(rng.choice((0, 10, 100, 3000))) for _ in range(rng.choice((1, 1, 2, 7)))]
    stamp = START_MS + rng.choice((0, -5, rng.randrange(20_000)))
    codec = codec_table().by_name("zstd") if rng.random() < 0.2 else None
    return batch(values, timestamp_ms=stamp, codec=codec)


def said(log: PartitionLog) -> tuple[object, ...]:
    bounds = (log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset, log.leader_epoch)
    return (*bounds, log.size, log.segment_count, log.offset_for_timestamp(START_MS + 9000))


def files(log: PartitionLog) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in log.directory.iterdir() if path.name != "partition.metadata"}


@pytest.mark.parametrize("seed", range(4))
def test_the_same_log_comes_of_both_ways(tmp_path: Path, seed: int) -> None:
    config = {"segment_bytes": 30_000, "index_interval_bytes": 500, "segment_index_bytes": 400}
    long, short = (open_log(tmp_path / way, ManualClock(), **config) for way in ("long", "short"))
    rng, taken, sequence = random.Random(seed), 0, 0
    for number in range(200):
        data, epoch = some_batch(rng), number // 50
        if rng.random() < 0.3:
            data, sequence = batch([b"a", b"b"], producer=(7, 0, sequence)), sequence + 2
        base = short.append_plain(plain(data), epoch)
        if base is None:
            assert append(short, bytearray(data), leader_epoch=epoch)[0] == long.log_end_offset
        taken += base is not None
        assert base in (None, long.log_end_offset)
        append(long, data, leader_epoch=epoch)
        assert said(short) == said(long)
    assert 130 < taken < 200, "some begin a segment or an epoch"
    assert read_all(short) == read_all(long)
    known, before = clean_start(short), said(long)
    short.close()
    long.close()
    assert files(short) == files(long)
    assert said(open_log(tmp_path / "short", known=known, **config)) == before


@pytest.mark.parametrize(
    "config",
    [
        {"flush_messages": 10},
        {"flush_ms": 1000},
        {"cleanup_policy": "compact"},
        {"compression_type": "gzip"},
        {"message_timestamp_type": "LogAppendTime"},
        {"max_message_bytes": 50},
        {"message_timestamp_before_max_ms": 1000},
        {"message_timestamp_after_max_ms": 1000},
    ],
)
def test_what_a_topic_asks_for_is_left_to_the_long_way(tmp_path: Path, config: dict[str, object]) -> None:
    log = open_log(tmp_path, **config)
    log.begin_leader_epoch(0)
    stamp = START_MS + (5000 if "message_timestamp_after_max_ms" in config else -5000)
    assert log.append_plain(plain(batch(timestamp_ms=stamp)), 0) is None
    assert (log.log_end_offset, log.size) == (0, 0)


def test_what_the_log_has_to_look_at_is_left_to_the_long_way(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(3)
    assert log.append_plain(plain(batch()), 2) is None
    assert log.append_plain(plain(batch()), 4) is None
    damaged = plain(batch([bytes(CHECKED_BYTES)]))
    damaged[5][-1] ^= 1
    assert log.append_plain(damaged, 3) is None
    assert log.append_plain(plain(batch([bytes(CHECKED_BYTES)])), 3) == 0
    log.close()
    assert log.append_plain(plain(batch()), 3) is None


def test_an_idempotent_producer_is_checked(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(0)
    assert log.append_plain(plain(batch([b"a", b"b"], producer=(7, 1, 0))), 0) == 0
    assert log.append_plain(plain(batch([b"a", b"b"], producer=(7, 1, 0))), 0) is None, "a retry"
    assert log.append(batch([b"a", b"b"], producer=(7, 1, 0)), leader_epoch=0)[:2] == (0, 1)
    with pytest.raises(OutOfOrderSequenceError):
        log.append_plain(plain(batch([b"c"], producer=(7, 1, 3))), 0)
    with pytest.raises(InvalidProducerEpochError):
        log.append_plain(plain(batch([b"c"], producer=(7, 0, 2))), 0)
    assert log.append_plain(plain(batch([b"c"], producer=(7, 1, 2))), 0) == 2
    assert (log.log_end_offset, log.high_watermark) == (3, 3)


def test_a_failed_write_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(0)
    assert log.append_plain(plain(batch()), 0) == 0
    before = said(log)

    def full(name: str) -> None:
        if name == "log.append.after_write":
            raise OSError(28, "No space left on device")

    install(full)
    try:
        with pytest.raises(StorageError, match="No space left"):
            log.append_plain(plain(batch()), 0)
    finally:
        install(None)
    assert said(log) == before
    assert log.append_plain(plain(batch()), 0) == 1
