"""Batches behind one that was refused are refused too, until it is sent again."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from klamm.core.broker import server
from klamm.core.broker.background.maintenance import BrokerMaintenance
from klamm.core.broker.handlers import produce
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.refused_batches import EARLIER_S, MOST, PURGE_INTERVAL_S, RefusedBatches
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.server import Broker as WholeBroker
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.errors import ErrorCode
from klamm.core.log.state.producer_state import ProducerState
from klamm.core.protocol.produce.response import Produced
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import ReplicationSettings
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.brokers.scripted import Fault, scripted_broker
from klammtest.logs import codec_table, open_log
from klammtest.requests import batch

REFUSED = ErrorCode.not_enough_replicas


LAST = 2**31 - 1


class Broker:
    """The refusals of one broker under a clock of its own, and what its log has of the producers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.refused = RefusedBatches(lambda: self.now)
        self.log = ProducerState(TopicPartition("t", 0))

    def store(self, *sequences: int, **more: int) -> None:
        for sequence in sequences:
            header = BatchHeader.parse(sent(sequence, **more))
            assert self.log.check(header) is None
            self.log.update(header)

    def refuse(self, sequence: int, error: ErrorCode = REFUSED, **more: int) -> None:
        self.refused.note("t", 0, sent(sequence, **more), error)

    def behind(self, sequence: int, partition: int = 0, **more: int) -> ErrorCode | None:
        return self.refused.behind("t", partition, sent(sequence, **more), self.log.last_sequence)


def sent(sequence: int, producer_id: int = 7, producer_epoch: int = 0) -> memoryview:
    return memoryview(batch(b"x", producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence))


def services_of(led: Replica) -> Any:
    """What a broker has that leads one partition."""
    return SimpleNamespace(
        partitions=SimpleNamespace(find=lambda *_: led),
        refused_batches=RefusedBatches(),
        workers=SimpleNamespace(appends=SimpleNamespace(on_loop_bytes=1 << 20)),
        append_listeners=(),
    )


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_what_follows_a_refused_batch_gets_its_error_until_it_is_sent_again(broker: Broker) -> None:
    broker.refuse(5)
    assert [broker.behind(sequence) for sequence in (6, 7, 4)] == [REFUSED, REFUSED, None]
    assert broker.behind(5) is None
    assert not broker.refused.known
    assert broker.behind(6) is None


def test_what_follows_a_batch_that_is_on_its_way_to_an_earlier_leader_is_early_for_a_minute(broker: Broker) -> None:
    broker.store(4)

    def early(sequence: int, leader_epoch: int = 3, **more: int) -> bool:
        batch = sent(sequence, **more)
        return broker.refused.is_early("t", 0, batch, leader_epoch, broker.log.last_sequence)

    assert [early(sequence) for sequence in (6, 9, 2)] == [True, True, False]
    assert not early(6, producer_id=8), "the log takes any sequence of it"
    assert early(2, producer_epoch=1), "its first batch is missing"
    broker.now += EARLIER_S - 1
    assert early(7)
    broker.now += 1
    assert not early(6)
    assert early(6, leader_epoch=4), "another leader may have it since"
    broker.now += 2 * EARLIER_S
    broker.refused.purge()
    assert not broker.refused._early


@pytest.mark.parametrize(("replicas", "epoch", "code"), [
    ((1, 2), 5, ErrorCode.not_leader_or_follower),
    ((1, 2), 4, ErrorCode.out_of_order_sequence_number),
    ((1,), 5, ErrorCode.out_of_order_sequence_number),
])  # fmt: skip
def test_a_batch_that_is_early_is_refused_as_by_a_broker_that_does_not_lead(
    tmp_path: Path, replicas: tuple[int, ...], epoch: int, code: ErrorCode
) -> None:
    """librdkafka sends it to the new leader while the batch before it is on its way to one that is stopped. After
    OUT_OF_ORDER_SEQUENCE_NUMBER it would begin a new epoch for all partitions, and send stored batches again."""
    log = open_log(tmp_path)
    log.append_as_leader(bytearray(sent(0)), 4)
    if epoch > 4:
        log.begin_leader_epoch(epoch)
    led = cast(Any, SimpleNamespace(
        name=log.tp, log=log, replicas=replicas, leader_epoch=epoch, commits_alone=True,
        traffic=SimpleNamespace(failed_produces=0), appended=lambda *_: None, is_new_leader=False,
        validated=False,
    ))  # fmt: skip
    services = services_of(led)

    def produced(sequence: int) -> ErrorCode:
        outcome = produce._append_now(services, *log.tp, memoryview(bytearray(sent(sequence))), -1)
        return outcome.error if isinstance(outcome, Produced) else ErrorCode.none

    assert produced(2) is code
    assert produced(1) is ErrorCode.none
    assert [produced(2), produced(3)] == [ErrorCode.none] * 2
    assert produced(5) is ErrorCode.out_of_order_sequence_number, "it has a batch of this epoch"


