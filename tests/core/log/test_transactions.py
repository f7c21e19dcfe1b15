"""Transactions in a log: open ones, markers, the last stable offset, and the aborted list of reads."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.core.errors import KlammError
from klamm.core.log.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from klamm.core.log.partition_log import PartitionLog, ReadIsolation
from klamm.core.log.recovery.loader import OpenFrom
from klamm.core.log.role import ANY_EPOCH
from klamm.core.log.validation import AppendOrigin
from klamm.core.records.control import TransactionMarker, encode_marker, read_marker
from klamm.core.records.header import CONTROL, CRC_FROM, BatchHeader, crc_matches, crc_of, iter_headers, set_crc
from klammtest.logs import START_MS, ManualClock, append, batch, clean_start, open_log, records_of
from klammtest.transactional_logs import Expected, add, committed, end, transactional

COMMITTED = ReadIsolation.COMMITTED


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_log(tmp_path)


def read_committed(log: PartitionLog, offset: int = 0) -> tuple[list[bytes | None], list[tuple[int, int]]]:
    found = log.read(offset, 1 << 20, isolation=COMMITTED)
    again = log.read_cached(offset, 1 << 20, isolation=COMMITTED)
    assert again is None or again == found
    return [record.value for record in committed(found.data, found.aborted)], [tuple(one) for one in found.aborted]


def test_a_marker_is_kafkas() -> None:
    """The bytes of a commit marker of Apache Kafka 4.1, as its log has them (producer 1000, epoch 3, at offset 7)."""
    made = encode_marker(1000, 3, TransactionMarker(True, 5), START_MS, 7)
    header = BatchHeader.parse(made)
    assert len(made) == 78
    assert crc_matches(made, 0, header)
    assert (header.is_marker, header.base_sequence, header.record_count) == (True, -1, 1)
    assert made[61:].hex() == "20" + "00" + "00" + "00" + "08" + "00000001" + "0c" + "000000000005" + "00"
    assert read_marker(made, 0, header) == TransactionMarker(True, 5)


def test_readers_of_committed_records_stop_at_an_open_transaction(log: PartitionLog) -> None:
    append(log, batch([b"plain"]))
    add(log, transactional([b"a"], producer=(1, 0, 0)))
    append(log, batch([b"later"]))
    assert (log.high_watermark, log.last_stable_offset) == (3, 1)
    assert log.first_offsets_of_transactions == {1: 1}
    assert read_committed(log) == ([b"plain"], [])
    assert log.offset_for_timestamp(START_MS, isolation=COMMITTED).offset == 0  # type: ignore[union-attr]
    end(log, 1, commit=True)
    assert (log.high_watermark, log.last_stable_offset) == (4, 4)
    assert read_committed(log) == ([b"plain", b"a", b"later"], [])
    assert log.first_offsets_of_transactions == {}


def test_an_aborted_transaction_is_listed_for_each_read_that_has_its_records(log: PartitionLog) -> None:
    for n in range(3):
        add(log, transactional([b"%d" % n], producer=(1, 0, n)))
        append(log, batch([b"plain %d" % n]))
    end(log, 1, commit=False)
    append(log, batch([b"after"]))
    assert read_committed(log) == ([b"plain 0", b"plain 1", b"plain 2", b"after"], [(1, 0)])
    assert read_committed(log, 4) == ([b"plain 2", b"after"], [(1, 0)])
    assert read_committed(log, 6)[1] == [(1, 0)], "the marker is in the read"
    assert read_committed(log, 7) == ([b"after"], [])
    assert log.read(0, 1 << 20).aborted == (), "only readers of committed records get the list"


def test_the_list_is_of_the_bytes_that_were_read(log: PartitionLog) -> None:
    append(log, batch([b"first"]))
    add(log, transactional([b"a"], producer=(1, 0, 0)))
    end(log, 1, commit=False)
    one = log.read(0, 1, isolation=COMMITTED)
    assert (len(list(iter_headers(one.data))), one.aborted) == (1, ())


def test_a_transaction_is_unstable_until_its_marker_is_replicated(log: PartitionLog) -> None:
    stable: list[int] = []
    log.on_stable = lambda _: stable.append(log.last_stable_offset)
    add(log, transactional(producer=(1, 0, 0)))
    end(log, 1, commit=True, shown=False)
    assert (log.high_watermark, log.last_stable_offset, stable) == (1, 0, [])
    log.advance_high_watermark(2)
    assert (log.last_stable_offset, stable) == (2, [2])


def test_deleted_records_of_an_open_transaction_do_not_hold_the_last_stable_offset_below_the_start(
    log: PartitionLog,
) -> None:
    add(log, transactional(producer=(1, 0, 0)))
    append(log, batch([b"later"]))
    log.delete_records_before(1)
    assert (log.log_start_offset, log.last_stable_offset) == (1, 1)


def test_clients_may_write_neither_markers_nor_transactional_batches(log: PartitionLog) -> None:
    with pytest.raises(InvalidRecordError, match="clients may not write control batches"):
        append(log, encode_marker(1, 0, TransactionMarker(True, 0), START_MS))
    with pytest.raises(InvalidRecordError, match="transactions are not supported"):
        append(log, transactional(producer=(1, 0, 0)))


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda log: end(log, 1, 2, commit=True, coordinator_epoch=4), TransactionCoordinatorFencedError),
        (lambda log: end(log, 1, 1, commit=True, coordinator_epoch=5), InvalidProducerEpochError),
        (lambda log: add(log, transactional(producer=(1, 1, 5))), InvalidProducerEpochError),
        (lambda log: add(log, transactional(producer=(1, 2, 9))), OutOfOrderSequenceError),
        (lambda log: append(log, batch(producer=(1, 2, 1))), InvalidTransactionStateError),
    ],
)
def test_fenced(log: PartitionLog, act: Callable[[PartitionLog], object], error: type[KlammError]) -> None:
    end(log, 1, 1, commit=False, coordinator_epoch=5)
    add(log, transactional(producer=(1, 2, 0)))
    before = log.log_end_offset
    with pytest.raises(error):
        act(log)
    assert (log.log_end_offset, log.first_offsets_of_transactions) == (before, {1: 1})


def test_a_marker_raises_the_epoch_and_begins_the_sequence(log: PartitionLog) -> None:
    add(log, transactional(producer=(1, 0, 0)))
    end(log, 1, 1, commit=True)
    with pytest.raises(OutOfOrderSequenceError, match="sent the sequence 1, expected 0"):
        add(log, transactional(producer=(1, 1, 1)))
    add(log, transactional(producer=(1, 1, 0)))
    with pytest.raises(InvalidProducerEpochError):
        log.append_marker(1, 1, TransactionMarker(True, 0), 0, raises_epoch=True)
    log.append_marker(1, 2, TransactionMarker(True, 0), 0, raises_epoch=True)
    log.append_marker(1, 2, TransactionMarker(True, 0), 0, raises_epoch=True)  # a repeat


def test_what_another_cluster_has_left_open_is_aborted_in_the_epoch_of_the_promotion(log: PartitionLog) -> None:
    add(log, transactional(producer=(1, 0, 0)))
    end(log, 1, commit=True, coordinator_epoch=7)
    add(log, transactional([b"open"], producer=(1, 0, 1)))
    add(log, transactional([b"open too"], producer=(2, 4, 0)))
    log.begin_leader_epoch(5)
    log.lead(5)
    log.append_as_leader(transactional([b"own"], producer=(3, 0, 0)), 5, origin=AppendOrigin.INTERNAL, commit=True)
    assert log.last_stable_offset == 2
    assert log.abort_transactions(5, 5) == 2
    assert log.abort_transactions(5, 5) == 0
    log.advance_high_watermark(log.log_end_offset)
    assert log.first_offsets_of_transactions == {3: 4}
    assert log.last_stable_offset == 4
    markers = [header for _, header in iter_headers(log.read(5, 1 << 20).data)]
    assert [(each.producer_id, each.producer_epoch, each.leader_epoch) for each in markers] == [(1, 0, 5), (2, 4, 5)]
    assert read_committed(log)[0] == [b"value"]


def test_a_producer_with_an_open_transaction_neither_expires_nor_is_evicted(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.core.log.state.producer_state.MAX_PRODUCERS", 3)
    add(log, transactional(producer=(1, 0, 0)))
    for pid in range(2, 9):
        append(log, batch(producer=(pid, 0, 0)))
    log.expire_producers(1 << 40, 1)
    end(log, 1, commit=False)
    assert log.last_sequence(1) == (0, 0)
    assert read_committed(log, 0)[1] == [(1, 0)]


def test_a_damaged_or_missing_transaction_index_is_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, segment_bytes=400, index_interval_bytes=1)
    for n in range(12):
        add(log, transactional([b"%d" % n], producer=(n % 3, 0, n // 3)))
        if n % 4 == 3:
            end(log, n % 3, commit=False)
    for pid in range(3):
        end(log, pid, commit=True)
    expected = read_committed(log)
    files = sorted(path for path in log.directory.iterdir() if path.suffix == ".txnindex")
    log.close()
    files = sorted(path for path in log.directory.iterdir() if path.suffix == ".txnindex")
    assert files
    for damage in ("missing", "flipped"):
        for path in files:
            kept = path.read_bytes()
            path.unlink() if damage == "missing" else path.write_bytes(kept[:20] + bytes([kept[20] ^ 1]) + kept[21:])
            again = open_log(tmp_path, known=clean_start(log), segment_bytes=400, index_interval_bytes=1)
            assert read_committed(again) == expected, (damage, path)
            again.close()
    again = open_log(tmp_path, known=clean_start(log), segment_bytes=400, index_interval_bytes=1)
    for path in files:
        path.write_bytes(b"")  # after it was opened
    assert read_committed(again) == expected
    assert "the transaction index of" in caplog.text


# -- random histories ------------------------------------------------------------------------------------------------


def expected_of(log: PartitionLog) -> Expected:
    return Expected.of(b"".join(path.read_bytes() for path in sorted(log.directory.glob("*.log"))))


class History:
    """A log under random changes, compared with `Expected` of all its batches after each of them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.clock = ManualClock()
        self.log = self.opened(None)
        self.epoch = 0
        self.log.lead(0)
        self.exact = True
        self.sequences: dict[int, int] = {}
        self.copy = open_log(directory / "copy", segment_bytes=900, index_interval_bytes=100)

    def opened(self, known: OpenFrom | None) -> PartitionLog:
        config = {"segment_bytes": 700, "index_interval_bytes": 100, "retention_bytes": 3000}
        return open_log(self.directory, self.clock, known=known, file_delete_delay_ms=0, **config)

    def step(self) -> str:
        actions = [self.data] * 8 + [self.marker] * 6 + [self.plain] * 3 + [self.advance] * 5
        actions += [self.flush, self.restart, self.crash, self.truncate, self.follow, self.follow, self.delete]
        action = self.random.choice(actions)
        action()
        return action.__name__

    def data(self) -> None:
        pid = self.random.randrange(1, 5)
        known = self.log.last_sequence(pid)
        sequence = 0 if known is None else known[1] + 1
        values = [b"%d" % self.random.randrange(99)] * self.random.randrange(1, 3)
        add(self.log, transactional(values, producer=(pid, 0, sequence)), leader_epoch=self.epoch, commit=False)

    def plain(self) -> None:
        self.log.append_as_leader(batch([b"plain"] * self.random.randrange(1, 4)), self.epoch)

    def marker(self) -> None:
        pid, commit = self.random.randrange(1, 5), self.random.random() < 0.5
        end(self.log, pid, commit=commit, leader_epoch=self.epoch, shown=False)

    def advance(self) -> None:
        ends = [header.next_offset for header in self.batches().headers]
        self.log.advance_high_watermark(self.random.choice([0, *ends]))

    def batches(self) -> Expected:
        return expected_of(self.log)

    def flush(self) -> None:
        self.log.flush(snapshot=True)

    def restart(self) -> None:
        self.log.close()
        self.log = self.opened(clean_start(self.log))
        self.log.lead(self.epoch)

    def crash(self) -> None:
        log = self.log
        log.close(clean=False)
        if self.random.random() < 0.3:
            for path in log.directory.glob("*index"):
                path.unlink()
        self.log = self.opened(OpenFrom(False, log.recovery_point, log.log_start_offset, log.high_watermark))
        self.log.lead(self.epoch)

    def truncate(self) -> None:
        self.epoch += 1
        term = self.log.follow(self.epoch)
        low = self.log.high_watermark if self.random.random() < 0.7 else self.log.log_start_offset
        ends = [header.base_offset for header in self.batches().headers if header.base_offset >= low]
        self.log.truncate_to(self.random.choice([*ends, self.log.log_end_offset]), self.epoch, term)
        self.log.lead(self.epoch)
        self.copy.truncate_to(min(self.copy.log_end_offset, self.log.log_end_offset))

    def delete(self) -> None:
        self.log.delete_records_before(self.random.randint(self.log.log_start_offset, self.log.high_watermark))
        self.log.apply_retention(self.clock.now_ms)
        self.exact = False

    def follow(self) -> None:
        if self.copy.log_end_offset < self.log.log_start_offset or self.copy.log_end_offset > self.log.log_end_offset:
            return
        while data := self.log.read(self.copy.log_end_offset, 500, isolation=ReadIsolation.LOG_END).data:
            self.copy.append_as_follower(data, -1)
        self.copy.advance_high_watermark(self.log.high_watermark)
        expected = expected_of(self.copy)
        assert self.copy.first_offsets_of_transactions == expected.open()
        assert self.copy.last_stable_offset == expected.last_stable(self.copy.high_watermark, 0)
        read = self.copy.read(self.copy.log_start_offset, 1 << 20, isolation=COMMITTED)
        assert list(read.aborted) == expected.aborted(0, self.copy.last_stable_offset)

    def check(self) -> None:
        log = self.log
        expected = self.batches()
        start, high_watermark = log.log_start_offset, log.high_watermark
        if self.exact:
            assert log.first_offsets_of_transactions == expected.open()
            assert log.last_stable_offset == expected.last_stable(high_watermark, start)
        stable = log.last_stable_offset
        assert expected.last_stable(high_watermark, start) >= stable
        offset = self.random.randint(start, stable)
        found = log.read(offset, self.random.choice([1, 200, 1 << 20]), isolation=COMMITTED)
        headers = [header for _, header in iter_headers(found.data)]
        if not headers:
            assert offset == stable
            return
        assert headers[-1].last_offset < stable
        if self.exact:
            assert list(found.aborted) == expected.aborted(offset, headers[-1].next_offset)
        visible = {header.base_offset for header in headers if not expected.hidden(header)}
        shown = committed(found.data, found.aborted)
        assert [r.offset for r in shown] == [r.offset for r in records_of_visible(found.data, visible)], (
            offset,
            found.aborted,
        )


def records_of_visible(data: bytes, visible: set[int]) -> list[object]:
    return [
        record
        for position, header in iter_headers(data)
        if header.base_offset in visible
        for record in records_of(data[position : position + header.size])
    ]


@pytest.mark.parametrize("seed", range(8))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    done = []
    for _ in range(70):
        done.append(history.step())
        try:
            history.check()
        except AssertionError as error:
            raise AssertionError(f"after {done}") from error
    history.follow()


def test_a_control_batch_outside_a_transaction_opens_none(tmp_path: Path) -> None:
    """A log that another cluster wrote may have any. The last stable offset is the same after the log was opened
    again."""
    log = open_log(tmp_path)
    control = batch([b"x"], producer=(1, 0, 0))
    control[CRC_FROM + 1] |= CONTROL
    set_crc(control, 0, crc_of(control, 0, len(control)))
    log.append_as_follower(control, ANY_EPOCH)
    log.advance_high_watermark(1)
    assert (log.last_stable_offset, log.first_offsets_of_transactions) == (1, {})
    log.close(clean=False)
    again = open_log(tmp_path)
    again.advance_high_watermark(1)
    assert (again.last_stable_offset, again.first_offsets_of_transactions) == (1, {})
