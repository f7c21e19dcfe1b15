"""Partitions move between three real brokers while clients write: nothing is lost, and the old directories go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.core.client.cluster_admin import ClusterAdmin
from klamm.core.client.cluster_client import BROKER_RESOURCE, LATEST, ClusterClient, NewTopic
from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.logs import codec_table
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch, metadata
from klammtest.waiting import eventually
from klammtest.wire import WireClient

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("moved")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 10_000}
    keys = {
        "log.segment.delete.delay.ms": 0,
        "leader.imbalance.check.interval.seconds": 1,
        "leader.imbalance.per.broker.percentage": 0,
    }
    with running_cluster(folder, tree, broker=keys) as running:
        yield running
        for broker in running.brokers:
            assert "Traceback" not in broker.log()


@pytest.fixture
def client(brokers: BrokerCluster) -> Iterator[ClusterClient]:
    with ClusterClient(brokers.bootstrap, codecs=codec_table()) as made:
        yield made


def new_topic(brokers: BrokerCluster, client: ClusterClient, name: str, factor: int, **configs: str) -> TopicPartition:
    """Creates a topic of one partition; returns when every broker knows it."""
    client.create_topics({name: NewTopic(1, factor, {k.replace("_", "."): v for k, v in configs.items()})})
    for broker in brokers.brokers:
        with WireClient(broker.bootstrap) as wire:
            eventually(lambda wire=wire: metadata(wire, [name]).topics[0].partitions, "the topic", LIMIT_S)
    return TopicPartition(name, 0)


@contextmanager
def throttled(client: ClusterClient, broker_id: int) -> Iterator[None]:
    """While the block runs, this broker's throttled replicas that are out of sync get one answer of records."""

    def alter(rate: str | None) -> None:
        client.alter_configs(str(broker_id), {"follower.replication.throttled.rate": rate}, resource=BROKER_RESOURCE)

    alter("1000")
    try:
        yield
    finally:
        alter(None)


def replicas(client: ClusterClient, tp: TopicPartition) -> tuple[int, ...]:
    return client.metadata([tp.topic]).topics[tp.topic].partitions[tp.partition].replicas


def await_replicas(client: ClusterClient, tp: TopicPartition, wanted: tuple[int, ...]) -> None:
    """Waits until the brokers say so: one may be behind the controller for a moment."""
    eventually(lambda: replicas(client, tp) == wanted, f"the replicas {wanted}", LIMIT_S)


def done(client: ClusterClient, tp: TopicPartition) -> bool:
    return tp not in ClusterAdmin(client).reassignments([tp])


@contextmanager
def writing(brokers: BrokerCluster, tp: TopicPartition) -> Iterator[list[int]]:
    """Appends with acks=all from a thread while the block runs; yields the offsets that were acknowledged."""
    offsets: list[int] = []
    failures: list[Exception] = []
    stop = threading.Event()

    def write() -> None:
        with ClusterClient(brokers.bootstrap, codecs=codec_table()) as own:
            try:
                while not stop.is_set():
                    offsets.append(own.produce({tp: batch(bytes(100))})[tp].base_offset)
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        eventually(lambda: len(offsets) > 20 or failures, "the first writes", LIMIT_S)
        yield offsets
        before = len(offsets)
        eventually(lambda: len(offsets) > before + 20 or failures, "writes after the moves", LIMIT_S)
    finally:
        stop.set()
        thread.join(LIMIT_S)
    assert not failures


def directories(brokers: BrokerCluster, tp: TopicPartition) -> dict[int, list[Path]]:
    found = {number: sorted(broker.log_dir.glob(f"{tp}*")) for number, broker in enumerate(brokers.brokers)}
    return {number: paths for number, paths in found.items() if paths}


def test_a_partition_moves_round_all_brokers_under_writes(brokers: BrokerCluster, client: ClusterClient) -> None:
    tp = new_topic(brokers, client, "round", 1)
    admin = ClusterAdmin(client)
    (first,) = replicas(client, tp)
    with writing(brokers, tp) as offsets:
        for step in (1, 2, 3):
            target = ((first + step) % 3,)
            assert admin.alter_reassignments({tp: target}) == {}
            eventually(lambda: done(client, tp), "the end of the move", LIMIT_S)
            await_replicas(client, tp, target)
    assert offsets == sorted(set(offsets)), "no offset is acknowledged twice"
    end, _ = client.list_offsets({tp: LATEST})[tp]
    assert end > offsets[-1]
    eventually(lambda: directories(brokers, tp).keys() == {first}, "the removal of the other directories", LIMIT_S)


def test_a_factor_grows_and_shrinks_under_writes(brokers: BrokerCluster, client: ClusterClient) -> None:
    tp = new_topic(brokers, client, "grown", 1, min_insync_replicas="2")
    admin = ClusterAdmin(client)
    with writing(brokers, tp):  # min.insync.replicas counts once the partition has as many replicas
        assert admin.alter_reassignments({tp: (0, 1, 2)}) == {}
        eventually(lambda: done(client, tp), "three replicas", LIMIT_S)
        assert brokers.state(tp).isr == (0, 1, 2)  # type: ignore[union-attr]
        assert admin.alter_reassignments({tp: (2, 1)}) == {}
        eventually(lambda: done(client, tp), "two replicas", LIMIT_S)
    await_replicas(client, tp, (2, 1))


