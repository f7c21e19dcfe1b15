"""Groups in a cluster of three brokers: who coordinates them, and what happens when a coordinator goes and comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer as ForeignConsumer
from confluent_kafka import TopicPartition as ForeignPartition

from klamm import Consumer, Producer
from klamm.core.cluster.tree import paths
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klamm.plugins.offsets.coordination import CoordinationOffsetStore
from klamm.plugins.offsets.topic_config import CoordinationOffsetStoreConfig
from klammtest.broker import pause_past_session
from klammtest.brokers.three import GROUPS, ThreeBrokers, three_brokers
from klammtest.clients.grouping import (
    NOT_YET,
    commit_fields,
    coordination_error,
    find_coordinator,
    heartbeat,
    join,
    stored,
    sync,
)
from klammtest.requests import batch, metadata, produce
from klammtest.waiting import PATIENCE_S, eventually, within
from klammtest.wire import WireClient

BOTH = pytest.mark.parametrize("plugin", ["coordination", "topic"])


def stable_member(wire: WireClient, group: str) -> Any:
    member = join(wire, group)
    if member.error_code is ErrorCode.member_id_required:
        member = join(wire, group, member_id=member.member_id)
    assert member.error_code is ErrorCode.none
    assert sync(wire, group, member).error_code is ErrorCode.none
    return member


def commit_code(wire: WireClient, group: str, offset: int, member: Any = None) -> ErrorCode:
    answer = wire.call(ApiKey.OFFSET_COMMIT, 8, **commit_fields(group, {("t", 0): offset}, member, 8))
    code = answer.topics[0].partitions[0].error_code
    assert isinstance(code, ErrorCode)
    return code


def offset_of(wire: WireClient, group: str) -> int:
    return int(stored(wire, group, "t", (0,))[0].committed_offset)


def listed(wire: WireClient) -> set[str]:
    answer = wire.call(ApiKey.LIST_GROUPS, 4)
    assert answer.error_code is ErrorCode.none
    return {found.group_id for found in answer.groups}


@BOTH
def test_each_group_is_served_by_one_broker(tmp_path: Path, plugin: str) -> None:
    with three_brokers(tmp_path, plugin) as cluster:
        cluster.create_topic("t")
        with cluster.wire(1) as wire:
            first = coordination_error(wire, "early")  # a fast broker that leads the partition has loaded it already
            assert first in NOT_YET | {ErrorCode.unknown_member_id}, "the topic is made at the first request"
            topics = lambda: {t.name for t in metadata(wire, None).topics}  # noqa: E731
            eventually(lambda: "__consumer_offsets" in topics(), "broker 1 knows the topic")
        named = []
        for number in range(3):
            with cluster.wire(number) as wire:

                def answers(wire: WireClient = wire) -> list[int]:
                    rows = wire.call(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=GROUPS).coordinators
                    return [row.node_id for row in rows]

                eventually(lambda answers=answers: -1 not in answers(), "all partitions have leaders")
                named.append(answers())
        assert named[0] == named[1] == named[2]
        assert set(named[0]) == {0, 1, 2}
        places = {group: cluster.coordinator(group) for group in GROUPS}
        for group, place in places.items():
            for number in range(3):
                with cluster.wire(number) as wire:
                    right = ErrorCode.none if number == place else ErrorCode.not_coordinator
                    assert commit_code(wire, group, 7) is right
                    described = wire.call(
                        ApiKey.DESCRIBE_GROUPS, 5, groups=(group,), include_authorized_operations=False
                    )  # fmt: skip
                    assert described.groups[0].error_code is right
        for number in range(3):
            with cluster.wire(number) as wire:
                assert listed(wire) == {group for group, place in places.items() if place == number}
        group, place = next(iter(places.items()))
        for number in range(3):
            with cluster.wire(number) as wire:
                code = wire.call(ApiKey.DELETE_GROUPS, 2, groups_names=(group,)).results[0].error_code
                if number != place:
                    assert code is ErrorCode.not_coordinator or number > place, (number, place)
        with cluster.wire(place) as wire:
            assert group not in listed(wire)


@BOTH
def test_a_killed_coordinator_of_one_replica_comes_back_with_its_groups(tmp_path: Path, plugin: str) -> None:
    """With one replica nobody can coordinate in between; the members stay members with either store."""
    with three_brokers(tmp_path, plugin, replicas=1) as cluster:
        cluster.create_topic("t")
        group = cluster.group_of(2)
        with cluster.wire(2) as wire:
            member = stable_member(wire, group)
            assert commit_code(wire, group, 41, member) is ErrorCode.none
        cluster.brokers[2].kill()
        with cluster.wire(1) as wire:
            gone = lambda: find_coordinator(wire, group).error_code is ErrorCode.coordinator_not_available  # noqa: E731
            eventually(gone, "the group has no coordinator")
            assert commit_code(wire, group, 42, member) is ErrorCode.not_coordinator
        cluster.brokers[2].start()
        assert cluster.coordinator(group, asked=1) == 2
        with cluster.wire(2) as wire:
            assert offset_of(wire, group) == 41
            assert heartbeat(wire, group, member) is ErrorCode.none
            assert commit_code(wire, group, 43, member) is ErrorCode.none
            assert offset_of(wire, group) == 43


@BOTH
def test_a_killed_coordinator_is_succeeded(tmp_path: Path, plugin: str) -> None:
    """With three replicas another broker has the group's offsets and its members, with either store."""
    with three_brokers(tmp_path, plugin) as cluster:
        cluster.create_topic("t", replicas=3)
        group = cluster.group_of(2)
        with cluster.wire(2) as wire:
            member = stable_member(wire, group)
            assert commit_code(wire, group, 41, member) is ErrorCode.none
        cluster.brokers[2].kill()
        successor = cluster.coordinator(group, asked=1, besides=2)
        with cluster.wire(successor) as wire:
            assert offset_of(wire, group) == 41
            assert heartbeat(wire, group, member) is ErrorCode.none
            assert commit_code(wire, group, 42, member) is ErrorCode.none
        cluster.brokers[2].start()
        eventually(lambda: offset_at_present(cluster, group) == 42, "the offset is served")