@pytest.mark.parametrize(("replicas", "epoch"), [((0,), 5), ((0, 1), 5), ((0, 1), 0)])
def test_a_later_batch_of_a_producer_that_a_new_leader_does_not_know_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: tuple[int, ...], epoch: int
) -> None:
    """The log would take any sequence of it; after that answer librdkafka reports the first batch as delivered, which
    may be lost at the earlier leader. A minute later it is a producer whose state has expired; in a new partition, it
    is one of a topic that was deleted and created again."""
    clock = [100.0]

    async def script() -> None:
        log = open_log(tmp_path)
        log.begin_leader_epoch(epoch)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
        settings, own = ReplicationSettings(1, 30_000), BrokerRegistration(0, 1, "here", ("a",))
        led = Replica(0, log.tp, log, BrokerMetrics().traffic("t"), replicas, settings)
        led.on_metadata(PartitionState(0, epoch, 1, (0,), (), {0: "a"}, 0), 1, own, replicas, settings)
        services = services_of(led)

        def produced(sequence: int, **more: int) -> ErrorCode:
            outcome = produce._append_now(services, *log.tp, memoryview(bytearray(sent(sequence, **more))), -1)
            return outcome.error if isinstance(outcome, Produced) else ErrorCode.none

        early = ErrorCode.not_leader_or_follower if len(replicas) > 1 and epoch else ErrorCode.none
        assert produced(2, producer_id=8) is early
        assert [produced(sequence) for sequence in range(3)] == [ErrorCode.none] * 3
        clock[0] += EARLIER_S
        assert produced(9, producer_id=9) is ErrorCode.none
        log.close()

    asyncio.run(script())


def test_others_are_not_concerned(broker: Broker) -> None:
    broker.refuse(5)
    assert broker.behind(6, producer_id=8) is None
    assert broker.behind(6, partition=1) is None
    assert broker.behind(6) is REFUSED


def test_a_new_epoch_ends_a_refusal(broker: Broker) -> None:
    broker.refuse(5, producer_epoch=1)
    assert broker.behind(6, producer_epoch=0) is None
    broker.refuse(4, producer_epoch=0)
    assert broker.behind(5, producer_epoch=1) is None
    broker.refuse(5, producer_epoch=1)
    assert broker.behind(6, producer_epoch=1) is REFUSED
    assert broker.behind(0, producer_epoch=2) is None
    assert not broker.refused.known


def test_a_refusal_in_a_new_epoch_replaces_that_of_the_former(broker: Broker) -> None:
    broker.refuse(5)
    broker.refuse(9, ErrorCode.not_leader_or_follower, producer_epoch=1)
    assert broker.behind(10, producer_epoch=1) is ErrorCode.not_leader_or_follower


def test_the_first_of_several_refusals_counts(broker: Broker) -> None:
    broker.refuse(5)
    broker.refuse(6, ErrorCode.not_leader_or_follower)
    assert broker.behind(7) is REFUSED
    broker.refuse(4, ErrorCode.not_leader_or_follower)
    assert broker.behind(5) is ErrorCode.not_leader_or_follower


def test_what_another_leader_has_stored_meanwhile_ends_a_refusal(broker: Broker) -> None:
    """It led, the refused batch was stored there and replicated here, and this broker leads again."""
    broker.store(0)
    broker.refuse(1)
    assert broker.behind(2) is REFUSED
    broker.store(1)
    assert broker.behind(2) is None
    assert not broker.refused.known


def test_a_batch_that_the_log_expects_or_has_is_not_held_up(broker: Broker) -> None:
    """1 and 8 were refused; all up to 5 were stored at another leader, and the answer for 5 was lost."""
    broker.refuse(1)
    broker.refuse(8)
    broker.store(*range(6))
    assert broker.behind(5) is None
    assert broker.behind(9) is REFUSED
    assert broker.behind(7) is REFUSED
    assert broker.behind(6) is None
    assert not broker.refused.known


def test_a_gap_is_left_to_the_log_once_all_that_was_refused_is_stored(broker: Broker) -> None:
    """A refusal that has ended must not hold a producer up whose log has lost records: it needs the log's error."""
    broker.refuse(1)
    broker.refuse(2)
    broker.store(*range(3))
    assert broker.behind(9) is None
    assert not broker.refused.known


