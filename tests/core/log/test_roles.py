"""A log accepts the appends of its role only (R11), and stores what a follower copies in runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from klamm.core.errors import CorruptRecordError
from klamm.core.log.errors import FencedLeaderEpochError, InvalidRecordError
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.records.encode import encode_batch
from klamm.core.replication.follower import PartitionFollower
from klamm.core.replication.replica_fetch import EpochEndOffset, ReplicaFetchData
from klammtest.logs import START_MS, batch, open_log, read_all


def run(*bases: int, epoch: int = 2, size: int = 20, producer: int = -1) -> bytes:
    """Batches of one record, as a leader stores them."""
    return b"".join(
        bytes(
            encode_batch(
                [(START_MS, None, b"%06d" % base + b"x" * size, ())],
                base_offset=base,
                leader_epoch=epoch,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=base if producer >= 0 else -1,
            )
        )
        for base in bases
    )


def values(log: PartitionLog) -> list[bytes]:
    return [bytes(record.value or b"")[:6] for record in read_all(log)]


def test_a_leader_takes_the_appends_of_its_epoch_only(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.lead(3)
    log.append_as_leader(batch(), 3)
    for epoch in (2, 4):
        with pytest.raises(FencedLeaderEpochError):
            log.append_as_leader(batch(), epoch)
    with pytest.raises(FencedLeaderEpochError, match="the log leads in epoch 3"):
        log.append_as_follower(run(1, epoch=3), 3)
    log.follow(4)
    with pytest.raises(FencedLeaderEpochError, match="the log follows in epoch 4"):
        log.append_as_leader(batch(), 4)
    log.rest()
    with pytest.raises(FencedLeaderEpochError, match="the log has no role"):
        log.append_as_follower(run(1, epoch=4), 4)
    assert log.log_end_offset == 1


def test_the_role_of_a_deposed_leader_fences_the_fast_path_too(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.lead(3)
    log.append_as_leader(batch(), 3)
    log.follow(4)
    with pytest.raises(FencedLeaderEpochError):
        log.append_as_leader(batch(), 3)
    assert log.log_end_offset == 1


def test_a_run_of_batches_is_stored_as_the_leader_has_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2000, index_interval_bytes=300)
    log.follow(2)
    data = run(*range(100))
    assert log.append_as_follower(data, 2) == 100
    assert log.segment_count > 3
    assert (log.leader_epoch, log.last_record_epoch, log.high_watermark) == (2, 2, 0)
    assert log.read(0, 1 << 20, isolation=ReadIsolation.LOG_END).data == data
    log.advance_high_watermark(100)
    for offset in (0, 1, 50, 99):
        assert log.read(offset, 1).data == run(offset)


def test_a_run_may_lack_offsets(tmp_path: Path) -> None:
    """As that of a mirror's gap: what lies behind it must be served, and not be cut at the next start."""
    log, data = open_log(tmp_path), run(0, 1, 5, 6)
    log.follow(2)
    log.append_as_follower(data, 2)
    assert log.read(0, 1 << 20, isolation=ReadIsolation.LOG_END).data == data
    log.close(clean=False)
    again = open_log(tmp_path)
    assert again.log_end_offset == 7
    assert again.read(0, 1 << 20, isolation=ReadIsolation.LOG_END).data == data


def test_a_run_keeps_the_producers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(2)
    log.append_as_follower(run(0, 1, 2, producer=7), 2)
    log.lead(3)
    retry = bytearray(run(2, producer=7))
    assert log.append_as_leader(retry, 3).duplicate


def test_a_run_may_begin_epochs(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(5)
    log.append_as_follower(run(0, 1, epoch=2) + run(2, 3, epoch=5), 5)
    assert log.end_offset_for_epoch(2) == (2, 2)
    assert log.end_offset_for_epoch(5) == (5, 4)
    with pytest.raises(InvalidRecordError, match="after epoch 5"):
        log.append_as_follower(run(4, epoch=3), 5)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (run(0), InvalidRecordError),
        (run(2)[:-3], CorruptRecordError),
        (run(2)[:-1] + b"y", CorruptRecordError),
        (run(3, 2), CorruptRecordError),
        (b"", CorruptRecordError),
    ],
)
def test_what_does_not_continue_the_log_is_refused(tmp_path: Path, data: bytes, error: type[Exception]) -> None:
    log = open_log(tmp_path)
    log.follow(2)
    log.append_as_follower(run(0, 1), 2)
    with pytest.raises(error):
        log.append_as_follower(data, 2)
    assert (log.log_end_offset, log.size) == (2, len(run(0, 1)))


def test_a_log_restarts_where_the_leader_begins(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=500)
    log.follow(2)
    log.append_as_follower(run(*range(20)), 2)
    log.restart_at(5000, 2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5000, 5000, 5000)
    assert (log.leader_epoch, log.segment_count) == (-1, 1)
    with pytest.raises(InvalidRecordError, match="the leader of epoch 2 sent a batch of epoch 4"):
        log.append_as_follower(run(5000, 5001, epoch=4), 2)
    log.follow(4)
    log.append_as_follower(run(5000, 5001, epoch=4), 4)
    log.advance_high_watermark(5002)
    assert values(log) == [b"005000", b"005001"]
    log.close()
    again = open_log(tmp_path, known=OpenFrom(log_start_offset=5000, high_watermark=5002))
    assert (again.log_start_offset, again.log_end_offset) == (5000, 5002)