def offset_at_present(cluster: ThreeBrokers, group: str) -> int | None:
    """Returns the offset at the present coordinator; None if it moves meanwhile."""
    with cluster.wire(cluster.coordinator(group, asked=1)) as wire:
        found = stored(wire, group, "t", (0,)).get(0)
        return None if found is None or found.error_code is not ErrorCode.none else found.committed_offset


@BOTH
def test_a_deposed_coordinators_commits_take_no_effect(tmp_path: Path, plugin: str) -> None:
    """It is stopped past its session while commits wait in its socket; the group goes on at its successor."""
    with three_brokers(tmp_path, plugin) as cluster:
        cluster.create_topic("t", replicas=3)
        group = cluster.group_of(2)
        with cluster.wire(2) as late, cluster.coordination() as tree:
            old = stable_member(late, group)
            assert commit_code(late, group, 100, old) is ErrorCode.none
            pause_past_session(cluster.brokers[2], 2, tree)
            for who in (old, None):
                fields = commit_fields(group, {("t", 0): 120}, who, 8)
                late.send(ApiKey.OFFSET_COMMIT, 8, **fields)
            successor = cluster.coordinator(group, asked=1, besides=2)
            with cluster.wire(successor) as wire:
                assert heartbeat(wire, group, old) is ErrorCode.none
                assert commit_code(wire, group, 150, old) is ErrorCode.none
            cluster.brokers[2].resume()
            for _ in range(2):
                frame = late.receive_frame()
                if frame is None:
                    break  # the broker has closed the connection: it did not know whether it was registered
            eventually(lambda: "has rejoined" in cluster.brokers[2].log(), "broker 2 is back")
            assert offset_at_present(cluster, group) == 150


def test_a_foreign_consumer_goes_on_at_the_next_coordinator(tmp_path: Path) -> None:
    with three_brokers(tmp_path, "topic") as cluster:
        cluster.create_topic("t", 1, replicas=3)
        (leader,) = [p.leader_id for p in partitions_of(cluster, "t")]
        place = next(number for number in range(3) if number != leader)
        group = cluster.group_of(place)
        consumer = ForeignConsumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
                "log_level": 0,
            }
        )
        assigned: list[int] = []
        consumer.subscribe(["t"], on_assign=lambda _, partitions: assigned.append(len(partitions)))
        with cluster.wire(leader) as wire:
            produce(wire, "t", batch(b"before"))
        read = values(consumer)
        assert next(read) == b"before"
        consumer.commit(asynchronous=False)
        cluster.brokers[place].kill()
        with cluster.wire(leader) as wire:
            produce(wire, "t", batch(b"meanwhile"))
        assert next(read) == b"meanwhile", "a member reads on without its coordinator"
        cluster.coordinator(group, asked=leader, besides=place)
        eventually(lambda: committed_by(consumer), "the consumer commits again")
        assert [p.offset for p in consumer.committed([ForeignPartition("t", 0)], timeout=60)] == [2]
        assert assigned == [1], "nobody had to join again"
        consumer.close()


