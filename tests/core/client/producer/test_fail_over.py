"""The producer while leaders move and die, against a scripted cluster whose brokers check sequence numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from klamm.core.client.producer import sender
from klamm.core.client.producer.producer import Producer
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.scripted_cluster import ScriptedCluster, Seen, scripted_cluster
from klammtest.waiting import eventually

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster(codecs: CodecTable) -> Iterator[ScriptedCluster]:
    with scripted_cluster({"t": 1, "wide": 4}, 3, codecs) as running:
        yield running


def producer(cluster: ScriptedCluster, **options: Any) -> Producer:
    keys = {key.replace("_", "."): value for key, value in options.items()}
    return Producer({"producer": {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, **keys}})


def stored(cluster: ScriptedCluster, partition: TopicPartition = T0) -> list[bytes | None]:
    return cluster.brokers[2].log(*partition).values


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def sequences(requests: list[Seen]) -> list[int]:
    return [
        BatchHeader.parse(bytes(data.records)).base_sequence
        for one in requests
        for topic in one.message.topic_data
        for data in topic.partition_data
    ]


@pytest.mark.parametrize("version", [3, 9, 10, 12])
def test_every_version_of_produce_is_spoken(cluster: ScriptedCluster, version: int) -> None:
    for broker in cluster.brokers.values():
        broker.versions[ApiKey.PRODUCE] = (3, version)
    cluster.names_leaders = True
    with producer(cluster) as target:
        target.send("t", b"0").result(60)
        cluster.elect(T0, 3)
        assert target.send("t", b"1").result(60).offset == 1
    assert {one.version for one in cluster.asked(ApiKey.PRODUCE)} == {version}


@pytest.mark.parametrize("names_leaders", [False, True], ids=["silent", "KIP-951"])
def test_records_follow_a_leader_that_moves(cluster: ScriptedCluster, names_leaders: bool) -> None:
    cluster.names_leaders = names_leaders
    futures = []
    with producer(cluster, batch_size=1) as target:
        for number in range(200):
            futures.append(target.send("t", b"%d" % number))
            if number % 20 == 10:
                cluster.elect(T0, 1 + number % 3)
        target.flush(60)
        assert [future.result(0).offset for future in futures] == list(range(200))
    assert stored(cluster) == numbers(200)


def test_a_leader_that_an_answer_names_is_sent_to_without_metadata(cluster: ScriptedCluster) -> None:
    cluster.names_leaders = True
    with producer(cluster) as target:
        target.send("t", b"0").result(60)
        cluster.behind = {key: dict(cluster.led) for key in cluster.brokers}  # no metadata tell of the election
        cluster.elect(T0, 3)
        assert target.send("t", b"1").result(60).offset == 1
    assert cluster.asked(ApiKey.PRODUCE, 3)


def test_records_survive_leaders_that_die(cluster: ScriptedCluster) -> None:
    futures = []
    with producer(cluster, batch_size=1) as target:
        for number in range(100):
            futures.append(target.send("t", b"%d" % number))
            if number in (30, 60):
                dead = cluster.led[T0].leader
                cluster.kill(dead)
                cluster.elect(T0, 3 if dead == 1 else 2)
        target.flush(60)
        assert [future.result(0).offset for future in futures] == list(range(100))
    assert stored(cluster) == numbers(100)


def test_a_dead_leader_is_not_asked_after_without_pause(cluster: ScriptedCluster) -> None:
    with producer(cluster) as target:
        target.send("t", b"0").result(60)
        cluster.kill(1)
        before = len(cluster.asked(ApiKey.METADATA))
        future = target.send("t", b"1")
        eventually(lambda: len(cluster.asked(ApiKey.METADATA)) > before + 5, "it looks for another leader")
        assert target._metadata_refresher._in_a_row > 3
        cluster.elect(T0, 2)
        assert future.result(60).offset == 1


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    ],
)
def test_a_retry_keeps_its_sequence_number(cluster: ScriptedCluster, error: ErrorCode) -> None:
    with producer(cluster) as target:
        target.send("t", b"0").result(60)
        cluster.faults[ApiKey.PRODUCE].extend([error] * 3)
        assert target.send("t", b"1").result(60).offset == 1
        assert target.send("t", b"2").result(60).offset == 2
    assert stored(cluster) == numbers(3)
    assert sequences(cluster.asked(ApiKey.PRODUCE)) == [0, 1, 1, 1, 1, 2]


def test_one_partition_that_moves_does_not_hold_up_the_others(cluster: ScriptedCluster) -> None:
    wide = [TopicPartition("wide", number) for number in range(4)]
    with producer(cluster) as target:
        for one in wide:
            target.send("wide", b"0", partition=one.partition).result(60)
        cluster.led[wide[0]].leader = -1
        held = target.send("wide", b"1", partition=0)
        for one in wide[1:]:
            assert target.send("wide", b"1", partition=one.partition).result(60).offset == 1
        assert not held.done()
        cluster.elect(wide[0], 2)
        assert held.result(60).offset == 1


def test_a_request_without_an_answer_goes_to_the_next_leader(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "OVERDUE_S", 0.05)
    with producer(cluster) as target:
        target.send("t", b"0").result(60)
        with cluster.brokers[1]._lock:  # it accepts requests and answers none
            future = target.send("t", b"1")
            eventually(lambda: not target._accumulator.idle, "sent")
            cluster.elect(T0, 2)
            assert future.result(20).offset == 1  # earlier than the request times out
    assert stored(cluster) == numbers(2)
