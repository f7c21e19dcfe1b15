from __future__ import annotations

from datetime import timedelta

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import SERVED, ApiKey
from klamm.core.records.header import iter_headers
from klammtest.broker import RunningBroker
from klammtest.requests import batch, fetch, fetch_fields, new_topic, produce, produce_fields
from klammtest.wire import WireClient

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


def test_there_are_no_fetch_sessions(wire: WireClient) -> None:
    topic = new_topic(wire)
    produce(wire, topic, batch(b"a"))
    full = wire.call(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 0}, session_id=0, session_epoch=0))
    assert (full.error_code, full.session_id) == (ErrorCode.none, 0)
    named = wire.call(ApiKey.FETCH, 12, **fetch_fields({}, session_id=77, session_epoch=1))
    assert named.error_code is ErrorCode.fetch_session_id_not_found


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