def committed_by(consumer: Any) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except Exception:
        return False
    return True


def values(consumer: Any) -> Iterator[bytes]:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            yield message.value()
    raise AssertionError("no record came")


def partitions_of(cluster: ThreeBrokers, topic: str) -> list[Any]:
    with cluster.wire(0) as wire:
        return list(metadata(wire, [topic]).topics[0].partitions)


def test_every_coordinator_forgets_a_deleted_topic(tmp_path: Path) -> None:
    with three_brokers(tmp_path, "topic") as cluster:
        cluster.create_topic("t")
        cluster.create_topic("kept")
        places = {group: cluster.coordinator(group) for group in GROUPS}
        for group, place in places.items():
            with cluster.wire(place) as wire:
                assert commit_code(wire, group, 9) is ErrorCode.none
        with cluster.wire(0) as wire:
            wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=("t",), timeout=timedelta(seconds=20))
        for number in range(3):
            with cluster.wire(number) as wire:
                eventually(lambda wire=wire: listed(wire) == set(), f"broker {number} has no offset of the topic")


def test_offsets_of_the_release_before_are_found(tmp_path: Path) -> None:
    """With the store `coordination` they are in the tree, and nobody has made `__consumer_offsets` yet."""
    with three_brokers(tmp_path, "coordination") as cluster:
        cluster.create_topic("t")
        with cluster.coordination() as tree:
            store = CoordinationOffsetStore(CoordinationOffsetStoreConfig(), tree)
            store.commit("old", {TopicPartition("t", 0): CommittedOffset(1234)})
            assert tree.exists(paths.topic("__consumer_offsets")) is None
        seen = []
        for number in range(3):
            with cluster.wire(number) as wire:
                seen.append(listed(wire))
        assert sorted(seen, key=len) == [set(), set(), {"old"}], "the controller lists it"
        place = cluster.coordinator("old", asked=2)
        with cluster.wire(place) as wire:
            assert offset_of(wire, "old") == 1234
            assert listed(wire) == {"old"}


@BOTH
def test_a_registry_group_reads_on_whichever_broker_dies(tmp_path: Path, plugin: str) -> None:
    """Its members need no coordinator; their offsets are in the coordination, or in the replicated topic."""
    with three_brokers(tmp_path, plugin) as cluster:
        cluster.create_topic("t", 3, replicas=3)
        settings = tmp_path / "consumer.yaml"
        tree = {"plugin": "embedded", "path": str(cluster.tree), "session.timeout.ms": 10_000}
        keys = {"bootstrap.servers": cluster.bootstrap}
        reader = {**keys, "group.id": "readers", "group.protocol": "registry", "auto.offset.reset": "earliest"}
        sections = {"coordination": tree, "offsets": {"plugin": plugin}, "producer": keys, "consumer": reader}
        settings.write_text(yaml.safe_dump(sections))
        cluster.coordinator("readers")  # creates `__consumer_offsets` while all brokers are live
        sent, seen = 0, list[bytes]()
        for victim in range(3):
            with Producer(settings) as producer:
                for _ in range(30):
                    producer.send("t", b"%d" % sent, partition=sent % 3)
                    sent += 1
            with Consumer(settings, topics=["t"]) as consumer:
                deadline = time.monotonic() + 120
                while len(seen) < sent - 10 and time.monotonic() < deadline:
                    seen += [record.value for record in consumer.poll(0.5)]
                cluster.brokers[victim].kill()
                while len(seen) < sent and time.monotonic() < deadline:
                    seen += [record.value for record in consumer.poll(0.5)]
                consumer.commit()
            cluster.brokers[victim].start()
            assert within(lambda: out_of_sync(cluster) == [], PATIENCE_S), out_of_sync(cluster)
        assert sorted(map(int, seen)) == list(range(sent)), "each record once"


def out_of_sync(cluster: ThreeBrokers) -> list[Any]:
    with cluster.wire(0) as wire:
        topics = metadata(wire, None).topics
    return [(topic.name, p) for topic in topics for p in topic.partitions if len(p.isr_nodes) != 3]
