from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.header import iter_headers
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.requests import batch, create_topic, fetch, fetch_fields, new_topic, produce, produce_fields, topic_id
from klammtest.wire import WireClient, part

LONG_MS = 60_000


def offsets(records: bytes) -> list[int]:
    return [header.base_offset for _, header in iter_headers(records)]


@pytest.mark.parametrize("version", range(SERVED[ApiKey.FETCH][0], SERVED[ApiKey.FETCH][1] + 1))
def test_every_version_reads_what_was_written(wire: WireClient, version: int) -> None:
    topic = new_topic(wire)
    for value in (b"a", b"b", b"c"):
        produce(wire, topic, batch(value, value))
    answer = fetch(wire, topic, 2, version=version)
    assert answer.error_code is ErrorCode.none
    assert (answer.high_watermark, answer.last_stable_offset) == (6, 6)
    assert offsets(answer.records) == [2, 4]


def test_a_fetch_in_the_middle_of_a_batch_returns_the_batch(wire: WireClient) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(*[b"x"] * 10))
    assert offsets(fetch(wire, topic, 7).records) == [0]


def test_at_least_one_batch_however_small_the_limits(wire: WireClient) -> None:
    topic = new_topic(wire, partitions=2)
    for partition in (0, 1):
        for _ in range(2):
            produce(wire, topic, batch(b"x" * 1000), partition)
    assert offsets(fetch(wire, topic, 0, partition_max_bytes=1).records) == [0]
    both = {(topic, 0): 0, (topic, 1): 0}
    answer = wire.call(ApiKey.FETCH, 12, **fetch_fields(both, max_bytes=1))
    first, second = answer.responses[0].partitions
    assert offsets(first.records) == [0]
    assert not second.records
    answer = wire.call(ApiKey.FETCH, 12, **fetch_fields(both, max_bytes=3500))
    first, second = answer.responses[0].partitions
    assert (offsets(first.records), offsets(second.records)) == ([0, 1], [0])


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
def test_an_offset_out_of_range_says_where_the_log_is(wire: WireClient, offset: int) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(b"a", b"b"))
    answer = fetch(wire, topic, offset, max_wait_ms=LONG_MS)
    assert answer.error_code is ErrorCode.offset_out_of_range
    assert (answer.log_start_offset, answer.high_watermark) == (0, 2)


def test_leader_epochs_are_checked(wire: WireClient) -> None:
    topic = new_topic(wire)
    assert fetch(wire, topic, 0, leader_epoch=0).error_code is ErrorCode.none
    assert fetch(wire, topic, 0, leader_epoch=5).error_code is ErrorCode.unknown_leader_epoch


def test_an_older_leader_epoch_is_fenced(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        answer = fetch(wire, topic, 0, leader_epoch=-1)
        assert answer.error_code is ErrorCode.none
        assert fetch(wire, topic, 0, leader_epoch=-2).error_code is ErrorCode.fenced_leader_epoch


def test_a_long_poll_is_woken_by_an_append(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire, partitions=2)
    wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0, (topic, 1): 0}, max_wait_ms=LONG_MS))
    with WireClient(broker.bootstrap) as writer:
        produce(writer, topic, batch(b"a"), partition=1)
    answer = wire.receive(ApiKey.FETCH, 12)
    assert [bool(p.records) for p in answer.responses[0].partitions] == [False, True]


def test_a_long_poll_waits_for_min_bytes(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire)
    wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, max_wait_ms=LONG_MS, min_bytes=3000))
    with WireClient(broker.bootstrap) as writer:
        for _ in range(3):
            produce(writer, topic, batch(b"x" * 1000))
    answer = wire.receive(ApiKey.FETCH, 12)
    assert offsets(answer.responses[0].partitions[0].records) == [0, 1, 2]


def test_a_long_poll_ends_by_itself(wire: WireClient) -> None:
    answer = fetch(wire, new_topic(wire), 0, max_wait_ms=50)
    assert (answer.error_code, answer.records) == (ErrorCode.none, b"")


def test_a_long_poll_is_woken_by_a_flush(broker: RunningBroker, wire: WireClient) -> None:
    """`flush.ms` holds records back until maintenance has flushed them."""
    topic = new_topic(wire, flush_ms=1, retention_ms=-1)
    produce(wire, topic, batch(b"a"))
    assert fetch(wire, topic, 0, max_wait_ms=20_000).records


def test_a_parked_fetch_holds_up_its_connection_only(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire)
    wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, max_wait_ms=LONG_MS))
    wire.send(ApiKey.PRODUCE, 9, **produce_fields({(topic, 0): batch(b"behind")}))
    with WireClient(broker.bootstrap) as other:
        assert produce(other, topic, batch(b"a")).base_offset == 0
    assert wire.receive(ApiKey.FETCH, 12).responses[0].partitions[0].records
    assert wire.receive(ApiKey.PRODUCE, 9).responses[0].partition_responses[0].base_offset == 1


def test_deleting_a_topic_ends_the_fetches_that_wait_for_it(broker: RunningBroker, wire: WireClient) -> None:
    topic = new_topic(wire)
    wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, max_wait_ms=LONG_MS))
    with WireClient(broker.bootstrap) as admin:
        admin.call(ApiKey.DELETE_TOPICS, 5, topic_names=(topic,), timeout=timedelta(seconds=5))
    answer = wire.receive(ApiKey.FETCH, 12)
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


