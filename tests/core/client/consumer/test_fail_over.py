"""The consumer while leaders move, logs are cut and replicas are named (KIP-320, KIP-392, KIP-951), against a scripted
cluster.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

import klamm
from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.consumer import fetcher, node_fetcher
from klamm.core.client.errors import LogTruncatedError, NoOffsetError
from klamm.core.errors import BrokerError, ErrorCode, KlammError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.scripted_cluster import ScriptedCluster, Seen, scripted_cluster
from klammtest.clients.readers import read
from klammtest.stored_topic import StoredLog
from klammtest.waiting import eventually

T0 = TopicPartition("t", 0)


@pytest.fixture
def cluster(codecs: CodecTable) -> Iterator[ScriptedCluster]:
    with scripted_cluster({"t": 1, "wide": 4}, 3, codecs) as running:
        yield running


def append(cluster: ScriptedCluster, *values: bytes, partition: TopicPartition = T0) -> None:
    """Each value as a batch of its own."""
    for value in values:
        cluster.stored[partition].append((1, None, value, ()))


def opened(cluster: ScriptedCluster, **keys: Any) -> klamm.Consumer:
    options = {key.replace("_", "."): value for key, value in keys.items()}
    section = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", "fetch.max.wait.ms": 20}
    return klamm.Consumer({"consumer": {**section, **options}})


def assigned(cluster: ScriptedCluster, *partitions: TopicPartition, **keys: Any) -> klamm.Consumer:
    consumer = opened(cluster, **keys)
    consumer.assign(partitions or [T0])
    return consumer


def values(consumer: klamm.Consumer, count: int) -> list[bytes]:
    return [record.value for record in read(consumer, count)]


def partition_of(message: Any) -> Any:
    """The only partition of a request."""
    [topic] = message.topics
    [partition] = topic.partitions
    return partition


def test_a_fetch_names_topic_id_and_epochs(cluster: ScriptedCluster) -> None:
    cluster.elect(T0, 2)
    append(cluster, b"a")
    cluster.elect(T0, 3)
    append(cluster, b"b")
    with assigned(cluster) as consumer:
        assert values(consumer, 2) == [b"a", b"b"]
        eventually(lambda: partition_of(cluster.asked(ApiKey.FETCH)[-1].message).fetch_offset == 2, "the next fetch")
    first, last = cluster.asked(ApiKey.FETCH)[0], cluster.asked(ApiKey.FETCH)[-1]
    assert {one.version for one in cluster.asked(ApiKey.FETCH)} == {18}
    assert first.message.topics[0].topic_id == cluster.ids["t"]
    assert [partition_of(one.message).current_leader_epoch for one in (first, last)] == [2, 2]
    assert [partition_of(one.message).last_fetched_epoch for one in (first, last)] == [-1, 2]


@pytest.mark.parametrize("version", [4, 8, 9, 11, 12, 13, 15, 16, 17, 18])
def test_every_version_of_fetch_is_read(cluster: ScriptedCluster, version: int) -> None:
    for broker in cluster.brokers.values():
        broker.versions[ApiKey.FETCH] = (4, version)
    append(cluster, b"a", b"b")
    with assigned(cluster, client_rack="r") as consumer:
        assert values(consumer, 2) == [b"a", b"b"]
        cluster.elect(T0, 2)
        append(cluster, b"c")
        assert values(consumer, 1) == [b"c"]
    assert {one.version for one in cluster.asked(ApiKey.FETCH)} == {version}


@pytest.mark.parametrize("names_leaders", [False, True], ids=["silent", "KIP-951"])
def test_a_leader_that_moves_is_followed(cluster: ScriptedCluster, names_leaders: bool) -> None:
    cluster.names_leaders = names_leaders
    with assigned(cluster) as consumer:
        for node in (2, 3, 1, 3):
            append(cluster, b"before")
            cluster.elect(T0, node)
            append(cluster, b"after")
            assert values(consumer, 2) == [b"before", b"after"]
    asked = cluster.asked(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    assert asked, "positions are compared before a new leader is fetched from"


def test_a_leader_that_dies_is_replaced(cluster: ScriptedCluster) -> None:
    append(cluster, b"a")
    with assigned(cluster) as consumer:
        assert values(consumer, 1) == [b"a"]
        cluster.kill(1)
        cluster.elect(T0, 2)
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]


def test_a_dead_leader_is_not_asked_without_pause(cluster: ScriptedCluster) -> None:
    append(cluster, b"a")
    with assigned(cluster) as consumer:
        assert values(consumer, 1) == [b"a"]
        before = len(cluster.asked(ApiKey.METADATA))
        cluster.kill(1)
        eventually(lambda: len(cluster.asked(ApiKey.METADATA)) > before + 5, "it looks for another leader")
        state = consumer._positions.states[T0]
        assert state.failures > 3
        cluster.elect(T0, 3)
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]
        eventually(lambda: state.failures == 0, "the failures are forgotten")


def test_a_partition_without_a_leader_does_not_delay_the_others(cluster: ScriptedCluster) -> None:
    others = [TopicPartition("wide", number) for number in range(4)]
    cluster.led[others[0]].leader = -1
    with opened(cluster) as consumer:
        consumer.assign(others[1:])
        for one in others:
            append(cluster, b"a", partition=one)
        assert len(values(consumer, 3)) == 3
        for turn, node in enumerate((2, 3), 1):
            for one in others[1:]:
                cluster.elect(one, node)
                append(cluster, b"%d" % turn, partition=one)
            assert values(consumer, 3) == [b"%d" % turn] * 3


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.offset_not_available,
    ],
)
@pytest.mark.parametrize("times", [1, 4])
def test_errors_of_a_moving_leader_are_retried(cluster: ScriptedCluster, error: ErrorCode, times: int) -> None:
    append(cluster, b"a")
    with assigned(cluster, auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        assert values(consumer, 1) == [b"a"]
        cluster.faults[ApiKey.FETCH].extend([error] * times)
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]
        assert not cluster.faults[ApiKey.FETCH]


@pytest.mark.parametrize("api", [ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH])
def test_errors_of_other_questions_are_retried(cluster: ScriptedCluster, api: ApiKey) -> None:
    append(cluster, b"a")
    errors = [ErrorCode.offset_not_available, ErrorCode.not_leader_or_follower, ErrorCode.unknown_leader_epoch]
    cluster.faults[api].extend(errors)
    with assigned(cluster) as consumer:
        assert values(consumer, 1) == [b"a"]
        cluster.elect(T0, 2)
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]
    assert not cluster.faults[api]


def test_a_broker_that_is_behind_brings_no_deposed_leader_back(cluster: ScriptedCluster) -> None:
    append(cluster, b"a")
    with assigned(cluster) as consumer:
        assert values(consumer, 1) == [b"a"]
        cluster.behind[3] = dict(cluster.led)
        cluster.elect(T0, 2)
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]
        for _ in range(6):  # some of these are answered by the broker that is behind
            consumer._client.metadata(["t"])
            assert consumer._client.cluster.leader_epoch(T0) == 1
            assert consumer._client.cluster.leader(T0) == 2


def test_a_fetch_without_an_answer_makes_the_consumer_look_for_another_leader(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERDUE_S", 0.1)
    append(cluster, b"a")
    with assigned(cluster) as consumer:
        assert values(consumer, 1) == [b"a"]
        with cluster.brokers[1]._lock:  # it accepts requests and answers none
            cluster.elect(T0, 2)
            append(cluster, b"b")
            assert values(consumer, 1) == [b"b"]


PATIENT = {"request_timeout_ms": 300_000}
"""No test waits until such a request times out."""


@contextlib.contextmanager
def silent(cluster: ScriptedCluster, node: int) -> Iterator[None]:
    """The broker accepts requests and answers none; a Fetch of the consumer is under way there."""
    with cluster.brokers[node]._lock:
        time.sleep(0.3)  # an answer that was made before is read, and the next Fetch sent
        yield


def test_a_partition_that_is_moved_while_its_leader_is_silent_is_read_from_the_next_one(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERDUE_S", 0.1)
    append(cluster, b"a")
    with assigned(cluster, **PATIENT) as consumer:
        assert values(consumer, 1) == [b"a"]
        with silent(cluster, 1):
            consumer.seek(T0, 0)
            cluster.elect(T0, 2)
            assert values(consumer, 1) == [b"a"]


def test_a_partition_that_comes_to_a_silent_leader_is_read_from_the_next_one(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERDUE_S", 0.1)
    cluster.elect(IDLE, 2)
    with assigned(cluster, IDLE, READ, **PATIENT) as consumer:
        state = consumer._positions.states[READ]
        eventually(lambda: cluster.asked(ApiKey.FETCH, 1) and cluster.asked(ApiKey.FETCH, 2), "both are fetched")
        with silent(cluster, 2):
            cluster.kill(1)
            cluster.elect(READ, 2)
            eventually(lambda: state.node == 2, "the silent broker is its leader")
            cluster.elect(READ, 3)
            append(cluster, b"a", partition=READ)
            assert values(consumer, 1) == [b"a"]


# -- partitions that wait while others are read

IDLE, READ = TopicPartition("wide", 0), TopicPartition("wide", 1)


@pytest.mark.parametrize("slow", [False, True], ids=["as asked", "slow"])
def test_a_partition_that_moves_beside_an_idle_one_is_read(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, *, slow: bool
) -> None:
    """A Fetch of the idle one lasts longer than the other may go without: the broker waits for records as long as it is
    asked to, or takes long for any answer.
    """
    monkeypatch.setattr(node_fetcher, "UNWATCHED_S", 0.03)
    (cluster.delays_s if slow else cluster.polls_s)[2] = 0.5
    cluster.elect(IDLE, 2)
    with assigned(cluster, IDLE, READ, fetch_max_wait_ms=20 if slow else 500) as consumer:
        for node in (2, 1, 2, 1, 2):  # at some moment of a Fetch of the idle one
            cluster.elect(READ, node)
            append(cluster, b"%d" % node, partition=READ)
            assert values(consumer, 1) == [b"%d" % node]


def test_a_partition_whose_buffer_was_full_is_read_on_beside_an_idle_one(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_fetcher, "UNWATCHED_S", 0.05)
    cluster.poll_s = 1.0
    append(cluster, *(b"%d" % number for number in range(8)), partition=READ)
    with assigned(cluster, IDLE, READ, fetch_max_wait_ms=1000) as consumer:
        state = consumer._positions.states[READ]
        seen: list[bytes] = []
        while len(seen) < 8:
            # More than `UNWATCHED_S` without a fetch of it, unless all is fetched; more time does no harm.
            eventually(lambda: not state.has_space or state.fetch_from == 8, "its buffer is full")
            time.sleep(0.1)
            seen += values(consumer, 1)
        assert seen == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("silent", [False, True], ids=["dead", "silent"])
def test_a_partition_without_a_position_does_not_delay_the_fail_over_of_others(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    """The coordinator refuses connections, or accepts requests and answers none."""
    fetch_offsets, asked = ClusterClient.fetch_offsets, threading.Event()

    def noted(*args: Any, **more: Any) -> Any:
        asked.set()
        return fetch_offsets(*args, **more)

    cluster.coordinator = 3
    append(cluster, b"a")
    with assigned(cluster, group_id="g", enable_auto_commit=False, request_timeout_ms=300_000) as consumer:
        assert values(consumer, 1) == [b"a"]
        with contextlib.ExitStack() as stack:
            if silent:
                stack.enter_context(cluster.brokers[3]._lock)
            else:
                cluster.kill(3)
            monkeypatch.setattr(ClusterClient, "fetch_offsets", noted)
            consumer.assign([T0, READ])
            assert asked.wait(60)
            cluster.elect(T0, 2)
            append(cluster, b"b")
            assert values(consumer, 1) == [b"b"]
            assert consumer._positions.states[READ].position is None


# -- errors of a Fetch that no election ends


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize(
    "error", [ErrorCode.unknown_server_error, ErrorCode.request_timed_out, ErrorCode.throttling_quota_exceeded]
)
def test_errors_that_pass_are_retried(cluster: ScriptedCluster, error: ErrorCode, times: int) -> None:
    append(cluster, b"a", b"b")
    cluster.faults[ApiKey.FETCH].extend([error] * times)
    with assigned(cluster) as consumer:
        assert values(consumer, 2) == [b"a", b"b"]
        assert not cluster.faults[ApiKey.FETCH]


@pytest.mark.parametrize("error", [ErrorCode.topic_authorization_failed, ErrorCode.corrupt_message])
def test_an_error_for_the_application_is_raised_once_and_the_broker_asked_again(
    cluster: ScriptedCluster, error: ErrorCode
) -> None:
    append(cluster, b"a")
    with assigned(cluster) as consumer:
        eventually(lambda: consumer._positions.states[T0].has_data, "the first record is buffered")
        cluster.faults[ApiKey.FETCH].append(error)
        eventually(lambda: not cluster.faults[ApiKey.FETCH], "the broker has refused")
        append(cluster, b"b", b"c")
        assert [record.value for record in consumer.poll(60)] == [b"a"], "what came before the error is first"
        with pytest.raises(BrokerError, match=f"{error.name.upper()}: fetch t-0 at 1") as raised:
            consumer.poll(60)
        assert raised.value.code is error
        assert values(consumer, 2) == [b"b", b"c"]


def test_an_error_that_lasts_is_raised_again_for_each_answer(cluster: ScriptedCluster) -> None:
    append(cluster, b"a")
    cluster.faults[ApiKey.FETCH].extend([ErrorCode.topic_authorization_failed] * 100_000)
    with assigned(cluster, retry_backoff_ms=10, retry_backoff_max_ms=20) as consumer:
        for _ in range(3):
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                read(consumer, 1)
        asked = len(cluster.asked(ApiKey.FETCH))
        eventually(lambda: len(cluster.asked(ApiKey.FETCH)) > asked + 3, "it asks while nobody polls")
        state = consumer._positions.states[T0]
        assert len(state.chunks) == 1, "one error is kept"
        with cluster.brokers[1]._lock:
            cluster.faults[ApiKey.FETCH].clear()
        eventually(lambda: state.fetch_from == 1, "the record is behind the error")
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            read(consumer, 1)
        assert values(consumer, 1) == [b"a"]


def test_a_refused_partition_does_not_wait_for_records_of_an_idle_one(cluster: ScriptedCluster) -> None:
    cluster.poll_s = 0.5

    def named(seen: Seen) -> set[int]:
        return {p.partition for topic in seen.message.topics for p in topic.partitions}

    with assigned(cluster, IDLE, READ, fetch_max_wait_ms=500, retry_backoff_ms=200) as consumer:
        eventually(lambda: [s for s in cluster.asked(ApiKey.FETCH) if len(named(s)) == 2], "both are fetched")
        before = len(cluster.asked(ApiKey.FETCH))
        cluster.faults[ApiKey.FETCH].append(ErrorCode.topic_authorization_failed)
        with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
            read(consumer, 1)
        for partition in (IDLE, READ):
            append(cluster, b"a", partition=partition)
        assert values(consumer, 2) == [b"a", b"a"]
    alone = [one.message for one in cluster.asked(ApiKey.FETCH)[before:] if len(named(one)) == 1]
    assert all(message.max_wait.total_seconds() < 0.5 for message in alone)


def test_a_replica_with_an_unexpected_error_is_left_for_the_leader(cluster: ScriptedCluster) -> None:
    cluster.preferred["r"] = 3
    append(cluster, b"a")
    with assigned(cluster, client_rack="r") as consumer:
        assert values(consumer, 1) == [b"a"]
        cluster.refused = ErrorCode.unknown_server_error
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]


# -- logs that were cut


def test_reading_goes_on_where_the_log_was_cut(cluster: ScriptedCluster, caplog: pytest.LogCaptureFixture) -> None:
    append(cluster, b"0", b"1", b"2", b"3", b"4")
    with assigned(cluster, auto_offset_reset="latest") as consumer:
        consumer.seek(T0, 0)
        assert values(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
        with caplog.at_level(logging.WARNING):
            cluster.elect(T0, 2, lost=2)
            append(cluster, b"3'", b"4'", b"5'")
            assert values(consumer, 3) == [b"3'", b"4'", b"5'"]
    words = "t-0: the offset 5 is not in the log any more, which was cut at offset 3: the records 3 to 4 are lost"
    assert any(words in message for message in caplog.messages), caplog.messages


def test_a_cut_is_noticed_by_the_epoch_of_a_fetch_alone(cluster: ScriptedCluster) -> None:
    """The leader and its epoch, as the metadata have them, stay what they were."""
    append(cluster, b"0", b"1", b"2")
    with assigned(cluster) as consumer:
        assert values(consumer, 3) == [b"0", b"1", b"2"]
        log = cluster.stored[T0]
        eventually(lambda: partition_of(cluster.asked(ApiKey.FETCH)[-1].message).last_fetched_epoch == 0, "a fetch")
        epochs = [(0, 0), (1, 2)]
        log.batches, log.epochs = log.batches[:2], epochs
        log.append((1, None, b"2'", ()))
        log.append((1, None, b"3'", ()))
        cluster.led[T0].epoch = 0
        assert values(consumer, 2) == [b"2'", b"3'"]


def test_without_a_reset_a_cut_log_is_an_error_that_names_the_divergence(cluster: ScriptedCluster) -> None:
    append(cluster, b"0", b"1", b"2", b"3", b"4")
    with assigned(cluster, auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        assert len(values(consumer, 5)) == 5
        cluster.elect(T0, 2, lost=2)
        append(cluster, b"3'", b"4'", b"5'")
        with pytest.raises(LogTruncatedError, match="the records 3 to 4 are lost, and consumer") as got:
            read(consumer, 1)
        assert got.value.divergent == {T0: CommittedOffset(3, 0)}
        consumer.seek(T0, got.value.divergent[T0].offset)
        assert values(consumer, 3) == [b"3'", b"4'", b"5'"]


def test_an_epoch_that_no_leader_has_had_is_a_cut_at_an_unknown_offset(cluster: ScriptedCluster) -> None:
    append(cluster, b"0", b"1", b"2")
    cluster.offsets[T0] = CommittedOffset(2, 7)
    with assigned(cluster, auto_offset_reset="none", group_id="g") as consumer:
        with pytest.raises(
            LogTruncatedError, match="2 is not in the log any more, which was cut below offset 2"
        ) as got:
            read(consumer, 1)
        assert got.value.divergent == {T0: CommittedOffset(-1, -1)}
    with assigned(cluster, group_id="g") as consumer:
        assert values(consumer, 3) == [b"0", b"1", b"2"]


def test_a_committed_offset_is_compared_with_the_log(cluster: ScriptedCluster) -> None:
    append(cluster, b"0", b"1", b"2", b"3")
    with assigned(cluster, group_id="g", enable_auto_commit=False) as consumer:
        assert len(values(consumer, 4)) == 4
        consumer.commit()
    assert cluster.offsets == {T0: CommittedOffset(4, 0)}
    cluster.elect(T0, 3, lost=2)
    append(cluster, b"2'", b"3'", b"4'")
    with assigned(cluster, group_id="g", enable_auto_commit=False) as consumer:
        assert values(consumer, 3) == [b"2'", b"3'", b"4'"]
        consumer.commit()
    assert cluster.offsets == {T0: CommittedOffset(5, 1)}


def test_epochs_without_records_are_no_cut(cluster: ScriptedCluster) -> None:
    append(cluster, b"0")
    for node in (2, 3, 1):
        cluster.elect(T0, node)
    with assigned(cluster, auto_offset_reset="latest") as consumer:
        eventually(lambda: cluster.asked(ApiKey.FETCH), "it reads from the end")
        cluster.stored[T0].epochs = [(0, 0), (3, 1)]  # as a broker that keeps no epoch without records
        cluster.elect(T0, 2)
        cluster.stored[T0].epochs = [(0, 0), (4, 1)]
        append(cluster, b"1")
        assert values(consumer, 1) == [b"1"]


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_an_offset_out_of_range_is_compared_before_it_is_found_anew(cluster: ScriptedCluster, reset: str) -> None:
    append(cluster, b"0", b"1", b"2", b"3")
    with assigned(cluster, auto_offset_reset=reset) as consumer:
        consumer.seek(T0, 0)
        assert len(values(consumer, 4)) == 4
        cluster.stored[T0].start = 6
        cluster.stored[T0].batches.clear()
        append(cluster, b"6")
        if reset == "none":
            with pytest.raises(NoOffsetError, match="the offset is out of range"):
                read(consumer, 1)
        else:
            assert values(consumer, 1) == [b"6"]


def test_a_topic_created_again_is_known_by_its_id(cluster: ScriptedCluster) -> None:
    append(cluster, b"old", b"old")
    with assigned(cluster) as consumer:
        assert len(values(consumer, 2)) == 2
        new = StoredLog()
        for value in (b"n0", b"n1"):
            new.append((1, None, value, ()))
        # It ends where the old one did: the consumer, which reads meanwhile by the old id, gets nothing of it.
        cluster.stored[T0].batches = new.batches
        cluster.ids["t"] = uuid4()
        append(cluster, b"n2")
        assert values(consumer, 3) == [b"n0", b"n1", b"n2"]


# -- replicas of one's own rack


def test_a_replica_of_the_rack_is_read_from(cluster: ScriptedCluster) -> None:
    cluster.preferred["r"] = 3
    append(cluster, b"a", b"b")
    with assigned(cluster, client_rack="r") as consumer:
        assert values(consumer, 2) == [b"a", b"b"]
        append(cluster, b"c")
        assert values(consumer, 1) == [b"c"]
    assert len(cluster.asked(ApiKey.FETCH, 1)) == 1
    assert cluster.asked(ApiKey.FETCH, 3)
    assert {one.message.rack_id for one in cluster.asked(ApiKey.FETCH)} == {"r"}


def test_without_a_rack_the_leader_is_read_from(cluster: ScriptedCluster) -> None:
    cluster.preferred["r"] = 3
    append(cluster, b"a")
    with assigned(cluster) as consumer:
        assert values(consumer, 1) == [b"a"]
    assert not cluster.asked(ApiKey.FETCH, 3)


@pytest.mark.parametrize(
    "error", [ErrorCode.offset_not_available, ErrorCode.not_leader_or_follower, ErrorCode.offset_out_of_range]
)
def test_a_replica_that_refuses_is_left_for_the_leader(cluster: ScriptedCluster, error: ErrorCode) -> None:
    cluster.preferred["r"] = 3
    append(cluster, b"a")
    with assigned(cluster, client_rack="r", auto_offset_reset="none") as consumer:
        consumer.seek(T0, 0)
        assert values(consumer, 1) == [b"a"]
        asked = len(cluster.asked(ApiKey.FETCH, 1))
        cluster.faults[ApiKey.FETCH].append(error)
        eventually(lambda: len(cluster.asked(ApiKey.FETCH, 1)) > asked, "the leader is asked")
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]


@pytest.mark.parametrize("error", [ErrorCode.not_leader_or_follower, ErrorCode.offset_out_of_range])
def test_a_replica_that_refuses_is_not_asked_again_though_the_leader_would_name_it(
    cluster: ScriptedCluster, error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_fetcher, "REPLICA_REST_S", 2.0)
    cluster.preferred["r"] = 3
    cluster.refused = error
    append(cluster, b"a")
    with assigned(cluster, client_rack="r", auto_offset_reset="none", metadata_max_age_ms=2000) as consumer:
        consumer.seek(T0, 0)
        assert values(consumer, 1) == [b"a"]
        assert len(cluster.asked(ApiKey.FETCH, 3)) == 1
        assert [one.message.rack_id for one in cluster.asked(ApiKey.FETCH, 1)][:2] == ["r", ""]
        cluster.refused = ErrorCode.none
        eventually(lambda: len(cluster.asked(ApiKey.FETCH, 3)) > 1, "the leader names it again after some time")
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]


def test_a_replica_that_dies_is_left_for_the_leader(cluster: ScriptedCluster) -> None:
    cluster.preferred["r"] = 3
    append(cluster, b"a")
    with assigned(cluster, client_rack="r") as consumer:
        assert values(consumer, 1) == [b"a"]
        cluster.kill(3)
        cluster.preferred.clear()
        append(cluster, b"b")
        assert values(consumer, 1) == [b"b"]


@pytest.mark.parametrize("rest_s", [0.1, 300.0], ids=["named again", "not named"])
def test_a_silent_replica_is_left_for_the_leader_though_the_leader_would_name_it(
    cluster: ScriptedCluster, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "OVERDUE_S", 0.1)
    monkeypatch.setattr(fetcher, "REPLICA_REST_S", rest_s)
    cluster.preferred["r"] = 3
    append(cluster, b"a")
    with assigned(cluster, client_rack="r", **PATIENT) as consumer:
        assert values(consumer, 1) == [b"a"]
        with silent(cluster, 3):
            for value in (b"b", b"c"):
                append(cluster, value)
                assert values(consumer, 1) == [value]
                time.sleep(0.2)  # longer than the shorter rest


def test_the_leader_is_asked_again_after_the_age_of_the_metadata(cluster: ScriptedCluster) -> None:
    cluster.preferred["r"] = 3
    append(cluster, b"a")
    with assigned(cluster, client_rack="r", metadata_max_age_ms=50) as consumer:
        assert values(consumer, 1) == [b"a"]
        eventually(lambda: len(cluster.asked(ApiKey.FETCH, 1)) > 2, "the leader is asked again")
        for number in range(20):
            append(cluster, b"%d" % number)
            assert values(consumer, 1) == [b"%d" % number]


def test_an_unexpected_error_is_the_application_s_and_does_not_stop_the_consumer(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would end, and the consumer would stand still without an error."""
    append(cluster, b"a")
    compare, failures = fetcher.Fetcher._compare, [KeyError("unexpected")]

    def failing(self: fetcher.Fetcher) -> None:
        if failures:
            raise failures.pop()
        compare(self)

    monkeypatch.setattr(fetcher.Fetcher, "_compare", failing)
    consumer = assigned(cluster)
    with pytest.raises(KlammError, match="unexpected") as raised:
        consumer.poll(10)
    assert isinstance(raised.value.__cause__, KeyError)
    assert values(consumer, 1) == [b"a"]
    consumer.close()