def test_an_empty_log_may_begin_within_a_batch(tmp_path: Path) -> None:
    """The leader's start may lie within a batch, after DeleteRecords."""
    log = open_log(tmp_path)
    log.follow(2)
    log.restart_at(2, 2)
    data = bytes(encode_batch([(START_MS, None, b"%d" % n, ()) for n in range(4)], base_offset=0, leader_epoch=2))
    log.append_as_follower(data, 2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 4)
    log.advance_high_watermark(4)
    assert log.read(2, 1000).data == data


def test_a_truncation_needs_the_role(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(2)
    log.append_as_follower(run(0, 1, 2), 2)
    log.lead(3)
    for change in (lambda: log.truncate_to(1, 2), lambda: log.restart_at(9, 2)):
        with pytest.raises(FencedLeaderEpochError):
            change()
    assert log.log_end_offset == 3


def test_epochs_of_unflushed_batches_are_found_again(tmp_path: Path) -> None:
    """A follower writes its epochs without waiting for the disk: they may be missing after a power loss."""
    log = open_log(tmp_path)
    log.follow(4)
    log.append_as_follower(run(0, epoch=2), 4)
    log.flush()
    before = (log.directory / "leader-epoch-checkpoint").read_bytes()
    log.append_as_follower(run(1, 2, epoch=4), 4)
    log.close(clean=False)
    (log.directory / "leader-epoch-checkpoint").write_bytes(before)
    again = open_log(tmp_path, known=OpenFrom(recovery_point=1))
    assert again.end_offset_for_epoch(2) == (2, 1)
    assert (again.leader_epoch, again.log_end_offset) == (4, 3)


def test_a_flush_makes_the_epochs_durable(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(4)
    log.append_as_follower(run(0, epoch=2), 4)
    assert not log.is_durable
    log.flush()
    assert log.is_durable


def test_an_epoch_that_begins_while_the_file_system_is_synced_is_written_durably(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(6)
    log.append_as_follower(run(0, epoch=5), 6)
    before = log.leader_epoch_changes
    log.append_as_follower(run(1, epoch=6), 6)
    file = log.directory / "leader-epoch-checkpoint"
    unsynced = file.stat().st_ino
    log.make_durable(written=before)
    assert log.is_durable
    assert file.stat().st_ino != unsynced
    log.follow(7)
    log.append_as_follower(run(2, epoch=7), 7)
    appended = file.stat().st_ino
    assert not log.is_durable
    log.make_durable(written=log.leader_epoch_changes)
    assert log.is_durable
    assert file.stat().st_ino == appended, "the file system was synced since"


def test_the_log_start_follows_the_leader(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(2)
    log.append_as_follower(run(*range(5)), 2)
    log.advance_log_start(3)
    assert (log.log_start_offset, log.high_watermark) == (3, 3)
    log.advance_log_start(99)
    assert (log.log_start_offset, log.high_watermark) == (5, 5)
    log.advance_log_start(1)
    assert log.log_start_offset == 5


def test_a_truncation_that_waited_for_a_flush_changes_nothing_in_the_next_term_of_the_same_epoch(
    tmp_path: Path,
) -> None:
    """The session ended meanwhile, the broker registered again, and follows the same leader in the same epoch: what it
    has stored and reported since stays."""
    log = open_log(tmp_path)
    log.follow(1)
    log.append_as_follower(run(*range(5), epoch=1), 1)
    diverging = ReplicaFetchData(diverging_epoch=EpochEndOffset(1, 3))
    former = PartitionFollower(0, log, 1, 3)
    fetch = former.fetch(10)
    assert fetch is not None
    raised: list[Exception] = []
    waits, go_on = threading.Event(), threading.Event()
    flush_lock = log._flush_lock

    class Held:
        """The flush lock, for which the truncation of the former term waits."""

        def __enter__(self) -> None:
            waits.set()
            go_on.wait(30)
            flush_lock.acquire()

        def __exit__(self, *_: object) -> None:
            flush_lock.release()

    def take() -> None:
        try:
            former.on_answer(fetch, diverging)
        except FencedLeaderEpochError as error:
            raised.append(error)

    log._flush_lock = Held()  # type: ignore[assignment]
    worker = threading.Thread(target=take)
    worker.start()
    assert waits.wait(30)
    log._flush_lock = flush_lock
    log.rest()
    follower = PartitionFollower(0, log, 1, 3)
    for answer in (diverging, ReplicaFetchData(high_watermark=6, records=run(3, 4, 5, epoch=3))):
        fetch_again = follower.fetch(11)
        assert fetch_again is not None
        follower.on_answer(fetch_again, answer)
    go_on.set()
    worker.join()
    assert (log.log_end_offset, log.high_watermark) == (6, 6)
    assert [str(error) for error in raised] == [
        "events-0: a change under leader epoch 3 in an earlier term of following"
    ]


def test_a_run_with_a_gap_is_served_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.follow(3)
    log.append_as_follower(run(0, 1, 7, 8), 3)
    assert values(log) == [b"000000", b"000001", b"000007", b"000008"]
    with pytest.raises(CorruptRecordError):
        log.append_as_follower(run(9, 10)[:-1] + b"?", 3)
    assert log.log_end_offset == 9
    log.append_as_follower(run(12, 14, epoch=3), 3)
    assert [tuple(each) for each in log.epoch_ranges(exact=False)] == [(2, 0, 12), (3, 12, 15)]
    assert [tuple(each) for each in log.epoch_ranges(exact=True)] == [(2, 0, 9), (3, 12, 15)]
    log.close()