class Session:
    """A fetch session (KIP-227) on one connection; `fetch` returns the answers by topic and partition."""

    def __init__(self, wire: WireClient, version: int, **more: Any) -> None:
        self.wire, self.version, self.more = wire, version, more
        self.id = self.epoch = 0

    def fetch(
        self, wanted: dict[tuple[str, int], int], forgotten: dict[str, tuple[int, ...]] | None = None, **more: Any
    ) -> Any:
        ids = {topic: topic_id(self.wire, topic) for topic in {*(t for t, _ in wanted), *(forgotten or {})}}
        dropped = tuple(
            part(ApiKey.FETCH, self.version, "ForgottenTopic", topic=t, topic_id=ids[t], partitions=numbers)
            for t, numbers in (forgotten or {}).items()
        )
        fields = fetch_fields(wanted, version=self.version, topic_ids=ids, **{**self.more, **more})
        fields |= {"session_id": self.id, "session_epoch": self.epoch, "forgotten_topics_data": dropped}
        answer = self.wire.call(ApiKey.FETCH, self.version, **fields)
        if answer.error_code is ErrorCode.none:
            self.id, self.epoch = answer.session_id, self.epoch + 1
        self.error = answer.error_code
        names = {value: name for name, value in ids.items()} if self.version >= 13 else {}
        return [
            (getattr(t, "topic", None) or names.get(t.topic_id), p.partition_index, p.error_code, offsets(p.records))
            for t in answer.responses
            for p in t.partitions
        ]


@pytest.mark.parametrize("version", range(7, SERVED[ApiKey.FETCH][1] + 1))
def test_a_session_answers_what_has_changed(wire: WireClient, version: int) -> None:
    topic, none = new_topic(wire, partitions=3), ErrorCode.none
    produce(wire, topic, batch(b"a"))
    session = Session(wire, version)
    first = session.fetch({(topic, n): 0 for n in range(3)})
    assert first == [(topic, 0, none, [0]), (topic, 1, none, []), (topic, 2, none, [])]
    assert session.id > 0
    assert session.fetch({(topic, 0): 1}) == []
    assert session.fetch({}) == []
    produce(wire, topic, batch(b"b"), partition=1)
    assert [(number, found) for _, number, _, found in session.fetch({})] == [(1, [0])]
    assert [number for _, number, _, _ in session.fetch({})] == [1], "its position is the one that was asked for last"
    produce(wire, topic, batch(b"c"), partition=2)
    assert session.fetch({(topic, 1): 1}, {topic: (2,)}) == []
    assert [found for _, _, _, found in session.fetch({(topic, 2): 0})] == [[0]], "asked for again"
    assert session.fetch({(topic, 2): 9})[0][2] is ErrorCode.offset_out_of_range
    assert session.fetch({})[0][2] is ErrorCode.offset_out_of_range, "an error is repeated"
    assert session.fetch({}, {topic: (0, 1, 2)}) == []
    assert session.id == 0, "nothing is left: the session has ended"


def test_a_session_is_continued_by_its_id_its_next_epoch_and_its_kind_of_names(wire: WireClient) -> None:
    topic = new_topic(wire)
    session = Session(wire, 12)
    session.fetch({(topic, 0): 0})
    opened, session.id = session.id, session.id + 1
    for change, error in (
        ({"id": opened + 1}, ErrorCode.fetch_session_id_not_found),
        ({"id": opened, "epoch": 2}, ErrorCode.invalid_fetch_session_epoch),
        ({"epoch": 1, "version": 13}, ErrorCode.fetch_session_topic_id_error),
        ({"version": 12}, ErrorCode.none),
        ({"epoch": 1}, ErrorCode.invalid_fetch_session_epoch),
        ({"epoch": -1}, ErrorCode.none),
        ({"id": opened, "epoch": 2}, ErrorCode.fetch_session_id_not_found),
    ):
        vars(session).update(change)
        session.fetch({(topic, 0): 0})
        assert session.error is error, change


def test_a_session_is_woken_by_an_append_and_forgets_a_deleted_topic(broker: RunningBroker, wire: WireClient) -> None:
    topic, idle = new_topic(wire), new_topic(wire)
    session = Session(wire, 18, max_wait_ms=LONG_MS)
    session.fetch({(topic, 0): 0, (idle, 0): 0}, max_wait_ms=0)
    fields = fetch_fields({}, version=18, max_wait_ms=LONG_MS, session_id=session.id, session_epoch=session.epoch)
    wire.send(ApiKey.FETCH, 18, **fields)
    with WireClient(broker.bootstrap) as other:
        produce(other, topic, batch(b"a"))
        answer = wire.receive(ApiKey.FETCH, 18)
        assert [offsets(p.records) for t in answer.responses for p in t.partitions] == [[0]]
        other.call(ApiKey.DELETE_TOPICS, 5, topic_names=(idle,), timeout=timedelta(seconds=10))
        assert create_topic(other, idle).error_code is ErrorCode.none
        produce(other, idle, batch(b"of another topic"))
    session.epoch += 1
    assert [(code, found) for _, _, code, found in session.fetch({(topic, 0): 1})] == [(ErrorCode.unknown_topic_id, [])]


def test_unknown_topics_and_partitions_are_answered_at_once(wire: WireClient) -> None:
    wanted = {("nowhere", 0): 0, ("events", 99): 0, ("events", -1): 0}
    answer = wire.call(ApiKey.FETCH, 12, **fetch_fields(wanted, max_wait_ms=LONG_MS))
    codes = {p.error_code for t in answer.responses for p in t.partitions}
    assert codes == {ErrorCode.unknown_topic_or_partition}


def test_read_committed(wire: WireClient) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(b"a"))
    answer = fetch(wire, topic, 0, isolation_level=1)
    assert answer.aborted_transactions == ()
    assert answer.records
