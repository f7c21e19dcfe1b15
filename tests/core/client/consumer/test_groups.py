"""Consumers in groups of both protocols against a real broker: members join, leave and are killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import RequestTimeoutError, UnknownTopicError
from klamm.core.errors import BrokerError, ErrorCode, KlammError
from klamm.core.groups.membership.member import LostOwnershipError
from klamm.core.groups.membership.topic_watch import ATTEMPT_S, TopicWatch
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klamm.testing import waiting
from klammtest.broker import RunningBroker, running_broker
from klammtest.clients.readers import Reader, client_config, produce, read
from klammtest.guarantees import guarantee
from klammtest.waiting import eventually

NUMBER = itertools.count()
COUNT = 6
SESSION_MS = 10_000
"""In a crowd a member may get no processor for seconds; nobody fails by that."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    coordination = {"plugin": "embedded", "path": "./coordination.db", "session.timeout.ms": SESSION_MS}
    limits = {"group.min.session.timeout.ms": 1_000}
    with running_broker(tmp_path_factory.mktemp("groups"), coordination=coordination, broker=limits) as running:
        yield running


@pytest.fixture
def topic(client: ClusterClient) -> str:
    name = f"shared-{next(NUMBER)}"
    client.create_topics({name: NewTopic(COUNT)})
    return name


def group_config(broker: RunningBroker, protocol: str, session_ms: int = SESSION_MS, **more: Any) -> dict[str, Any]:
    config = client_config(
        broker,
        group_id=f"group-{next(NUMBER)}",
        group_protocol=protocol,
        heartbeat_interval_ms=100,
        session_timeout_ms=session_ms,
        **more,
    )
    key = "zookeeper.session.timeout.ms" if config["coordination"]["plugin"] == "zookeeper" else "session.timeout.ms"
    config["coordination"][key] = session_ms
    return config


