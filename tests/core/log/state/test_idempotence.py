"""Idempotent producers: retries, gaps, epochs, and what a restart remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.core.errors import CorruptRecordError, ErrorCode, KlammError
from klamm.core.log.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from klamm.core.log.partition_log import PartitionLog
from klamm.core.log.state.producer_state import BATCHES_KEPT, MAX_PRODUCERS, ProducerState
from klamm.core.records.header import DERIVED_PRODUCER_IDS, BatchHeader
from klammtest.logs import TP, ManualClock, append, batch, clean_start, open_log, read_all

DAY_MS = 86_400_000


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path)


def send(log: PartitionLog, sequence: int, *, count: int = 1, epoch: int = 0, pid: int = 1) -> tuple[int, bool]:
    result = log.append_as_leader(
        batch([b"%d" % (sequence + i) for i in range(count)], producer=(pid, epoch, sequence)), 0
    )
    return result.base_offset, result.duplicate


def test_a_retry_gets_its_first_offset(log: PartitionLog) -> None:
    assert send(log, 0, count=3) == (0, False)
    assert send(log, 3) == (3, False)
    assert send(log, 0, count=3) == (0, True)
    assert send(log, 3) == (3, True)
    assert log.log_end_offset == 4


def test_five_batches_back_and_no_further(log: PartitionLog) -> None:
    for sequence in range(7):
        send(log, sequence)
    for sequence in range(2, 7):
        assert send(log, sequence) == (sequence, True)
    with pytest.raises(OutOfOrderSequenceError, match=r"^events-0: producer 1 sent the sequence 1, expected 7"):
        send(log, 1)


def test_gaps_are_refused(log: PartitionLog) -> None:
    send(log, 0)
    with pytest.raises(OutOfOrderSequenceError, match="sequence 2, expected 1") as caught:
        send(log, 2)
    assert caught.value.code is ErrorCode.out_of_order_sequence_number
    assert send(log, 1) == (1, False)


def test_part_of_a_batch_is_no_retry(log: PartitionLog) -> None:
    send(log, 0, count=3)
    with pytest.raises(OutOfOrderSequenceError):
        send(log, 0, count=2)


def test_an_unknown_producer_may_begin_anywhere(log: PartitionLog) -> None:
    assert send(log, 4711) == (0, False)
    assert send(log, 4712) == (1, False)


def test_epochs(log: PartitionLog) -> None:
    send(log, 0, epoch=1)
    with pytest.raises(InvalidProducerEpochError, match="epoch 0, but its last epoch here was 1") as caught:
        send(log, 1, epoch=0)
    assert caught.value.code is ErrorCode.invalid_producer_epoch
    with pytest.raises(OutOfOrderSequenceError, match="epoch 2 with the sequence 1, not 0"):
        send(log, 1, epoch=2)
    assert send(log, 0, epoch=2) == (1, False)


def test_sequences_wrap(log: PartitionLog) -> None:
    top = 2**31 - 1
    send(log, top - 1, count=2)
    assert send(log, 0) == (2, False)
    assert send(log, 1, count=2) == (3, False)
    log.append_as_leader(batch([b"x"] * 3, producer=(2, 0, top)), 0)
    assert log.append_as_leader(batch([b"y"], producer=(2, 0, 2)), 0).duplicate is False


def test_producers_do_not_disturb_each_other(log: PartitionLog) -> None:
    assert [send(log, n // 2, pid=n % 2)[0] for n in range(10)] == list(range(10))


@pytest.mark.parametrize("how", ["crash", "clean", "crash after roll", "clean after roll", "snapshot lost"])
def test_a_restart_remembers_the_last_five(tmp_path: Path, how: str) -> None:
    log = open_log(tmp_path, segment_bytes=400 if "roll" in how else 1 << 20)
    for sequence in range(12):
        send(log, sequence)
        send(log, sequence, pid=2)
    assert ("roll" in how) == (log.segment_count > 1)
    clean = "crash" not in how
    log.close(clean=clean)
    if how == "snapshot lost":
        for path in log.directory.glob("*.snapshot"):
            path.unlink()
    again = open_log(tmp_path, known=clean_start(log) if clean else None)
    for sequence in range(12 - BATCHES_KEPT, 12):
        assert send(again, sequence) == (sequence * 2, True)
        assert send(again, sequence, pid=2) == (sequence * 2 + 1, True)
    with pytest.raises(OutOfOrderSequenceError):
        send(again, 13)
    assert send(again, 12) == (24, False)
    assert [r.offset for r in read_all(again)] == list(range(25))


def test_truncation_takes_producers_back(log: PartitionLog) -> None:
    for sequence in range(4):
        send(log, sequence)
    log.truncate_to(2)
    assert send(log, 1) == (1, True)
    assert send(log, 2) == (2, False)


def test_idle_producers_are_forgotten_as_time_passes(tmp_path: Path) -> None:
    clock = ManualClock()
    log = open_log(tmp_path, clock)
    log.append_as_leader(batch(timestamp_ms=0, producer=(1, 0, 0)), 0)
    assert log.expire_producers(0, DAY_MS) == 0, "an old record does not make its producer old"
    clock.advance(2 * DAY_MS)
    assert log.expire_producers(DAY_MS, DAY_MS) == 0, "nor does a clock that is set ahead"
    log.append_as_leader(batch(producer=(2, 0, 0)), 0)
    log.close()
    log = open_log(tmp_path, clock, known=clean_start(log))
    assert log.expire_producers(0, DAY_MS) == 0, "a snapshot has their ages"
    assert log.expire_producers(1, DAY_MS) == 1
    assert send(log, 500) == (2, False)
    with pytest.raises(OutOfOrderSequenceError):
        send(log, 500, pid=2)


def test_the_number_of_producers_is_bounded() -> None:
    state = ProducerState(TP)
    header = BatchHeader.parse(batch(producer=(0, 0, 0)))
    for pid in range(MAX_PRODUCERS + 10):
        state.update(header._replace(producer_id=pid))
    assert len(state) == MAX_PRODUCERS
    assert next(iter(state)) == 10


def test_snapshots_round_trip_and_notice_damage() -> None:
    state = ProducerState(TP)
    for n in range(20):
        header = BatchHeader.parse(batch([b"x"] * 2, producer=(n % 3, 1, n * 2)))
        state.update(header._replace(base_offset=n * 2))
        state.expire(1, DAY_MS)
    raw = state.to_bytes()
    assert ProducerState.from_bytes(TP, raw).to_bytes() == raw
    for at in range(len(raw)):
        with pytest.raises(CorruptRecordError):
            ProducerState.from_bytes(TP, raw[:at])
        flipped = bytearray(raw)
        flipped[at] ^= 0x10
        if not 6 <= at < 10:
            with pytest.raises(CorruptRecordError):
                ProducerState.from_bytes(TP, bytes(flipped))


def test_a_refused_batch_changes_nothing(log: PartitionLog) -> None:
    send(log, 0)
    for sequence, epoch in ((5, 0), (5, 1)):
        with pytest.raises(KlammError):
            send(log, sequence, epoch=epoch)
    append(log, batch([b"no producer"]))
    assert send(log, 1) == (2, False)


def test_ids_that_clients_compute_do_not_count_as_allocated(log: PartitionLog, tmp_path: Path) -> None:
    """The Spark sink's: a broker allocates ids above the highest one that it has seen."""
    send(log, 0, pid=7)
    send(log, 0, pid=DERIVED_PRODUCER_IDS)
    assert send(log, 0, pid=DERIVED_PRODUCER_IDS) == (1, True)
    assert log.highest_producer_id == 7
    log.close()
    again = open_log(tmp_path)
    assert again.highest_producer_id == 7
    assert send(again, 0, pid=DERIVED_PRODUCER_IDS) == (1, True)
    again.close()
