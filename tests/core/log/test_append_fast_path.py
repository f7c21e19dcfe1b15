"""The fast case of `append`, for a batch that was checked when its request was read, is held against the general one:
the same files, bounds and refusals."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from klamm.core.errors import KlammError, StorageError
from klamm.core.faults import install
from klamm.core.log.errors import (
    FencedLeaderEpochError,
    InvalidProducerEpochError,
    LogClosedError,
    OutOfOrderSequenceError,
    WouldBlockError,
)
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.validation import Validator
from klammtest.logs import (
    START_MS,
    ManualClock,
    append_checked,
    batch,
    clean_start,
    codec_table,
    from_request,
    open_log,
    read_all,
)
from klammtest.native.produce_twin import CHECKED_BYTES


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[Validator]:
    """The validators of the logs that took a batch the general way, one entry for each batch."""
    took: list[Validator] = []
    prepare = Validator.prepare

    def noted(validator: Validator, *args: object, **kwargs: object) -> object:
        took.append(validator)
        return prepare(validator, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Validator, "prepare", noted)
    return took


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
def test_the_same_log_comes_of_both(tmp_path: Path, seed: int, general: list[Validator]) -> None:
    config = {"segment_bytes": 30_000, "index_interval_bytes": 500, "segment_index_bytes": 400}
    long, short = (open_log(tmp_path / way, ManualClock(), **config) for way in ("long", "short"))
    rng, sequence = random.Random(seed), 0
    for number in range(200):
        data, epoch = some_batch(rng), number // 50
        if rng.random() < 0.3:
            data, sequence = batch([b"a", b"b"], producer=(7, 0, sequence)), sequence + 2
        result = append_checked(short, from_request(data), leader_epoch=epoch)
        assert result == long.append_as_leader(data, epoch, commit=True)
        assert result.high_watermark_advanced
        assert said(short) == said(long)
    fast = 200 - general.count(short._validator)
    assert 130 < fast < 200, "some begin a segment or an epoch"
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
def test_what_a_topic_asks_for_takes_the_general_way(
    tmp_path: Path, config: dict[str, object], general: list[Validator]
) -> None:
    log, other = open_log(tmp_path / "log", **config), open_log(tmp_path / "other", **config)
    stamp = START_MS + (5000 if "message_timestamp_after_max_ms" in config else -5000)
    data = batch(timestamp_ms=stamp)
    for each in (log, other):
        each.begin_leader_epoch(0)
    found = outcome(log, data, checked=True)
    assert found == outcome(other, data, checked=False)
    assert said(log) == said(other)
    assert len(general) == 2


def outcome(log: PartitionLog, data: bytearray, *, checked: bool) -> object:
    """The result, or the error's kind and text."""
    request = from_request(data) if checked else None
    try:
        return log.append_as_leader(request or bytearray(data), 0, commit=True)
    except KlammError as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    "config", [{"flush_messages": 10}, {"cleanup_policy": "compact"}, {"compression_type": "gzip"}]
)
def test_what_may_block_does_not_happen_on_the_loop(tmp_path: Path, config: dict[str, object]) -> None:
    log = open_log(tmp_path, **config)
    log.begin_leader_epoch(0)
    with pytest.raises(WouldBlockError):
        append_checked(log, from_request(batch()), on_loop=True)
    assert (log.log_end_offset, log.size) == (0, 0)


@pytest.mark.parametrize("checked", [True, False])
def test_the_loop_does_not_wait_for_an_append_of_another_thread(tmp_path: Path, checked: bool) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(0)
    append_checked(log, from_request(batch()))
    in_append, ends = threading.Event(), threading.Event()

    def held_up(point: str) -> None:
        if point == "log.append.before_write":
            in_append.set()
            ends.wait(10)

    install(held_up)
    writer = threading.Thread(target=log.append_as_leader, args=(batch(), 0), kwargs={"commit": True})
    writer.start()
    try:
        assert in_append.wait(10), "the other thread appends"
        with pytest.raises(WouldBlockError, match="another thread changes the log"):
            log.append_as_leader(from_request(batch()) if checked else batch(), 0, on_loop=True)
        assert log.read_cached(0, 1000) is None, "a worker thread must read it"
    finally:
        ends.set()
        writer.join()
        install(None)
    assert log.append_as_leader(from_request(batch()) if checked else batch(), 0, on_loop=True).base_offset == 2
    assert log.read_cached(0, 1000) is not None


