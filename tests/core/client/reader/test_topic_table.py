"""A table over a topic: bootstrapped, followed, awaited; and read again where its history changed."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.core.client.cluster_client import LATEST
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.client.reader.topic_table import MAX_BOOTSTRAPS, UNWATCHED_S, TopicTable
from klamm.core.errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from klamm.core.records.partition import TopicPartition
from klammtest.stored_topic import StoredTopic

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Contents:
    """The last value of each key, and how often what was applied. Refuses the value `refused`."""

    def __init__(self) -> None:
        self.values: dict[bytes | None, bytes] = {}
        self.applied: list[tuple[int, int]] = []
        self.cleared = 0
        self.refused: bytes | None = None

    def clear(self) -> None:
        self.values, self.applied = {}, []
        self.cleared += 1

    def apply(
        self, partition: TopicPartition, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        if value is not None and value == self.refused:
            raise KlammError("refused")
        self.applied.append((partition.partition, offset))
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


class Table:
    """A table, its topic and its clock. `catch_up` says what was applied by it."""

    def __init__(self, partitions: int = 1, max_gap_s: float | None = None, timeout_s: float = 5.0) -> None:
        self.topic = StoredTopic(partitions=partitions)
        self.now = 0.0
        self.contents = Contents()
        self._table = TopicTable(
            self.topic, self.contents, timeout_s=timeout_s, max_gap_s=max_gap_s, clock=lambda: self.now
        )

    def put(self, number: int, **values: bytes | None) -> None:
        """One batch."""
        self.topic.logs[number].append(*((0, key.encode(), value, ()) for key, value in values.items()))

    def catch_up(self, at_least: int = 0, deadline_s: float | None = None) -> list[tuple[int, int]]:
        cleared, before = self.contents.cleared, len(self.contents.applied)
        partitions = [TopicPartition("t", number) for number in self.topic.logs]
        self._table.catch_up(partitions, {T0: at_least}, deadline_s=deadline_s)
        return self.contents.applied[before if cleared == self.contents.cleared else 0 :]


def test_it_is_read_once_then_followed() -> None:
    table = Table()
    table.put(0, a=b"1", b=b"2")
    table.put(0, a=b"3")
    assert table.catch_up() == [(0, 0), (0, 1), (0, 2)]
    assert table.catch_up() == []
    table.put(0, b=None)
    assert table.catch_up() == [(0, 3)]
    assert table.contents.values == {b"a": b"3"}
    assert table.topic.waits_ms == [0] * len(table.topic.waits_ms), "nothing that is there is waited for"


@pytest.mark.parametrize("read_before", [False, True])
def test_what_a_new_leader_does_not_know_to_be_committed_is_read(
    read_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its high watermark is that of a follower until it has committed its first records; ListOffsets waits for that."""
    table = Table()
    log, answer = table.topic.logs[0], table.topic.list_offsets
    table.put(0, a=b"1")
    if read_before:
        assert table.catch_up() == [(0, 0)]
    table.put(0, a=b"2")
    table.topic.metadata(["t"])
    log.elect()
    table.topic.mishaps = [ErrorCode.not_leader_or_follower]
    log.high_watermark = 1

    def list_offsets(timestamps: dict[TopicPartition, int], **named: Any) -> dict[TopicPartition, tuple[int, int]]:
        if LATEST in timestamps.values():
            log.high_watermark = None
        return answer(timestamps, **named)

    monkeypatch.setattr(table.topic, "list_offsets", list_offsets)
    assert table.catch_up()[-1] == (0, 1)
    assert table.contents.values == {b"a": b"2"}


def test_it_begins_where_the_log_begins() -> None:
    table = Table()
    table.topic.logs[0].start = 7
    table.put(0, a=b"1")
    assert table.catch_up() == [(0, 7)]


def test_of_several_partitions_only_those_behind_are_fetched() -> None:
    table = Table(3)
    table.put(0, a=b"1")
    table.put(2, b=b"2")
    assert table.catch_up() == [(0, 0), (2, 0)]
    table.put(1, c=b"3")
    table.topic.fetched.clear()
    assert table.catch_up() == [(1, 0)]
    assert table.topic.fetched == [(1, 0)]