def test_a_log_that_knows_a_former_epoch_only_does_not_end_a_refusal(broker: Broker) -> None:
    broker.store(0, 1, 2)
    broker.refuse(0, producer_epoch=1)
    assert broker.behind(1, producer_epoch=1) is REFUSED
    broker.store(0, producer_epoch=1)
    assert broker.behind(1, producer_epoch=1) is None


def test_a_log_that_knows_a_newer_epoch_ends_a_refusal(broker: Broker) -> None:
    broker.refuse(5)
    broker.store(0, producer_epoch=1)
    assert broker.behind(6) is None
    assert not broker.refused.known


def test_the_first_batches_of_an_unknown_producer_keep_their_order_however_late_the_second_is(broker: Broker) -> None:
    broker.refuse(0)
    broker.now += 100
    assert broker.behind(1) is REFUSED
    broker.refused.purge()
    assert broker.behind(1) is REFUSED
    assert broker.behind(0) is None
    broker.store(0)
    assert broker.behind(1) is None


def test_a_refusal_is_forgotten_when_its_producer_has_given_up(broker: Broker) -> None:
    broker.refuse(5)
    broker.now += 100
    broker.refuse(5, producer_id=8)
    broker.now += 21
    broker.refused.purge()
    assert broker.behind(6) is None
    assert broker.behind(6, producer_id=8) is REFUSED
    broker.now += 100
    broker.refused.purge()
    assert not broker.refused.known


def test_a_broker_purges_periodically(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: dict[str, tuple[float, Callable[[], Awaitable[object]]]] = {}

    class Jobs(BrokerMaintenance):
        def every(self, interval_s: float, what: str, run: Callable[[], Awaitable[object]]) -> None:
            jobs[what] = interval_s, run

    monkeypatch.setattr(server, "BrokerMaintenance", Jobs)
    whole: Any = SimpleNamespace(_config=BrokerConfig(), _stack=SimpleNamespace(push_async_callback=lambda _: None))
    services: Any = SimpleNamespace(refused_batches=broker.refused, new_leaders=SimpleNamespace(forget=lambda: None))
    WholeBroker._maintain(whole, services, SimpleNamespace())  # type: ignore[arg-type]
    broker.refuse(5)
    broker.now += 121
    interval_s, purge = jobs["refused batches"]
    asyncio.run(purge())  # type: ignore[arg-type]
    assert interval_s == PURGE_INTERVAL_S
    assert not broker.refused.known


def test_a_fail_over_of_many_partitions_and_producers_is_remembered(broker: Broker) -> None:
    for producer in range(12_000):
        broker.refuse(0, producer_id=producer)
    assert all(broker.behind(1, producer_id=producer) is REFUSED for producer in range(12_000))


def test_beyond_the_bound_the_oldest_refusals_are_forgotten(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.core.broker.refused_batches.MOST", 3)
    for producer in (1, 2, 3, 1, 4):
        broker.refuse(0, producer_id=producer)
    assert len(broker.refused.known) == 3
    held_up = [producer for producer in range(1, 5) if broker.behind(1, producer_id=producer) is REFUSED]
    assert held_up == [1, 3, 4]


def test_an_entry_is_small_whatever_the_name_of_its_topic(broker: Broker) -> None:
    tracemalloc.start()
    try:
        for number in range(1000):
            data = sent(number + 1000, producer_id=10**12 + number)
            broker.refused.note(f"{number}-" + "x" * 30_000, number, data, ErrorCode.unknown_topic_or_partition)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / 1000 * MOST < 60_000_000


def test_sequences_go_on_at_0(broker: Broker) -> None:
    broker.store(LAST - 1)
    broker.refuse(LAST)
    assert broker.behind(0) is REFUSED
    assert broker.behind(LAST - 1) is None
    broker.store(LAST)
    assert broker.behind(0) is None
    assert not broker.refused.known
    broker.refuse(0)
    assert broker.behind(1) is REFUSED
    broker.store(0)
    assert broker.behind(1) is None


def test_a_refusal_before_the_sequences_go_on_at_0_ends_behind_that(broker: Broker) -> None:
    broker.refuse(LAST)
    broker.store(LAST, 0, 1)
    assert broker.behind(2) is None
    assert not broker.refused.known


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

        def last_sequence(producer_id: int) -> tuple[int, int] | None:
            state = broker.log("t").producers.get(producer_id)
            return None if state is None or not state.batches else (state.epoch, state.batches[-1][1])

        def guarded(schema: Any, tp: TopicPartition, data: bytes, fault: Fault) -> Any:
            before = refused.behind(*tp, memoryview(data), last_sequence)
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