def some(count: int, tag: str) -> dict[int, list[bytes]]:
    return {n: [f"{tag}-{i}".encode() for i in range(count)] for n in range(COUNT)}


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_each_record_once_while_members_join_and_leave(broker: RunningBroker, topic: str, protocol: str) -> None:
    config = group_config(broker, protocol)
    readers = [Reader(klamm.Consumer(config, topics=[topic]), dwell_s=0.02)]
    for turn in range(3):
        produce(config, topic, some(50, f"turn{turn}"))
        readers.append(Reader(klamm.Consumer(config, topics=[topic]), dwell_s=0.02))
        eventually(lambda: all(r.consumer.assignment() for r in readers), "each has a share")
    eventually(lambda: sum(len(r.consumer.assignment()) for r in readers) == COUNT, "all partitions are owned")
    readers[0].stop()
    produce(config, topic, some(50, "last"))
    eventually(lambda: sum(len(r.seen) for r in readers) >= COUNT * 200, "everything is read")
    for reader in readers[1:]:
        reader.stop()
    times = Counter(record for reader in readers for record in reader.seen)
    assert len(times) == COUNT * 200
    assert set(times.values()) == {1}, "nobody failed, so nothing is read twice"
    with klamm.Consumer(config) as outside:
        outside.assign([TopicPartition(topic, n) for n in range(COUNT)])
        assert {c.offset for c in outside.committed(outside.assignment()).values()} == {200}


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_a_revocation_waits_for_what_the_application_has_in_hand(
    broker: RunningBroker, topic: str, protocol: str
) -> None:
    config = group_config(broker, protocol)
    produce(config, topic, some(1, "a"))
    with klamm.Consumer(config, topics=[topic]) as first:
        held = read(first, COUNT)
        second = Reader(klamm.Consumer(config, topics=[topic]))
        time.sleep(0.5)
        assert second.seen == [], "still in the first one's hands"
        assert len(first.assignment()) == COUNT
        first.poll(0)
        eventually(lambda: len(first.assignment()) == COUNT // 2, "let go")
        eventually(lambda: len(second.consumer.assignment()) == COUNT // 2, "taken")
        first.poll(0.3)
        second.stop()
    assert len(held) == COUNT
    assert second.seen == [], "the first committed them before it let go"


class Noting:
    """A listener that commits nothing, notes what it hears, and raises once."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("assigned", len(partitions)))
        raise RuntimeError("planted")

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("revoked", len(partitions)))

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self.heard.append(("lost", len(partitions)))


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_a_listener_hears_of_rebalances(broker: RunningBroker, topic: str, protocol: str) -> None:
    noting = Noting()
    with klamm.Consumer(group_config(broker, protocol), topics=[topic], listener=noting) as consumer:
        eventually(lambda: len(consumer.assignment()) == COUNT, "assigned")
        with pytest.raises(KlammError, match="the listener's on_assigned raised RuntimeError"):
            consumer.poll(60.0)
        consumer.poll(0)
    assert noting.heard == [("assigned", COUNT), ("revoked", COUNT)]


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_a_commit_from_a_lost_owner_is_refused(broker: RunningBroker, topic: str, protocol: str) -> None:
    config = group_config(broker, protocol, enable_auto_commit=False)
    produce(config, topic, some(1, "a"))
    with klamm.Consumer(config, topics=[topic]) as first:
        read(first, COUNT)
        mine = dict.fromkeys(first.assignment(), 1)
        second = Reader(klamm.Consumer(config, topics=[topic]))

        def shared() -> bool:
            first.poll(0.05)
            return len(first.assignment()) == COUNT // 2 and len(second.consumer.assignment()) == COUNT // 2

        eventually(shared, "each has half")
        with pytest.raises(LostOwnershipError):
            first.commit(mine)
        assert first.committed(mine) == {}, "all or none"
        first.commit(dict.fromkeys(first.assignment(), 1))
        second.stop()


def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader looks at its topics when it assigns them, and never again."""
    monkeypatch.setattr(TopicWatch, "changed", lambda _: False)
    monkeypatch.setattr(TopicWatch, "wait_s", lambda _, longest_s: longest_s)
    monkeypatch.setattr(waiting, "PATIENCE_S", 5.0)


MORE = COUNT + 3


def owned(*consumers: klamm.Consumer) -> int:
    return sum(len(consumer.assignment()) for consumer in consumers)


@contextmanager
def reading(*consumers: klamm.Consumer) -> Iterator[list[Reader]]:
    """A reader for each, stopped at the end in any case."""
    with ExitStack() as stack:
        started = [Reader(consumer) for consumer in consumers]
        for reader in started:
            stack.callback(reader.stop)
        yield started


def add_partitions(broker: RunningBroker, client: ClusterClient, topic: str, protocol: str) -> None:
    """To a topic that two members read."""
    config = group_config(broker, protocol, metadata_max_age_ms=100)
    with reading(*(klamm.Consumer(config, topics=[topic]) for _ in range(2))) as two:
        eventually(lambda: all(owned(r.consumer) == COUNT // 2 for r in two), "both have a share")
        client.create_partitions(topic, MORE)
        produce(config, topic, {n: [b"x"] * 10 for n in range(MORE)})
        eventually(lambda: sum(len(r.seen) for r in two) >= MORE * 10, "the new partitions are read too")
    times = Counter(record for reader in two for record in reader.seen)
    assert times == {(TopicPartition(topic, n), i): 1 for n in range(MORE) for i in range(10)}


@guarantee("B3", "a classic group reads partitions that are added to its topics", plant=unwatched)
def test_new_partitions_are_consumed_by_a_classic_group(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    add_partitions(broker, client, topic, "classic")


def test_new_partitions_are_consumed_by_a_registry_group(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    add_partitions(broker, client, topic, "registry")


def create_afterwards(broker: RunningBroker, client: ClusterClient, topic: str, protocol: str) -> None:
    """One of two topics is deleted after the subscription, and created again once it is assigned no more."""
    config = group_config(broker, protocol, metadata_max_age_ms=100)
    late = f"{topic}-late"
    client.create_topics({late: NewTopic(1)})
    with klamm.Consumer(config, topics=[topic, late]) as consumer:
        records: set[tuple[str, int, int]] = set()

        def poll() -> None:
            with suppress(UnknownTopicError):  # the topic was deleted
                records.update((r.topic, r.partition, r.offset) for r in consumer.poll(0.05))

        def holds(count: int) -> bool:
            poll()
            return owned(consumer) == count

        eventually(lambda: holds(COUNT + 1), "both topics are assigned")
        client.delete_topics([late])
        eventually(lambda: holds(COUNT), "the deleted topic is assigned no more")
        client.create_topics({late: NewTopic(2)})
        produce(config, late, {n: [b"new"] * 10 for n in range(2)})
        eventually(lambda: poll() or len(records) >= 20, "the topic is read")
    assert records == {(late, n, i) for n in range(2) for i in range(10)}


@guarantee("B3", "and a topic that was not there when they were assigned", plant=unwatched)
def test_a_topic_created_after_the_subscription_is_consumed_by_a_classic_group(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    create_afterwards(broker, client, topic, "classic")


def test_a_topic_created_after_the_subscription_is_consumed_by_a_registry_group(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    create_afterwards(broker, client, topic, "registry")


@guarantee("B3", "also after its leader has left", plant=unwatched)
def test_who_leads_next_watches_the_topics(broker: RunningBroker, topic: str, client: ClusterClient) -> None:
    config = group_config(broker, "classic", metadata_max_age_ms=100)
    with ExitStack() as stack:
        (first,) = stack.enter_context(reading(klamm.Consumer(config, topics=[topic])))
        eventually(lambda: owned(first.consumer) == COUNT, "it leads")
        (second,) = stack.enter_context(reading(klamm.Consumer(config, topics=[topic])))
        eventually(lambda: owned(second.consumer) == COUNT // 2, "it follows")
        first.stop()
        eventually(lambda: owned(second.consumer) == COUNT, "it is alone")
        client.create_partitions(topic, MORE)
        eventually(lambda: owned(second.consumer) == MORE, "it has the new partitions")


def test_a_leader_outlives_looks_that_fail(
    broker: RunningBroker, topic: str, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = group_config(broker, "classic", metadata_max_age_ms=100)
    metadata, failed = ClusterClient.metadata, list[bool]()

    def unsure(self: ClusterClient, *args: Any, **more: Any) -> Any:
        if more.get("timeout_s") == ATTEMPT_S and len(failed) < 5:
            failed.append(True)
            raise RequestTimeoutError("planted")
        return metadata(self, *args, **more)

    with klamm.Consumer(config, topics=[topic]) as consumer:
        eventually(lambda: owned(consumer) == COUNT, "it leads")
        assert consumer._member is not None
        before = consumer._member.member_id
        monkeypatch.setattr(ClusterClient, "metadata", unsure)
        eventually(lambda: len(failed) == 5, "looks have failed")
        client.create_partitions(topic, MORE)
        eventually(lambda: owned(consumer) == MORE, "it has the new partitions")
        consumer.poll(0)
        assert consumer._member.member_id == before


@guarantee("B3", "also those of topics that only another client's members subscribe to", plant=unwatched)
@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")  # kafka-python's own
def test_a_leader_watches_the_topics_of_foreign_members(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    """The topic is not there when the partitions are assigned."""
    from kafka import KafkaConsumer

    config = group_config(broker, "classic", metadata_max_age_ms=100)
    group, late = config["consumer"]["group.id"], f"{topic}-late"
    with ExitStack() as stack:
        (ours,) = stack.enter_context(reading(klamm.Consumer(config, topics=[topic])))
        eventually(lambda: owned(ours.consumer) == COUNT, "it leads")
        foreign = KafkaConsumer(topic, late, bootstrap_servers=broker.bootstrap, group_id=group,
                                session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)  # fmt: skip
        stack.callback(foreign.close)

        def theirs(count: int) -> bool:
            foreign.poll(50)
            return owned(ours.consumer) == COUNT // 2 and len(foreign.assignment()) == COUNT // 2 + count

        eventually(lambda: theirs(0), "they share the topic that is there")
        client.create_topics({late: NewTopic(2)})
        eventually(lambda: theirs(2), "the late topic is the foreign member's")
        client.create_partitions(late, 5)
        eventually(lambda: theirs(5), "and its new partitions")


def test_old_generations_and_outsiders_are_refused_by_the_classic_protocol(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    config = group_config(broker, "classic")
    group = config["consumer"]["group.id"]
    offsets = {TopicPartition(topic, 0): CommittedOffset(1)}
    with klamm.Consumer(config, topics=[topic]) as consumer:
        eventually(lambda: len(consumer.assignment()) == COUNT, "joined")
        member = consumer._member
        assert member is not None
        for member_id, generation, code in [
            (member.member_id, member.generation - 1, ErrorCode.illegal_generation),
            ("ghost", member.generation, ErrorCode.unknown_member_id),
            ("", -1, ErrorCode.unknown_member_id),
        ]:
            with pytest.raises(BrokerError) as raised:
                client.commit_offsets(group, offsets, member_id=member_id, generation=generation)
            assert raised.value.code is code


def test_members_of_a_group_use_one_protocol_at_a_time(
    broker: RunningBroker, topic: str, client: ClusterClient
) -> None:
    registry = group_config(broker, "registry")
    group = registry["consumer"]["group.id"]
    classic = {**registry, "consumer": {**registry["consumer"], "group.protocol": "classic"}}
    with klamm.Consumer(registry, topics=[topic]):
        with klamm.Consumer(classic, topics=[topic]) as refused:
            with pytest.raises(BrokerError) as raised:
                read(refused, 1)
            assert raised.value.code is ErrorCode.inconsistent_group_protocol
        with pytest.raises(BrokerError) as raised:
            client.commit_offsets(group, {TopicPartition(topic, 0): CommittedOffset(1)})
        assert raised.value.code is ErrorCode.inconsistent_group_protocol
    with klamm.Consumer(classic, topics=[topic]) as consumer:
        eventually(
            lambda: len(consumer.assignment()) == COUNT, "joined by the other protocol, since the group is empty"
        )
        with pytest.raises(BrokerError, match="has members that use the classic protocol"):
            klamm.Consumer(registry, topics=[topic])

    def back() -> bool:
        try:
            klamm.Consumer(registry, topics=[topic]).close()
        except BrokerError:
            return False
        return True

    eventually(back, "the registry protocol is accepted once the broker has released the lock")


def test_both_protocols_share_one_offset_store(broker: RunningBroker, topic: str) -> None:
    registry = group_config(broker, "registry")
    classic = {**registry, "consumer": {**registry["consumer"], "group.protocol": "classic"}}
    produce(registry, topic, some(2, "a"))
    with klamm.Consumer(registry, topics=[topic]) as consumer:
        read(consumer, 2 * COUNT)
    produce(registry, topic, {0: [b"new"]})
    with klamm.Consumer(classic, topics=[topic]) as consumer:
        assert [r.value for r in read(consumer, 1)] == [b"new"]


@pytest.mark.filterwarnings("ignore:.*_text is deprecated:DeprecationWarning")  # kafka-python's own
def test_a_classic_group_is_shared_with_kafka_python_and_librdkafka(broker: RunningBroker, topic: str) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer
    from kafka import KafkaConsumer

    config = group_config(broker, "classic")
    group = config["consumer"]["group.id"]
    ours = Reader(klamm.Consumer(config, topics=[topic]))
    seen: set[tuple[int, int]] = set()
    python = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest",
                           session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)  # fmt: skip
    native = ConfluentConsumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": "range",
        }
    )
    native.subscribe([topic])

    def turn() -> None:
        for records in python.poll(50).values():
            seen.update((r.partition, r.offset) for r in records)
        for message in native.consume(50, 0.05):
            assert message.error() is None, message.error()
            seen.add((message.partition(), message.offset()))

    def shared() -> bool:
        turn()
        shares = [len(ours.consumer.assignment()), len(python.assignment()), len(native.assignment())]
        return shares == [2, 2, 2]

    eventually(shared, "three kinds of member share six partitions")
    produce(config, topic, some(20, "a"))

    def all_read() -> bool:
        turn()
        mine = {(p.partition, offset) for p, offset in ours.seen}
        return len(mine | seen) == 20 * COUNT and bool(mine) and bool(seen)

    eventually(all_read, "everything is read by somebody")
    python.close()
    native.close()
    eventually(lambda: len(ours.consumer.assignment()) == COUNT, "the last one has all")
    ours.stop()


PROCESS = """
import json, sys
import klamm
config, topic, path = json.loads(sys.argv[1])
with klamm.Consumer(config, topics=[topic]) as consumer, open(path, "a", buffering=1) as out:
    while True:
        for record in consumer.poll(0.1, 10):
            print(record.partition, record.offset, file=out)
"""


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_kill_9_of_a_member_loses_nothing(broker: RunningBroker, topic: str, protocol: str, tmp_path: Path) -> None:
    kill_a_member(group_config(broker, protocol, 3_000, auto_commit_interval_ms=100), topic, tmp_path)


def test_kill_9_of_a_member_and_of_the_broker_with_zookeeper(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> None:
    coordination = {
        "plugin": "zookeeper",
        "zookeeper.connect": f"{zookeeper_server.connect}/consumers-{next(NUMBER)}",
    }
    topics = {"t": {"partitions": COUNT}}
    with running_broker(tmp_path / "broker", topics=topics, coordination=coordination) as broker:
        config = group_config(broker, "registry", 3_000, auto_commit_interval_ms=100)
        kill_a_member(config, "t", tmp_path)
        reader = Reader(klamm.Consumer(config, topics=["t"]))
        eventually(lambda: len(reader.consumer.assignment()) == COUNT, "owned")
        broker.kill()
        broker.start()
        produce(config, "t", some(10, "c"))
        eventually(lambda: len(reader.seen) == COUNT * 10, "the group has outlived the broker")
        eventually(lambda: len(reader.consumer.assignment()) == COUNT, "it has them all still, or again")
        reader.stop()


def kill_a_member(config: dict[str, Any], topic: str, tmp_path: Path) -> None:
    """Two members read; one is killed; the other reads the rest."""
    written = tmp_path / "victim"
    written.touch()
    survivor = Reader(klamm.Consumer(config, topics=[topic]), dwell_s=0.01)
    with subprocess.Popen([sys.executable, "-c", PROCESS, json.dumps([config, topic, str(written)])]) as victim:
        try:
            eventually(lambda: len(survivor.consumer.assignment()) == COUNT // 2, "two share")
            produce(config, topic, some(100, "a"))
            eventually(lambda: written.read_text().count("\n") > 20, "the victim reads")
        finally:
            victim.kill()
    produce(config, topic, some(100, "b"))

    def read_by(reader: Reader) -> set[tuple[int, int]]:
        return {(p.partition, offset) for p, offset in reader.seen}

    def all_read() -> bool:
        lines = [line.split() for line in written.read_text().splitlines()]
        theirs = {(int(line[0]), int(line[1])) for line in lines if len(line) == 2}
        return read_by(survivor) | theirs == {(p, i) for p in range(COUNT) for i in range(200)}

    eventually(all_read, "nothing is lost")
    eventually(lambda: len(survivor.consumer.assignment()) == COUNT, "the survivor has them all")
    survivor.stop()
