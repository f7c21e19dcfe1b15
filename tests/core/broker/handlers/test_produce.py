from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from klamm.core.config.settings import Settings
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.header import BatchHeader, iter_headers
from klammtest.apis import SERVED
from klammtest.broker import RunningBroker
from klammtest.requests import batch, create_topic, fetch, new_topic, produce, produce_fields, topic_id
from klammtest.wire import WireClient

CODECS = Settings().codec_table()


@pytest.mark.parametrize("version", range(SERVED[ApiKey.PRODUCE][0], SERVED[ApiKey.PRODUCE][1] + 1))
def test_every_version_stores_and_says_where(wire: WireClient, version: int) -> None:
    topic = new_topic(wire)
    for base in (0, 2):
        outcome = produce(wire, topic, batch(b"a", b"b"), version=version)
        assert (outcome.error_code, outcome.base_offset) == (ErrorCode.none, base)
    assert outcome.log_append_time is None


@pytest.mark.parametrize("acks", [1, -1])
def test_acks(wire: WireClient, acks: int) -> None:
    assert produce(wire, new_topic(wire), batch(b"a"), acks=acks).error_code is ErrorCode.none


def test_acks_0_has_no_response(wire: WireClient) -> None:
    topic = new_topic(wire)
    wire.send(ApiKey.PRODUCE, 9, **produce_fields({(topic, 0): batch(b"a")}, acks=0))
    assert produce(wire, topic, batch(b"b")).base_offset == 1


def test_batches_are_stored_as_they_came_but_for_offset_and_epoch(wire: WireClient) -> None:
    topic = new_topic(wire)
    sent = batch(b"a", b"b", codec=CODECS.by_name("zstd"))
    produce(wire, topic, batch(b"first"))
    produce(wire, topic, sent)
    stored = fetch(wire, topic, 1).records
    header = BatchHeader.parse(stored)
    assert (header.base_offset, header.leader_epoch) == (1, 0)
    assert stored[16:] == sent[16:]


def test_a_retry_gets_its_first_offset_also_after_kill_9(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        first = wire.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=timedelta())
        ids = {"producer_id": first.producer_id, "producer_epoch": 0}
        produce(wire, topic, batch(b"before"))
        sent = [batch(b"a", b"b", **ids, base_sequence=0), batch(b"c", **ids, base_sequence=2)]
        offsets = [produce(wire, topic, data).base_offset for data in sent]
        assert offsets == [1, 3]
        assert [produce(wire, topic, data).base_offset for data in sent] == offsets
    broker.kill()
    broker.start()
    with WireClient(broker.bootstrap) as wire:
        assert [produce(wire, topic, data).base_offset for data in sent] == offsets
        gap = batch(b"e", **ids, base_sequence=7)
        assert produce(wire, topic, gap).error_code is ErrorCode.out_of_order_sequence_number
        assert produce(wire, topic, batch(b"d", **ids, base_sequence=3)).base_offset == 4
        stale = batch(b"x", producer_id=first.producer_id, producer_epoch=-1, base_sequence=0)
        assert produce(wire, topic, stale).error_code is not ErrorCode.none


def test_a_batch_behind_a_refused_one_is_refused_with_the_same_error(wire: WireClient) -> None:
    """The second would be stored, since the partition does not know the producer, and the first one be out of order for
    ever (KAFKA-14359).
    """
    topic = f"later-{uuid4().hex[:8]}"
    first = wire.call(ApiKey.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=timedelta())
    sent = [batch(b"x", producer_id=first.producer_id, producer_epoch=0, base_sequence=n) for n in range(3)]
    assert produce(wire, topic, sent[0]).error_code is ErrorCode.unknown_topic_or_partition
    assert create_topic(wire, topic, 1, {}).error_code is ErrorCode.none
    for behind in sent[1:]:
        assert produce(wire, topic, behind).error_code is ErrorCode.unknown_topic_or_partition
    assert [produce(wire, topic, data).base_offset for data in sent] == [0, 1, 2]


def test_pipelined_requests_are_answered_in_order(wire: WireClient) -> None:
    topic = new_topic(wire)
    large = batch(*[b"x" * 1000] * 900)
    for number in range(60):
        records = large if number % 20 == 0 else batch(b"small")
        wire.send(ApiKey.PRODUCE, 9, **produce_fields({(topic, 0): records}))
    expected = 0
    for number in range(60):
        answer = wire.receive(ApiKey.PRODUCE, 9)
        assert answer.responses[0].partition_responses[0].base_offset == expected
        expected += 900 if number % 20 == 0 else 1