def test_idle_partitions_move_too(brokers: BrokerCluster, client: ClusterClient) -> None:
    """A follower may fetch before the leader has read that it is one; no append makes it fetch again."""
    client.create_topics({"idle": NewTopic(30, 1)})
    admin = ClusterAdmin(client)
    every = [TopicPartition("idle", number) for number in range(30)]
    for step in (0, 1, 2):
        targets: dict[TopicPartition, tuple[int, ...] | None] = {tp: ((tp.partition + step) % 3,) for tp in every}
        assert admin.alter_reassignments(targets) == {}
        eventually(lambda: not admin.reassignments(every), "the end of the moves", LIMIT_S)


def test_a_move_is_cancelled(brokers: BrokerCluster, client: ClusterClient) -> None:
    tp = new_topic(brokers, client, "cancelled", 1, follower_replication_throttled_replicas="*")
    admin = ClusterAdmin(client)
    (first,) = replicas(client, tp)
    target = (first + 1) % 3
    for _ in range(30):
        client.produce({tp: batch(bytes(100_000))})
    with throttled(client, target):
        assert admin.alter_reassignments({tp: (target,)}) == {}
        found = admin.reassignments([tp])[tp]
        assert (found.target, found.adding, found.removing) == ((target,), (target,), (first,))
        client.produce({tp: batch(b"x")})  # the added replica is not waited for
        assert admin.alter_reassignments({tp: None}) == {}
        assert done(client, tp)
    await_replicas(client, tp, (first,))
    eventually(lambda: directories(brokers, tp).keys() == {first}, "the removal of the new replica", LIMIT_S)


def test_a_target_that_is_killed_completes_the_move_when_it_is_back(
    brokers: BrokerCluster, client: ClusterClient
) -> None:
    tp = new_topic(brokers, client, "back", 1, follower_replication_throttled_replicas="*")
    (first,) = replicas(client, tp)
    target = next(number for number in brokers.ids if number not in (first, brokers.controller()))
    for _ in range(30):
        client.produce({tp: batch(bytes(100_000))})
    with throttled(client, target):
        assert ClusterAdmin(client).alter_reassignments({tp: (target,)}) == {}
        eventually(lambda: directories(brokers, tp).keys() == {first, target}, "the new replica", LIMIT_S)
        brokers.brokers[target].kill()
        client.produce({tp: batch(b"x")})
        assert not done(client, tp)
        brokers.brokers[target].start()
        assert not done(client, tp)
    eventually(lambda: done(client, tp), "the end of the move", LIMIT_S)
    await_replicas(client, tp, (target,))
    assert client.list_offsets({tp: LATEST})[tp][0] == 31


def test_a_dead_broker_gets_no_replicas(brokers: BrokerCluster, client: ClusterClient) -> None:
    tp = new_topic(brokers, client, "refused", 1)
    (error,) = ClusterAdmin(client).alter_reassignments({tp: (7,)}).values()
    assert error.code is ErrorCode.invalid_replica_assignment
    assert "broker 7 cannot be added: not live" in error.words


def test_preferred_leaders_lead_again_by_themselves(brokers: BrokerCluster, client: ClusterClient) -> None:
    tp = new_topic(brokers, client, "preferred", 3)
    before = replicas(client, tp)
    order = (*before[1:], before[0])
    assert ClusterAdmin(client).alter_reassignments({tp: order}) == {}

    def leader() -> int:
        return client.metadata([tp.topic]).topics[tp.topic].partitions[0].leader

    eventually(lambda: leader() == order[0], "the preferred leader", LIMIT_S)


def test_a_throttle_holds_back_what_catches_up_and_nothing_else(brokers: BrokerCluster, client: ClusterClient) -> None:
    tp = new_topic(brokers, client, "throttled", 2, follower_replication_throttled_replicas="*")
    admin = ClusterAdmin(client)
    (third,) = set(brokers.ids) - set(replicas(client, tp))
    for _ in range(60):
        client.produce({tp: batch(bytes(100_000))})
    with throttled(client, third):
        assert admin.alter_reassignments({tp: (*replicas(client, tp), third)}) == {}
        eventually(lambda: admin.log_directory(third, [tp]).sizes.get(tp, 0) > 0, "the first records", LIMIT_S)
        for _ in range(20):
            client.produce({tp: batch(b"x")})  # the in-sync follower is not held back
        assert len(brokers.state(tp).isr) == 2  # type: ignore[union-attr]
        assert not done(client, tp), "6 MB at 1 KB a second"
        assert admin.log_directory(third, [tp]).sizes[tp] < 3_000_000
    eventually(lambda: done(client, tp), "the end of the move", LIMIT_S)
    assert len(brokers.state(tp).isr) == 3  # type: ignore[union-attr]
