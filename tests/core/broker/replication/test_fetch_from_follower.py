"""A consumer that names its rack is sent to a replica in it, and reads there what is committed (KIP-392)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import TopicPartition as ForeignPartition

import klamm
from klamm.core.broker.replication.fetchers import Fetchers
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients import readers
from klammtest.requests import (
    alter_topic,
    batch,
    create_topic,
    fetch_fields,
    metadata,
    produce,
    wait_until_all_are_known,
)
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

RACKS = {0: "a", 1: "b", 2: "c"}
LEADER, SHORT = 0, 1
"""The leader of the topics whose log starts differ, and the follower that deletes records sooner than the others."""
STORED = 20
"""The records of such a topic."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    folder = tmp_path_factory.mktemp("brokers")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with ExitStack() as stack:
        found = {}
        for number, rack in RACKS.items():
            keys = {
                "broker.id": number,
                "broker.rack": rack,
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(folder / str(number)),
                "replica.selector.class": "RackAwareReplicaSelector",
                "log.retention.ms": -1,
                "log.retention.check.interval.ms": 200 if number == SHORT else 300_000,
            }
            broker = stack.enter_context(broker_thread(folder, tree, keys))
            found[number] = f"127.0.0.1:{broker.advertised[0].port}"
        wait_until_all_are_known(found.values())
        yield found


def read(address: str, topic: str, offset: int = 0, rack: str = "", max_wait_ms: int = 100) -> Any:
    with WireClient(address) as wire:
        fields = fetch_fields({(topic, 0): offset}, version=12, rack_id=rack, max_wait_ms=max_wait_ms)
        return wire.call(ApiKey.FETCH, 12, **fields).responses[0].partitions[0]


def test_a_consumer_reads_in_its_rack(brokers: dict[int, str]) -> None:
    with WireClient(brokers[0]) as wire:
        controller = metadata(wire, []).controller_id
    with WireClient(brokers[controller]) as wire:
        assert create_topic(wire, "near", replication_factor=3).error_code is ErrorCode.none
        leads = lambda: int(metadata(wire, ["near"]).topics[0].partitions[0].leader_id)  # noqa: E731
        eventually(lambda: leads() >= 0, "a broker leads it")
        leader = leads()
    with WireClient(brokers[leader]) as wire:
        eventually(lambda: produce(wire, "near", batch(b"a"), acks=-1).error_code is ErrorCode.none, "it is committed")
    at_leader = read(brokers[leader], "near")
    assert at_leader.records
    assert at_leader.preferred_read_replica == -1, "a consumer without a rack"
    assert read(brokers[leader], "near", rack=RACKS[leader]).records, "the leader is in the consumer's rack"
    assert read(brokers[leader], "near", rack="elsewhere").records, "no replica is in the consumer's rack"
    follower = next(number for number in brokers if number != leader)
    sent = read(brokers[leader], "near", rack=RACKS[follower])
    assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records)) == (ErrorCode.none, follower, b"")
    eventually(lambda: read(brokers[follower], "near").records, "the follower knows the high watermark")
    near = read(brokers[follower], "near", rack=RACKS[follower])
    assert bytes(near.records) == bytes(at_leader.records)
    assert read(brokers[follower], "near", offset=99).error_code is ErrorCode.offset_out_of_range


def test_a_parked_fetch_at_a_follower_is_woken_by_the_watermark(brokers: dict[int, str]) -> None:
    with WireClient(brokers[0]) as wire:
        partition = metadata(wire, ["near"]).topics[0].partitions[0]
    follower = next(number for number in brokers if number != partition.leader_id)
    with WireClient(brokers[follower]) as wire, WireClient(brokers[partition.leader_id]) as leader:
        fields = fetch_fields({("near", 0): 1}, version=12, rack_id="x", max_wait_ms=30_000)
        wire.send(ApiKey.FETCH, 12, **fields)
        assert produce(leader, "near", batch(b"b"), acks=-1).error_code is ErrorCode.none
        answer = wire.receive(ApiKey.FETCH, 12)
    assert answer.throttle_time == timedelta()
    assert answer.responses[0].partitions[0].records


# -- a follower whose log starts later than the leader's