def test_log_append_time(wire: WireClient) -> None:
    topic = new_topic(wire, message_timestamp_type="LogAppendTime")
    outcome = produce(wire, topic, batch(b"a", timestamp_ms=5))
    assert outcome.log_append_time.year >= 2020
    header = BatchHeader.parse(fetch(wire, topic, 0).records)
    assert header.log_append_time
    assert header.max_timestamp == int(outcome.log_append_time.timestamp() * 1000)


def test_a_topic_with_a_codec_stores_everything_in_it(wire: WireClient) -> None:
    topic = new_topic(wire, compression_type="gzip")
    produce(wire, topic, batch(b"a", b"b"))
    produce(wire, topic, batch(b"c", codec=CODECS.by_name("zstd")))
    stored = fetch(wire, topic, 0).records
    assert [(h.codec_id, h.base_offset, h.record_count) for _, h in iter_headers(stored)] == [(1, 0, 2), (1, 2, 1)]


def test_min_insync_replicas_counts_at_most_the_replicas_that_there_are(wire: WireClient) -> None:
    """The effective minimum, as in Kafka: a topic of one replica takes acks=all."""
    topic = new_topic(wire, min_insync_replicas=2)
    assert produce(wire, topic, batch(b"a"), acks=-1).error_code is ErrorCode.none


def test_a_compacted_topic_refuses_records_without_a_key(wire: WireClient) -> None:
    topic = new_topic(wire, cleanup_policy="compact")
    outcome = produce(wire, topic, batch(b"a"))
    assert outcome.error_code is ErrorCode.invalid_record
    assert "key" in outcome.error_message


def test_flush_messages_makes_records_visible_once_they_are_on_disk(wire: WireClient) -> None:
    topic = new_topic(wire, flush_messages=1)
    assert produce(wire, topic, batch(b"a", b"b")).error_code is ErrorCode.none
    assert fetch(wire, topic, 0).high_watermark == 2


def test_a_topic_id_names_one_topic_whatever_becomes_of_its_name(wire: WireClient) -> None:
    """A deleted topic's id is UNKNOWN_TOPIC_ID, though a topic of its name exists again; at several partitions, with
    acks=1 and -1, each is answered by the id that it was named by."""
    topic = new_topic(wire)
    former = topic_id(wire, topic)
    wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=(topic,), timeout=timedelta(seconds=10))
    assert create_topic(wire, topic, 2).error_code is ErrorCode.none
    now = topic_id(wire, topic)

    def answers(name_id: UUID | None, *partitions: int, acks: int = -1) -> list[tuple[UUID | None, ErrorCode, int]]:
        wanted: dict[tuple[str, int], bytes | None] = {(topic, number): batch(b"a") for number in partitions}
        fields = produce_fields(wanted, acks, 13, topic_ids={} if name_id is None else {topic: name_id})
        answer = wire.call(ApiKey.PRODUCE, 13, **fields)
        return [
            (row.topic_id, p.error_code, p.base_offset) for row in answer.responses for p in row.partition_responses
        ]

    for acks in (1, -1):
        for unknown in (former, uuid4(), None):
            assert answers(unknown, 0, acks=acks) == [(unknown, ErrorCode.unknown_topic_id, -1)]
    assert answers(now, 0, acks=1) == [(now, ErrorCode.none, 0)]
    none, missing = ErrorCode.none, ErrorCode.unknown_topic_or_partition
    assert answers(now, 0, 1, 7) == [(now, none, 1), (now, none, 0), (now, missing, -1)]
    assert fetch(wire, topic, 0).high_watermark == 2


def test_a_transaction_is_refused_by_every_version(wire: WireClient) -> None:
    topic = new_topic(wire)
    for version in range(SERVED[ApiKey.PRODUCE][0], SERVED[ApiKey.PRODUCE][1] + 1):
        ids = {topic: topic_id(wire, topic)}
        fields = produce_fields({(topic, 0): batch(b"a")}, -1, version, transactional_id="t", topic_ids=ids)
        answer = wire.call(ApiKey.PRODUCE, version, **fields).responses[0].partition_responses[0]
        assert answer.error_code is ErrorCode.transactional_id_authorization_failed


def test_acks_0_by_an_unknown_topic_id_closes_the_connection(broker: RunningBroker) -> None:
    with WireClient(broker.bootstrap) as wire:
        wire.send(ApiKey.PRODUCE, 13, **produce_fields({("t", 0): batch(b"a")}, 0, 13, topic_ids={"t": uuid4()}))
        assert wire.closed()
