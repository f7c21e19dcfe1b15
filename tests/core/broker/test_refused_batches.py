"""Batches behind one that was refused are refused too, until it is sent again."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from klamm.core.broker.refused_batches import RefusedBatches
from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.scripted import Fault, scripted_broker
from klammtest.logs import codec_table
from klammtest.requests import batch

REFUSED = ErrorCode.not_enough_replicas


class Broker:
    """The refusals of one broker, under a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.refused = RefusedBatches(lambda: self.now)

    def refuse(self, sequence: int, error: ErrorCode = REFUSED, **more: int) -> None:
        self.refused.note("t", 0, sent(sequence, **more), error)

    def behind(self, sequence: int, partition: int = 0, **more: int) -> ErrorCode | None:
        return self.refused.behind("t", partition, sent(sequence, **more))


def sent(sequence: int, producer_id: int = 7, producer_epoch: int = 0) -> memoryview:
    return memoryview(batch(b"x", producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence))


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_what_follows_a_refused_batch_gets_its_error_until_it_is_sent_again(broker: Broker) -> None:
    broker.refuse(5)
    assert [broker.behind(sequence) for sequence in (6, 7, 4)] == [REFUSED, REFUSED, None]
    assert broker.behind(5) is None
    assert not broker.refused.known
    assert broker.behind(6) is None


def test_others_are_not_concerned(broker: Broker) -> None:
    broker.refuse(5)
    assert broker.behind(6, producer_id=8) is None
    assert broker.behind(6, producer_epoch=1) is None
    assert broker.behind(6, partition=1) is None
    assert broker.behind(6) is REFUSED


def test_the_first_of_several_refusals_counts(broker: Broker) -> None:
    broker.refuse(5)
    broker.refuse(6, ErrorCode.not_leader_or_follower)
    assert broker.behind(7) is REFUSED
    broker.refuse(4, ErrorCode.not_leader_or_follower)
    assert broker.behind(5) is ErrorCode.not_leader_or_follower


def test_a_refusal_is_forgotten_after_some_seconds(broker: Broker) -> None:
    broker.refuse(5)
    broker.now += 4.9
    assert broker.behind(6) is REFUSED
    broker.now += 0.2
    assert broker.behind(6) is None
    assert not broker.refused.known


def test_old_refusals_make_room(broker: Broker) -> None:
    for producer in range(10_100):
        broker.refuse(5, producer_id=producer)
    assert len(broker.refused.known) == 10_000
    broker.now += 6
    broker.refuse(5)
    assert len(broker.refused.known) == 1


def test_sequences_go_on_at_0(broker: Broker) -> None:
    last = 2**31 - 1
    broker.refuse(last)
    assert broker.behind(0) is REFUSED
    assert broker.behind(last - 1) is None


def test_what_is_not_sent_again_as_it_was_is_not_noted(broker: Broker) -> None:
    broker.refuse(5, ErrorCode.message_too_large)
    broker.refuse(-1, producer_id=-1)
    for damaged in (b"", sent(5)[:40], bytes(61)):
        broker.refused.note("t", 0, memoryview(damaged), REFUSED)
    assert not broker.refused.known


def test_librdkafka_stores_nothing_twice_when_its_first_batches_in_flight_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first was stored, and its answer lost. After OUT_OF_ORDER_SEQUENCE_NUMBER for the third it would send all in
    a new epoch, and the log would be a, b, b, c, d, e.
    """
    with scripted_broker({"t": 1}, codec_table()) as broker:
        refused, append = RefusedBatches(), broker._append

        def guarded(schema: Any, tp: TopicPartition, data: bytes, fault: Fault) -> Any:
            before = refused.behind(*tp, memoryview(data))
            if before is None and isinstance(fault, ErrorCode):
                refused.note(*tp, memoryview(data), fault)
            return append(schema, tp, data, before or fault)

        monkeypatch.setattr(broker, "_append", guarded)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0,
             "batch.num.messages": 1, "retry.backoff.ms": 50, "reconnect.backoff.ms": 20,
             "reconnect.backoff.max.ms": 50}
        )  # fmt: skip
        producer.produce("t", b"a", partition=0)
        assert producer.flush(60) == 0
        broker.faults.extend(["lost", REFUSED, REFUSED])
        for value in (b"b", b"c", b"d", b"e"):
            producer.produce("t", value, partition=0)
        assert producer.flush(60) == 0
        assert broker.values("t") == [b"a", b"b", b"c", b"d", b"e"]