def shortened(brokers: dict[int, str], topic: str) -> int:
    """Creates a topic whose first records only one follower has deleted; returns where the log of that one starts.

    Nothing is appended after the deletion, so the follower has no other reason to fetch anew.
    """
    replicas = part(ApiKey.CREATE_TOPICS, 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(0, 1, 2))
    with WireClient(brokers[LEADER]) as wire:
        controller = metadata(wire, []).controller_id
    with WireClient(brokers[controller]) as wire:
        made = create_topic(wire, topic, -1, {"segment.bytes": "2500"}, assignments=(replicas,))
        assert made.error_code is ErrorCode.none
    with WireClient(brokers[LEADER]) as wire:
        for number in range(STORED):
            stored = partial(produce, wire, topic, batch(b"%d" % number + b"x" * 1000))
            eventually(lambda stored=stored: stored().error_code is ErrorCode.none, "it is stored")
    eventually(lambda: read(brokers[SHORT], topic, STORED - 1).records, "the follower shows all records")
    with WireClient(brokers[controller]) as wire:
        alter_topic(wire, topic, "retention.bytes", "5000")
    eventually(lambda: read(brokers[SHORT], topic).error_code is not ErrorCode.none, "the follower has deleted some")
    start: int = read(brokers[SHORT], topic).log_start_offset
    assert 0 < start < STORED
    assert read(brokers[LEADER], topic).log_start_offset == 0
    return start


def preferred(brokers: dict[int, str], topic: str, offset: int) -> int:
    """The replica that the leader names to a consumer in the rack of the follower that deletes sooner."""
    answer = read(brokers[LEADER], topic, offset, RACKS[SHORT])
    assert answer.error_code is ErrorCode.none
    assert bool(answer.records) == (answer.preferred_read_replica == -1)
    return int(answer.preferred_read_replica)


def read_by_librdkafka(brokers: dict[int, str], topic: str) -> list[int]:
    """The offsets that a consumer in the follower's rack reads, which begins at offset 0."""
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(brokers.values()),
        "group.id": topic,
        "client.rack": RACKS[SHORT],
        "auto.offset.reset": "earliest",
        "fetch.error.backoff.ms": 50,
    }
    consumer, offsets, deadline = ForeignConsumer(config), list[int](), time.monotonic() + 60
    try:
        consumer.assign([ForeignPartition(topic, 0, 0)])
        while STORED - 1 not in offsets and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None:
                assert message.error() is None
                offsets.append(message.offset() or 0)
    finally:
        consumer.close()
    return offsets


def read_by_klamm(brokers: dict[int, str], topic: str) -> list[int]:
    """As `read_by_librdkafka`."""
    section = {
        "bootstrap.servers": ",".join(brokers.values()),
        "client.rack": RACKS[SHORT],
        "auto.offset.reset": "none",
    }
    with klamm.Consumer({"consumer": section}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        return [record.offset for record in readers.read(consumer, STORED)]


def test_a_consumer_is_not_sent_to_a_follower_that_has_deleted_the_record(brokers: dict[int, str]) -> None:
    start = shortened(brokers, "trimmed")
    eventually(lambda: preferred(brokers, "trimmed", 0) == -1, "the idle follower has reported its log start")
    assert preferred(brokers, "trimmed", start - 1) == -1
    assert preferred(brokers, "trimmed", start) == SHORT
    assert read(brokers[SHORT], "trimmed", start, RACKS[SHORT]).records
    assert read_by_librdkafka(brokers, "trimmed") == list(range(STORED))
    assert read_by_klamm(brokers, "trimmed") == list(range(STORED))


def test_a_follower_sends_a_consumer_back_for_what_the_leader_still_has(
    brokers: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the leader does not know yet that the follower has deleted records."""
    report = Fetchers.report_log_starts
    monkeypatch.setattr(Fetchers, "report_log_starts", lambda _: None)
    start = shortened(brokers, "sent-back")
    assert preferred(brokers, "sent-back", 0) == SHORT
    for offset in (0, start - 1, STORED + 1):
        refused = read(brokers[SHORT], "sent-back", offset)
        assert (refused.error_code, refused.high_watermark) == (ErrorCode.offset_out_of_range, -1), "as Kafka answers"
    assert read(brokers[SHORT], "sent-back", start).error_code is ErrorCode.none
    begun = time.monotonic()
    read(brokers[SHORT], "sent-back", max_wait_ms=500)
    assert time.monotonic() - begun > 0.4, "consumers do not go back and forth faster than that"
    assert read_by_klamm(brokers, "sent-back") == list(range(STORED))
    assert preferred(brokers, "sent-back", 0) == SHORT, "the leader did not know meanwhile"
    later = threading.Timer(1.0, lambda: monkeypatch.setattr(Fetchers, "report_log_starts", report))
    later.start()
    try:
        assert read_by_librdkafka(brokers, "sent-back") == list(range(STORED))
    finally:
        later.join()
