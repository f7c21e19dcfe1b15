"""DeleteRecords of a replicated partition waits until all live replicas begin at the new offset."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

PATIENCE_S = 60
SESSION_MS = 30_000
"""Longer than a follower is paused here: it stays live."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": SESSION_MS}
    with running_cluster(folder, tree, broker={"replica.lag.time.max.ms": 2000}) as running:
        eventually(lambda: len(running.registered()) == 3, "all are registered")
        yield running


def filled(cluster: BrokerCluster, topic: str) -> int:
    """Creates a topic with ten records that every replica has; returns its leader."""
    cluster.create_topic(topic, 1)
    assert cluster.await_in_sync(topic, 1)
    state = cluster.state(TopicPartition(topic, 0))
    assert state is not None
    with WireClient(cluster.brokers[state.leader].bootstrap) as wire:
        stored = lambda: produce(wire, topic, batch(*[b"x"] * 10), acks=-1).error_code is ErrorCode.none  # noqa: E731
        eventually(stored, "the leader knows the topic")
    return state.leader


def delete(cluster: BrokerCluster, leader: int, topic: str, offset: int, timeout_s: float) -> tuple[ErrorCode, int]:
    api = ApiKey.DELETE_RECORDS
    one = part(api, 2, "DeleteRecordsPartition", partition_index=0, offset=offset)
    asked = part(api, 2, "DeleteRecordsTopic", name=topic, partitions=(one,))
    with WireClient(cluster.brokers[leader].bootstrap, timeout_s=PATIENCE_S + 30) as wire:
        answer = wire.call(api, 2, topics=(asked,), timeout=timedelta(seconds=timeout_s))
    found = answer.topics[0].partitions[0]
    return found.error_code, found.low_watermark


@contextmanager
def paused(cluster: BrokerCluster, number: int) -> Iterator[None]:
    cluster.brokers[number].pause()
    try:
        yield
    finally:
        cluster.brokers[number].resume()


def test_the_answer_is_the_least_log_start(cluster: BrokerCluster) -> None:
    leader = filled(cluster, "even")
    assert delete(cluster, leader, "even", 5, PATIENCE_S) == (ErrorCode.none, 5)
    assert delete(cluster, leader, "even", -1, PATIENCE_S) == (ErrorCode.none, 10)


def test_a_silent_follower_is_waited_for(cluster: BrokerCluster) -> None:
    leader = filled(cluster, "silent")
    assert delete(cluster, leader, "silent", 2, PATIENCE_S) == (ErrorCode.none, 2)
    silent = next(number for number in cluster.ids if number != leader)
    with paused(cluster, silent):
        assert delete(cluster, leader, "silent", 5, 0.5) == (ErrorCode.request_timed_out, 2)
        with ThreadPoolExecutor() as threads:
            later = threads.submit(delete, cluster, leader, "silent", 6, PATIENCE_S)
            cluster.brokers[silent].resume()
            assert later.result(PATIENCE_S + 30) == (ErrorCode.none, 6)


@contextmanager
def _stopped(cluster: BrokerCluster, number: int) -> Iterator[None]:
    try:
        yield
    finally:
        cluster.start([number])


def test_a_leader_that_is_deposed_says_so(cluster: BrokerCluster) -> None:
    leader = filled(cluster, "deposed")
    silent = next(number for number in cluster.ids if number not in (leader, cluster.controller()))
    with paused(cluster, silent), ThreadPoolExecutor() as threads, _stopped(cluster, leader):
        begun = lambda: "the log start offset is 5" in cluster.brokers[leader].log()  # noqa: E731
        waiting = threads.submit(delete, cluster, leader, "deposed", 5, PATIENCE_S)
        eventually(begun, "the leader has deleted, and waits")
        cluster.brokers[leader].stop()
        assert waiting.result(PATIENCE_S + 30) == (ErrorCode.not_leader_or_follower, -1)