def test_an_offset_of_ones_own_is_awaited() -> None:
    table = Table(timeout_s=0.2)
    table.put(0, a=b"1")
    table.topic.logs[0].high_watermark = 0

    def visible(wait_ms: int) -> None:
        assert wait_ms > 0
        table.topic.logs[0].high_watermark = None

    fetch = table.topic.fetch

    def late(node_id: int, offsets: dict[TopicPartition, int], *, max_wait_ms: int, **limits: Any) -> object:
        answer = fetch(node_id, offsets, max_wait_ms=max_wait_ms, **limits)
        visible(max_wait_ms)
        return answer

    table.topic.fetch = late  # type: ignore[method-assign, assignment]
    assert table.catch_up(at_least=1) == [(0, 0)]


def test_the_wait_for_an_offset_is_bounded() -> None:
    table = Table(timeout_s=0.2)
    table.put(0, a=b"1")
    table.put(0, **{f"hidden{number}": b"2" for number in range(8)})
    table.topic.logs[0].high_watermark = 1
    fetch = table.topic.fetch

    def slow(node_id: int, offsets: dict[TopicPartition, int], *, max_wait_ms: int, **limits: Any) -> object:
        table.now += max_wait_ms / 1000
        return fetch(node_id, offsets, max_wait_ms=max_wait_ms, **limits)

    table.topic.fetch = slow  # type: ignore[method-assign, assignment]
    with pytest.raises(BrokerError, match="t-0 was read to offset 1 in time, and not to its end at 9") as error:
        table.catch_up(at_least=9)
    assert error.value.code is ErrorCode.request_timed_out
    assert table.contents.values == {b"a": b"1"}


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_offset_that_the_log_has_lost_is_not_awaited(partitions: int) -> None:
    table = Table(partitions, timeout_s=0.2)
    table.put(0, a=b"1")
    assert table.catch_up(at_least=9) == [(0, 0)]


def test_what_is_not_visible_yet_of_a_shorter_log_is_awaited() -> None:
    table = Table()
    table.put(0, a=b"1")
    table.put(0, b=b"2")
    log, epoch_ends = table.topic.logs[0], table.topic.leader_epoch_ends
    log.high_watermark = 1

    def asked(epochs: dict[TopicPartition, int], *, timeout_s: float | None) -> object:
        answer = epoch_ends(epochs, timeout_s=timeout_s)
        log.high_watermark = None
        return answer

    table.topic.leader_epoch_ends = asked  # type: ignore[method-assign, assignment]
    assert table.catch_up(at_least=9) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("partitions", [1, 2])
def test_no_request_may_take_longer_than_the_deadline(partitions: int) -> None:
    """Each request takes 3 s here."""
    table = Table(partitions)
    asked: set[str] = set()
    deadline_s = 100.0

    def slow(name: str, timeout_s: float | None) -> None:
        assert timeout_s == pytest.approx(deadline_s - table.now), name
        asked.add(name)
        table.now += 3

    table.topic.asked = slow
    table.put(0, a=b"1", b=b"2")
    table.put(0, c=b"3")
    table.catch_up(deadline_s=deadline_s)
    table.topic.logs[0].cut(1)
    table.catch_up(at_least=3, deadline_s=deadline_s)
    assert set(table.contents.values) == {b"a", b"b"}
    assert asked == {"metadata", "list_offsets", "leader_epoch_ends", "fetch"}


def test_a_deadline_bounds_its_own_call_alone() -> None:
    table = Table()
    table.put(0, a=b"1")
    table.catch_up(deadline_s=9.0)
    table.put(0, b=b"1")
    timeouts: list[float | None] = []
    table.topic.asked = lambda _name, timeout_s: timeouts.append(timeout_s)
    table.catch_up()
    assert timeouts == [None]


def test_no_other_try_begins_behind_the_deadline() -> None:
    table = Table()
    table.topic.mishaps = [ErrorCode.offset_out_of_range] * 100
    with pytest.raises(KlammError, match="t-0: offset 0 is out of range"):
        table.catch_up(deadline_s=0.01)
    assert len(table.topic.fetched) == 1


def test_a_leader_that_moved_and_a_broken_connection_are_tried_again() -> None:
    table = Table()
    table.put(0, a=b"1")
    table.topic.mishaps = [
        ErrorCode.not_leader_or_follower,
        ConnectionFailedError("away"),
        ErrorCode.fenced_leader_epoch,
    ]
    assert table.catch_up() == [(0, 0)]
    assert table.contents.cleared == 0