def test_a_batch_that_the_loop_leaves_to_a_worker_thread_is_unchanged(tmp_path: Path) -> None:
    """LogAppendTime is written into the batch in place: a worker thread would find it in what the client sent."""
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    log.begin_leader_epoch(0)
    held, ends, sent = threading.Event(), threading.Event(), batch()

    def hold() -> None:
        with log._lock:
            held.set()
            ends.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert held.wait(10), "the log is held"
        with pytest.raises(WouldBlockError):
            log.append_as_leader(sent, 0, on_loop=True)
    finally:
        ends.set()
        holder.join()
    assert sent == batch()
    assert log.append_as_leader(sent, 0).base_offset == 0


def test_a_commit_shows_no_more_than_is_flushed(tmp_path: Path) -> None:
    log = open_log(tmp_path, flush_ms=1000)
    assert not append_checked(log, from_request(batch())).high_watermark_advanced
    assert (log.log_end_offset, log.high_watermark) == (1, 0)
    log.flush()
    assert log.high_watermark == 1


def test_without_a_commit_nothing_is_shown(tmp_path: Path, general: list[Validator]) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(0)
    for checked in (from_request(batch()), None):
        assert not log.append_as_leader(checked or batch(), 0).high_watermark_advanced
    assert (log.log_end_offset, log.high_watermark, len(general)) == (2, 0, 1)


def test_what_the_log_has_to_look_at_takes_the_general_way(tmp_path: Path, general: list[Validator]) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(3)
    with pytest.raises(FencedLeaderEpochError):
        append_checked(log, from_request(batch()), leader_epoch=2)
    damaged = from_request(batch([bytes(CHECKED_BYTES)]))
    damaged[0][-1] ^= 1
    with pytest.raises(KlammError, match=r"^events-0: a record batch fails its CRC"):
        append_checked(log, damaged, leader_epoch=3)
    assert len(general) == 2
    assert append_checked(log, from_request(batch([bytes(CHECKED_BYTES)])), leader_epoch=3)[:2] == (0, 0)
    assert len(general) == 2
    assert append_checked(log, from_request(batch()), leader_epoch=4)[:2] == (1, 1)
    assert (log.leader_epoch, len(general)) == (4, 3)
    log.close()
    with pytest.raises(LogClosedError):
        append_checked(log, from_request(batch()), leader_epoch=4)


def test_an_idempotent_producer_is_checked(tmp_path: Path, general: list[Validator]) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(0)

    def send(values: list[bytes], epoch: int, sequence: int) -> tuple[int, int, bool]:
        result = append_checked(log, from_request(batch(values, producer=(7, epoch, sequence))))
        return result.base_offset, result.last_offset, result.duplicate

    assert send([b"a", b"b"], 1, 0) == (0, 1, False)
    assert general == []
    assert send([b"a", b"b"], 1, 0) == (0, 1, True)
    assert len(general) == 1
    with pytest.raises(OutOfOrderSequenceError):
        send([b"c"], 1, 3)
    with pytest.raises(InvalidProducerEpochError):
        send([b"c"], 0, 2)
    assert send([b"c"], 1, 2) == (2, 2, False)
    assert (log.log_end_offset, log.high_watermark) == (3, 3)


def test_a_failed_write_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_leader_epoch(0)
    assert append_checked(log, from_request(batch()))[:2] == (0, 0)
    before = said(log)

    def full(name: str) -> None:
        if name == "log.append.after_write":
            raise OSError(28, "No space left on device")

    install(full)
    try:
        with pytest.raises(StorageError, match="No space left"):
            append_checked(log, from_request(batch()))
    finally:
        install(None)
    assert said(log) == before
    assert append_checked(log, from_request(batch()))[:2] == (1, 1)
