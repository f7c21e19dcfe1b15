"""The effect of an answer on a follower's log (R9), step by step."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from klamm.core.replication.follower import FetchResult, PartitionFollower
from klamm.core.replication.replica_fetch import EpochEndOffset, ReplicaFetch, ReplicaFetchData
from klammsim.memory_log import MemoryLog


def log_of(*epochs: int) -> MemoryLog:
    """One record for each epoch given."""
    log = MemoryLog("1")
    for offset, epoch in enumerate(epochs):
        log.lead(epoch)
        log.append(100 * epoch + offset, epoch)
    return log


def follower_of(log: MemoryLog) -> tuple[PartitionFollower, ReplicaFetch]:
    follower = PartitionFollower(1, log, 0, 9)
    request = follower.fetch(77)
    assert request is not None
    return follower, request


def records(log: MemoryLog, offset: int) -> bytes:
    return log.read(offset, 100)


def test_it_asks_from_its_end_with_the_last_epoch_that_it_has() -> None:
    _, request = follower_of(log_of(3, 3, 5))
    assert request == ReplicaFetch(1, 77, 9, 3, 5)


def test_records_are_stored_and_the_watermark_is_taken() -> None:
    log = log_of(3)
    follower, request = follower_of(log)
    leader = log_of(3, 3, 9)
    answer = ReplicaFetchData(high_watermark=2, log_start_offset=0, records=records(leader, 1))
    assert follower.on_answer(request, answer) is FetchResult.APPENDED
    assert (log.log_end_offset, log.high_watermark, log.leader_epoch) == (3, 2, 9)
    assert follower.on_answer(request, answer) is FetchResult.STALE


@pytest.mark.parametrize(
    ("own", "diverging", "end", "epochs_left"),
    [
        ((3, 3, 3), EpochEndOffset(3, 2), 2, [3]),
        ((3, 5, 5), EpochEndOffset(3, 9), 1, [3]),
        ((3, 5, 5), EpochEndOffset(4, 9), 1, [3]),
        ((5, 5), EpochEndOffset(3, 1), 0, []),
        ((0, 0), EpochEndOffset(-1, 0), 0, []),
        ((0, 5), EpochEndOffset(-1, 1), 0, []),
    ],
    ids=[
        "leader ends sooner",
        "own epoch ends sooner",
        "epoch not known here",
        "no epoch in common",
        "leader has no epoch",
        "leader has no epoch and starts later",
    ],
)
def test_truncation_is_by_epoch(
    own: tuple[int, ...], diverging: EpochEndOffset, end: int, epochs_left: list[int]
) -> None:
    log = log_of(*own)
    follower, request = follower_of(log)
    answer = ReplicaFetchData(diverging_epoch=diverging, high_watermark=2)
    assert follower.on_answer(request, answer) is FetchResult.TRUNCATED
    assert log.log_end_offset == end
    assert [epoch for epoch, _ in log.epoch_entries()] == epochs_left
    assert log.high_watermark == 0, "not taken from a diverging answer"


def test_an_epoch_without_records_is_cut_at_the_logs_end() -> None:
    log = log_of(3)
    log.lead(7)
    follower, request = follower_of(log)
    assert request.last_fetched_epoch == 7
    assert follower.on_answer(request, ReplicaFetchData(diverging_epoch=EpochEndOffset(3, 1))) is FetchResult.TRUNCATED
    assert (log.log_end_offset, log.leader_epoch) == (1, 3)


def test_an_answer_to_an_earlier_request_is_passed_over() -> None:
    log = log_of(3, 3)
    follower, request = follower_of(log)
    again = follower.fetch(77)
    assert again == request
    assert follower.on_answer(request, ReplicaFetchData(diverging_epoch=EpochEndOffset(3, 0))) is FetchResult.STALE
    assert log.log_end_offset == 2


def test_a_log_below_the_leaders_start_begins_there() -> None:
    log = log_of(3)
    follower, request = follower_of(log)
    answer = ReplicaFetchData(ErrorCode.offset_out_of_range, log_start_offset=50)
    assert follower.on_answer(request, answer) is FetchResult.RESTARTED
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (50, 50, 50)


def test_what_lies_below_the_leaders_start_is_never_shown() -> None:
    log = log_of(3, 3, 3)
    follower, request = follower_of(log)
    shown: list[tuple[int, int]] = []
    log._on_committed = lambda _, first, end: shown.append((first, end))
    answer = ReplicaFetchData(high_watermark=3, log_start_offset=3)
    assert follower.on_answer(request, answer) is FetchResult.APPENDED
    assert (shown, log.log_start_offset, log.high_watermark) == ([], 3, 3)


def test_a_refusal_changes_nothing() -> None:
    log = log_of(3)
    follower, request = follower_of(log)
    for answer in (
        ReplicaFetchData(ErrorCode.fenced_leader_epoch),
        ReplicaFetchData(ErrorCode.offset_out_of_range, log_start_offset=0),
        ReplicaFetchData(ErrorCode.offset_out_of_range),
        ReplicaFetchData(diverging_epoch=EpochEndOffset(-1, -1)),
    ):
        assert follower.on_answer(request, answer) is FetchResult.REFUSED
    assert log.log_end_offset == 1


def test_an_empty_log_does_not_begin_where_the_leader_does_not_say() -> None:
    log = log_of()
    follower, request = follower_of(log)
    assert follower.on_answer(request, ReplicaFetchData(ErrorCode.offset_out_of_range)) is FetchResult.REFUSED
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