def test_an_error_that_no_retry_mends_is_raised() -> None:
    table = Table()
    table.topic.mishaps = [ErrorCode.topic_authorization_failed]
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED: fetch of t-0 at offset 0"):
        table.catch_up()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("records", [1, 2, 5])
def test_a_topic_that_was_created_again_is_read_again(partitions: int, records: int) -> None:
    """With fewer records than were read, as many, and more."""
    table = Table(partitions)
    table.put(0, a=b"1", b=b"2")
    table.catch_up()
    table.topic.create_again()
    table.put(0, **{f"new{number}": b"3" for number in range(records)})
    table.now += UNWATCHED_S + 1
    assert table.catch_up() == [(0, number) for number in range(records)]
    assert set(table.contents.values) == {f"new{number}".encode() for number in range(records)}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_table_that_is_always_in_use_sees_that_its_topic_was_created_again(partitions: int) -> None:
    table = Table(partitions)
    table.put(0, a=b"1")
    table.catch_up()
    table.topic.create_again()
    table.put(0, b=b"2")
    for _ in range(4):
        table.now += UNWATCHED_S / 2
        table.catch_up()
    assert table.contents.values == {b"b": b"2"}
    assert table.topic.refreshed <= 1 + 4 / 2, "the cluster is asked once in UNWATCHED_S"


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("written", [0, 3])
def test_a_log_that_was_cut_is_read_again(partitions: int, written: int) -> None:
    table = Table(partitions)
    for key in "abcd":
        table.put(0, **{key: b"old"})
    table.catch_up()
    table.topic.logs[0].cut(2)
    for number in range(written):
        table.put(0, **{f"new{number}": b"new"})
    table.now += UNWATCHED_S + 1
    table.catch_up()
    assert set(table.contents.values) == {b"a", b"b", *(b"new%d" % number for number in range(written))}
    assert table.contents.cleared == 1


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_high_watermark_that_lags_after_an_election_changes_nothing(partitions: int) -> None:
    """The new leader has all records, and does not know yet which of them its followers have."""
    table = Table(partitions)
    for key in "abc":
        table.put(0, **{key: b"1"})
    table.catch_up()
    table.topic.logs[0].elect()
    table.topic.logs[0].high_watermark = 2
    assert table.catch_up() == []
    table.topic.logs[0].high_watermark = None
    table.put(0, d=b"1")
    assert table.catch_up() == [(0, 3)]
    assert table.contents.cleared == 0


def test_deleted_offsets_mean_that_the_topic_is_read_again() -> None:
    table = Table()
    table.put(0, a=b"1")
    table.catch_up()
    log = table.topic.logs[0]
    log.start, log.batches = 5, []
    table.put(0, b=b"2")
    assert table.catch_up() == [(0, 5)]
    assert table.contents.values == {b"b": b"2"}


def test_the_number_of_bootstraps_is_bounded() -> None:
    table = Table()
    table.topic.mishaps = [ErrorCode.offset_out_of_range] * 100
    with pytest.raises(KlammError, match="t-0: offset 0 is out of range"):
        table.catch_up()
    assert len(table.topic.fetched) == MAX_BOOTSTRAPS


def test_after_a_long_gap_it_is_read_again() -> None:
    """A tombstone that it missed may be compacted away."""
    table = Table(max_gap_s=3600.0)
    table.put(0, a=b"1")
    table.catch_up()
    table.topic.logs[0].batches = []
    table.topic.logs[0].start = 1
    table.put(0, b=b"2")
    table.now += 3601
    assert table.catch_up() == [(0, 1)]
    assert table.contents.values == {b"b": b"2"}


def test_a_record_that_is_refused_is_the_next_ones_first() -> None:
    table = Table()
    table.put(0, a=b"1", b=b"2", c=b"3")
    table.contents.refused = b"2"
    with pytest.raises(KlammError, match="refused"):
        table.catch_up()
    table.contents.refused = None
    assert table.catch_up() == [(0, 1), (0, 2)]


def test_a_batch_that_cannot_be_read_is_named_and_not_passed_over() -> None:
    table = Table()
    table.put(0, a=b"1")
    table.put(0, b=b"2")
    log = table.topic.logs[0]
    following, data = log.batches[1]
    log.batches[1] = following, data[:-1] + bytes([data[-1] ^ 1])
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match="t-0 offset 1: the CRC does not match"):
            table.catch_up()
    log.batches[1] = following, data
    assert table.catch_up() == [(0, 1)]
