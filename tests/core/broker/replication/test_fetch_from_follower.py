"""A consumer that names its rack is sent to a replica in it, and reads there what is committed (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.brokers.inprocess import broker_thread
from klammtest.requests import batch, create_topic, fetch_fields, metadata, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

RACKS = {0: "a", 1: "b", 2: "c"}


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
            }
            broker = stack.enter_context(broker_thread(folder, tree, keys))
            found[number] = f"127.0.0.1:{broker.advertised[0].port}"
        yield found


def read(address: str, topic: str, offset: int = 0, rack: str = "") -> Any:
    with WireClient(address) as wire:
        fields = fetch_fields({(topic, 0): offset}, version=12, rack_id=rack, max_wait_ms=100)
        return wire.call(ApiKey.FETCH, 12, **fields).responses[0].partitions[0]


def test_a_consumer_reads_in_its_rack(brokers: dict[int, str]) -> None:
    with WireClient(brokers[0]) as wire:
        controller = metadata(wire, []).controller_id
    with WireClient(brokers[controller]) as wire:
        assert create_topic(wire, "near", replication_factor=3).error_code is ErrorCode.none
        leader = metadata(wire, ["near"]).topics[0].partitions[0].leader_id
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
