"""Reading a range: holes, moved leaders, batches across its edges, and what is gone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from klamm.core.client.cluster_client import FetchedPartition
from klamm.core.client.consumer.range_reader import DataLossError, OffsetRange, RangeReader, ReadBatch
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from klamm.core.records import native
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition

T0 = TopicPartition("t", 0)


def batch(base: int, count: int) -> tuple[int, bytes]:
    records = [(base + i, None, f"v{base + i}".encode(), ()) for i in range(count)]
    return base + count, encode_batch(records, base_offset=base)


class Log:
    """`FetchClient` over some batches: (next offset, bytes). Answers `mishaps` first, in order."""

    codecs = CodecTable()

    def __init__(self, batches: Sequence[tuple[int, bytes]], start: int = 0) -> None:
        self.batches = list(batches)
        self.start = start
        self.mishaps: list[ErrorCode | Exception] = []
        self.forgotten: list[str] = []
        self.asked: list[int] = []

    def leader_of(self, partition: TopicPartition) -> int:
        return 1

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)

    def fetch_one(self, node_id: int, partition: TopicPartition, offset: int) -> FetchedPartition:
        self.asked.append(offset)
        end = self.batches[-1][0] if self.batches else 0
        if self.mishaps:
            mishap = self.mishaps.pop(0)
            if isinstance(mishap, Exception):
                raise mishap
            return FetchedPartition(mishap, -1, self.start, b"")
        data = next((data for next_offset, data in self.batches if next_offset > offset), b"")
        return FetchedPartition(ErrorCode.none, end, self.start, data)


def offsets(log: Log, start: int, end: int, *, strict: bool = True, timeout_s: float = 5.0) -> list[int]:
    """As lists; Arrow columns must say the same of a log that does not change."""
    range_ = OffsetRange(T0, start, end)
    mishaps, asked, forgotten = list(log.mishaps), len(log.asked), len(log.forgotten)
    reader = RangeReader(log, range_, fail_on_data_loss=strict, poll_timeout_s=timeout_s)
    found = [offset for read in reader.batches() for offset in read.columns.offsets]
    log.mishaps = mishaps
    reader = RangeReader(log, range_, fail_on_data_loss=strict, poll_timeout_s=timeout_s)
    assert [offset for read in reader.arrow_batches() for offset in read.columns.offsets] == found
    half = (len(log.asked) - asked) // 2, (len(log.forgotten) - forgotten) // 2
    del log.asked[asked + half[0] :], log.forgotten[forgotten + half[1] :]
    return found


def test_batches_across_the_edges_are_cut() -> None:
    log = Log([batch(0, 5), batch(5, 5), batch(10, 5)])
    assert offsets(log, 3, 12) == list(range(3, 12))
    assert offsets(log, 6, 8) == [6, 7]
    assert offsets(log, 4, 4) == []


def test_holes_are_passed_over_within_and_at_the_end() -> None:
    log = Log([batch(0, 2), batch(7, 1), batch(20, 5)])
    assert offsets(log, 0, 10) == [0, 1, 7]
    assert offsets(log, 3, 7) == []
    assert offsets(log, 3, 22) == [7, 20, 21]


def test_a_moved_leader_and_a_broken_connection_are_tried_again() -> None:
    log = Log([batch(0, 3)])
    log.mishaps = [ErrorCode.not_leader_or_follower, ConnectionFailedError("away"), ErrorCode.leader_not_available]
    assert offsets(log, 0, 3) == [0, 1, 2]
    assert log.forgotten == ["t", "t", "t"]
    assert log.asked == [0, 0, 0, 0]


def test_a_task_that_cannot_reach_its_end_fails() -> None:
    with pytest.raises(KlammError, match="no records at offset 3, though the range goes to 9"):
        offsets(Log([batch(0, 3)]), 0, 9, timeout_s=0.2)


def test_an_error_that_no_retry_mends_is_raised_at_once() -> None:
    log = Log([batch(0, 3)])
    log.mishaps = [ErrorCode.topic_authorization_failed]
    with pytest.raises(BrokerError, match="t-0 at offset 0"):
        offsets(log, 0, 3)
    assert log.asked == [0]


def test_deleted_offsets_are_an_error_or_passed_over() -> None:
    log = Log([batch(5, 3)], start=5)
    log.mishaps = [ErrorCode.offset_out_of_range]
    with pytest.raises(DataLossError, match="offsets 2 to 5 are gone"):
        offsets(log, 2, 8)
    log.mishaps = [ErrorCode.offset_out_of_range]
    assert offsets(log, 2, 8, strict=False) == [5, 6, 7]
    log.mishaps = [ErrorCode.offset_out_of_range]
    assert offsets(log, 2, 4, strict=False) == []
    log.start, log.mishaps = 0, [ErrorCode.offset_out_of_range]
    assert offsets(log, 2, 4, strict=False) == []


def test_a_broker_that_only_gives_what_was_read_does_not_loop_for_ever() -> None:
    class Stuck(Log):
        def fetch_one(self, node_id: int, partition: TopicPartition, offset: int) -> FetchedPartition:
            return FetchedPartition(ErrorCode.none, 9, 0, self.batches[0][1])

    with pytest.raises(CorruptRecordError, match="only earlier batches came"):
        offsets(Stuck([batch(0, 3)]), 0, 9)


def test_a_corrupt_batch_is_named() -> None:
    next_offset, data = batch(0, 3)
    broken = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CorruptRecordError, match="t-0 offset 0"):
        offsets(Log([(next_offset, broken)]), 0, 3)


def read(log: Log, start: int, end: int, quarantine: bool = False) -> list[ReadBatch]:
    reader = RangeReader(
        log, OffsetRange(T0, start, end), fail_on_data_loss=True, poll_timeout_s=5.0, quarantine=quarantine
    )
    return list(reader.arrow_batches())


def test_batches_of_one_answer_are_one_table() -> None:
    pytest.importorskip("pyarrow")
    data = b"".join(data for _, data in (batch(0, 3), batch(5, 2), batch(9, 4)))
    (found,) = read(Log([(13, data)]), 1, 11)
    assert list(found.columns.offsets) == [1, 2, 5, 6, 9, 10]
    assert list(found.columns.values) == [f"v{number}".encode() for number in (1, 2, 5, 6, 9, 10)]
    assert list(found.columns.keys) == [None] * 6
    assert list(found.columns.timestamps_ms) == [1, 2, 5, 6, 9, 10]


def test_a_batch_that_cannot_be_opened_stands_alone_between_tables() -> None:
    pytest.importorskip("pyarrow")
    claims_more = bytearray(batch(3, 2)[1])
    claims_more[57:61] = (7).to_bytes(4, "big")  # records; sealed again with a good CRC
    claims_more[17:21] = native.crc32c(bytes(claims_more[21:])).to_bytes(4, "big")
    data = batch(0, 3)[1] + bytes(claims_more) + batch(5, 2)[1]
    with pytest.raises(CorruptRecordError, match="offsets 3 to 5 cannot be opened"):
        read(Log([(7, data)]), 0, 7)
    found = read(Log([(7, data)]), 0, 7, quarantine=True)
    assert [list(one.columns.offsets) for one in found] == [[0, 1, 2], [3], [5, 6]]
    assert [one.unreadable is not None for one in found] == [False, True, False]
    assert list(found[1].columns.values) == [bytes(claims_more)]
