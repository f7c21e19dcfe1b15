"""Reading a range: holes, moved leaders, batches across its edges, and what is gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from klamm.core.client.cluster_client import FetchedPartition
from klamm.core.client.errors import ConnectionFailedError, DataLossError, LogTruncatedError, TopicReplacedError
from klamm.core.client.reader.batch_decoder import ReadBatch
from klamm.core.client.reader.range_reader import OffsetRange, RangeReader
from klamm.core.errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from klamm.core.records import native
from klamm.core.records.encode import encode_batch
from klamm.core.records.partition import TopicPartition
from klammtest.stored_topic import StoredLog, StoredTopic

T0 = TopicPartition("t", 0)


def batch(base: int, count: int) -> tuple[int, bytes]:
    records = [(base + i, None, f"v{base + i}".encode(), ()) for i in range(count)]
    return base + count, encode_batch(records, base_offset=base)


def stored(batches: Sequence[tuple[int, bytes]], start: int = 0) -> StoredTopic:
    topic = StoredTopic()
    topic.logs[0] = StoredLog(list(batches), start)
    return topic


def offsets(topic: StoredTopic, start: int, end: int, *, strict: bool = True, timeout_s: float = 5.0) -> list[int]:
    """As lists; Arrow columns must say the same of a log that does not change."""
    range_ = OffsetRange(T0, start, end)
    mishaps = list(topic.mishaps)
    reader = RangeReader(topic, range_, fail_on_data_loss=strict, poll_timeout_s=timeout_s)
    found = [offset for read in reader.batches() for offset in read.columns.offsets]
    asked, topic.mishaps = len(topic.fetched), mishaps
    reader = RangeReader(topic, range_, fail_on_data_loss=strict, poll_timeout_s=timeout_s)
    assert [offset for read in reader.arrow_batches() for offset in read.columns.offsets] == found
    del topic.fetched[asked:]
    return found


def test_batches_across_the_edges_are_cut() -> None:
    topic = stored([batch(0, 5), batch(5, 5), batch(10, 5)])
    assert offsets(topic, 3, 12) == list(range(3, 12))
    assert offsets(topic, 6, 8) == [6, 7]
    assert offsets(topic, 4, 4) == []


def test_holes_are_passed_over_within_and_at_the_end() -> None:
    topic = stored([batch(0, 2), batch(7, 1), batch(20, 5)])
    assert offsets(topic, 0, 10) == [0, 1, 7]
    assert offsets(topic, 3, 7) == []
    assert offsets(topic, 3, 22) == [7, 20, 21]


def test_a_moved_leader_and_a_broken_connection_are_tried_again() -> None:
    topic = stored([batch(0, 3)])
    topic.mishaps = [ErrorCode.not_leader_or_follower, ConnectionFailedError("away"), ErrorCode.leader_not_available]
    assert offsets(topic, 0, 3) == [0, 1, 2]
    assert topic.fetched == [(0, 0)] * 4
    assert topic.refreshed >= 4, "after each of them its leader is asked for"


def test_a_task_that_cannot_reach_its_end_fails() -> None:
    with pytest.raises(KlammError, match="no records at offset 3, though the range goes to 9"):
        offsets(stored([batch(0, 3)]), 0, 9, timeout_s=0.2)


def test_an_error_that_no_retry_mends_is_raised_at_once() -> None:
    topic = stored([batch(0, 3)])
    topic.mishaps = [ErrorCode.topic_authorization_failed]
    with pytest.raises(BrokerError, match="t-0 at offset 0"):
        offsets(topic, 0, 3)
    assert topic.fetched == [(0, 0)]


def test_deleted_offsets_are_an_error_or_passed_over() -> None:
    topic = stored([batch(5, 3)], start=5)
    topic.mishaps = [ErrorCode.offset_out_of_range]
    with pytest.raises(DataLossError, match="offsets 2 to 5 were deleted"):
        offsets(topic, 2, 8)
    topic.mishaps = [ErrorCode.offset_out_of_range]
    assert offsets(topic, 2, 8, strict=False) == [5, 6, 7]
    topic.mishaps = [ErrorCode.offset_out_of_range]
    assert offsets(topic, 2, 4, strict=False) == []
    topic.logs[0].start, topic.mishaps = 0, [ErrorCode.offset_out_of_range]
    assert offsets(topic, 2, 4, strict=False) == []


def test_a_broker_that_only_gives_what_was_read_does_not_loop_for_ever() -> None:
    class Stuck(StoredTopic):
        def fetch(
            self, node_id: int, offsets: Mapping[TopicPartition, int], **_: Any
        ) -> dict[TopicPartition, FetchedPartition]:
            return {T0: FetchedPartition(ErrorCode.none, 9, 0, bytes(batch(0, 3)[1]))}

    with pytest.raises(CorruptRecordError, match="only earlier batches came"):
        offsets(Stuck(), 0, 9)


def test_a_corrupt_batch_is_named() -> None:
    next_offset, data = batch(0, 3)
    broken = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CorruptRecordError, match="t-0 offset 0"):
        offsets(stored([(next_offset, broken)]), 0, 3)


def read(topic: StoredTopic, start: int, end: int, quarantine: bool = False) -> list[ReadBatch]:
    reader = RangeReader(
        topic, OffsetRange(T0, start, end), fail_on_data_loss=True, poll_timeout_s=5.0, quarantine=quarantine
    )
    return list(reader.arrow_batches())


def test_batches_of_one_answer_are_one_table() -> None:
    pytest.importorskip("pyarrow")
    data = b"".join(data for _, data in (batch(0, 3), batch(5, 2), batch(9, 4)))
    (found,) = read(stored([(13, data)]), 1, 11)
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
        read(stored([(7, data)]), 0, 7)
    found = read(stored([(7, data)]), 0, 7, quarantine=True)
    assert [list(one.columns.offsets) for one in found] == [[0, 1, 2], [3], [5, 6]]
    assert [one.unreadable is not None for one in found] == [False, True, False]
    assert list(found[1].columns.values) == [bytes(claims_more)]


def test_a_log_that_is_cut_while_it_is_read_is_data_loss() -> None:
    topic = StoredTopic()
    log = topic.logs[0]
    for number in range(4):
        log.append((number, None, b"old", ()), (number, None, b"old", ()))
    reader = RangeReader(topic, OffsetRange(T0, 0, 8), fail_on_data_loss=True, poll_timeout_s=5.0)
    batches = reader.batches()
    assert [list(next(batches).columns.offsets) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    log.cut(2)
    for number in range(4):
        log.append((number, None, b"new", ()))
    topic.mishaps = [ErrorCode.not_leader_or_follower]
    with pytest.raises(LogTruncatedError, match="read up to offset 6, but the log was cut at offset 4"):
        next(batches)


def test_another_topic_of_the_same_name_is_never_read_on() -> None:
    topic = StoredTopic()
    for number in range(2):
        topic.logs[0].append((number, None, b"old", ()))
    reader = RangeReader(topic, OffsetRange(T0, 0, 2), fail_on_data_loss=False, poll_timeout_s=5.0)
    batches = reader.batches()
    next(batches)
    topic.create_again()
    for number in range(2):
        topic.logs[0].append((number, None, b"new", ()))
    topic.mishaps = [ErrorCode.not_leader_or_follower]
    with pytest.raises(TopicReplacedError, match="t-0: the topic was deleted and created again"):
        next(batches)
