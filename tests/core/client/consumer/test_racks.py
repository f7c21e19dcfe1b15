"""A consumer with `client.rack` in a cluster of three real brokers in three racks (KIP-392)."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.inprocess import broker_thread
from klammtest.clients.readers import produce, read
from klammtest.requests import wait_until_all_are_known
from klammtest.waiting import eventually

RACKS = {0: "a", 1: "b", 2: "c"}
NEAR = TopicPartition("near", 0)


def test_a_consumer_reads_in_its_rack_and_from_the_leader_when_that_broker_ends(
    tmp_path: Path, codecs: CodecTable
) -> None:
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db"), "session.timeout.ms": 20_000}
    with ExitStack() as brokers:
        stacks, addresses = {}, {}
        for number, rack in RACKS.items():
            stacks[number] = brokers.enter_context(ExitStack())
            keys = {
                "broker.id": number,
                "broker.rack": rack,
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "log.dirs": str(tmp_path / str(number)),
                "replica.selector.class": "RackAwareReplicaSelector",
            }
            broker = stacks[number].enter_context(broker_thread(tmp_path, tree, keys))
            addresses[number] = f"127.0.0.1:{broker.advertised[0].port}"
        wait_until_all_are_known(addresses.values())
        bootstrap = ",".join(addresses.values())
        with ClusterClient(bootstrap, codecs=codecs) as client:
            client.create_topics({"near": NewTopic(1, 3)})
            leader = client.topic("near").partitions[0].leader
            eventually(lambda: len(client.topic("near").partitions[0].isr) == 3, "all replicas are in sync")
        follower = next(number for number in RACKS if number != leader)
        config = {
            "producer": {"bootstrap.servers": bootstrap},
            "consumer": {
                "bootstrap.servers": bootstrap,
                "auto.offset.reset": "earliest",
                "client.rack": RACKS[follower],
            },
        }
        produce(config, "near", {0: [b"%d" % number for number in range(10)]})
        with klamm.Consumer(config) as consumer:
            consumer.assign([NEAR])
            values = [record.value for record in read(consumer, 10)]
            state = consumer._positions.states[NEAR]
            assert (state.node, state.replica) == (leader, follower)
            produce(config, "near", {0: [b"10"]})
            values += [record.value for record in read(consumer, 1)]
            assert state.replica == follower
            stacks[follower].close()
            produce(config, "near", {0: [b"11"]})
            values += [record.value for record in read(consumer, 1)]
            assert state.source != follower
    assert values == [b"%d" % number for number in range(12)]
