"""Three brokers as processes replicate a topic: records survive the death of any, and every replica is the same.

The campaigns of tests/faults/cluster do this under load; here each rule has a test of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.broker import RunningBroker, running_broker
from klammtest.ports import free_port
from klammtest.requests import batch, create_topic, fetch, metadata, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

KEYS = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 2000}


class Cluster:
    """Three brokers with ids 0, 1 and 2, and topics of three replicas on them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.brokers: list[RunningBroker] = []
        tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 6000}
        ports = [free_port() for _ in range(3)]
        for number, port in enumerate(ports):
            keys = {**KEYS, "broker.id": number}
            running = running_broker(folder / str(number), port=port, broker=keys, coordination=tree)
            self.brokers.append(stack.enter_context(running))

    def partition(self, topic: str) -> Any:
        """The partition as the leader of the latest epoch describes it; others may not have read it yet."""
        found: dict[int, Any] = {}
        for number, broker in enumerate(self.brokers):
            try:
                with WireClient(broker.bootstrap, timeout_s=2) as wire:
                    topics = metadata(wire, [topic]).topics
            except (OSError, TimeoutError):
                continue
            if topics[0].partitions:
                found[number] = topics[0].partitions[0]
        if not found:
            raise OSError(f"no broker describes {topic}")
        latest = max(found.values(), key=lambda part: part.leader_epoch)
        return found.get(latest.leader_id, latest)

    def create(self, topic: str) -> None:
        eventually(lambda: self._create(topic) in (ErrorCode.none, ErrorCode.topic_already_exists), f"{topic} exists")

    def _create(self, topic: str) -> ErrorCode:
        with self._controller() as wire:
            code: ErrorCode = create_topic(wire, topic, replication_factor=3).error_code
        return code

    @contextmanager
    def _controller(self) -> Iterator[WireClient]:
        live = next(broker for broker in self.brokers if not broker.died())
        with WireClient(live.bootstrap) as wire:
            controller = metadata(wire, []).controller_id
        with WireClient(self.brokers[controller].bootstrap) as wire:
            yield wire

    def elect_uncleanly(self, topic: str) -> ErrorCode:
        partition = (part(ApiKey.ELECT_LEADERS, 2, "TopicPartitions", topic=topic, partitions=(0,)),)
        try:
            with self._controller() as wire:
                fields = {"election_type": 1, "topic_partitions": partition, "timeout": timedelta(seconds=10)}
                answer = wire.call(ApiKey.ELECT_LEADERS, 2, **fields)
        except OSError:
            return ErrorCode.not_controller
        code: ErrorCode = answer.replica_election_results[0].partition_result[0].error_code
        return code

    def leader(self, topic: str) -> RunningBroker:
        return self.brokers[self.partition(topic).leader_id]

    def append(self, topic: str, value: bytes, acks: int = -1) -> int:
        """Produces until it is acknowledged, as a producer does; returns the offset."""
        offsets = []

        def acknowledged() -> bool:
            try:
                with WireClient(self.leader(topic).bootstrap) as wire:
                    answer = produce(wire, topic, batch(value), acks=acks)
            except (OSError, IndexError):
                return False
            if answer.error_code is ErrorCode.none:
                offsets.append(answer.base_offset)
            return bool(offsets)

        eventually(acknowledged, f"{value!r} is acknowledged")
        return int(offsets[0])

    def values(self, topic: str) -> bytes:
        with WireClient(self.leader(topic).bootstrap) as wire:
            return bytes(fetch(wire, topic, 0).records)

    def in_sync(self, topic: str, *members: int) -> None:
        eventually(lambda: set(self.partition(topic).isr_nodes) == set(members), f"{members} are in sync")

    def same_files(self, topic: str) -> bytes:
        """The content of every broker's log of the topic, once they are the same."""
        eventually(lambda: len(set(self._files(topic))) == 1, f"the replicas of {topic} are the same")
        return self._files(topic)[0]

    def _files(self, topic: str) -> list[bytes]:
        return [(broker.log_dir / f"{topic}-0" / f"{0:020d}.log").read_bytes() for broker in self.brokers]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack)


def test_an_acknowledged_record_is_on_every_replica(cluster: Cluster) -> None:
    cluster.create("copied")
    for number in range(50):
        assert cluster.append("copied", b"%d" % number) == number
    assert len(cluster.same_files("copied")) > 50 * 61


def test_the_death_of_a_leader_loses_nothing(cluster: Cluster) -> None:
    cluster.create("orphaned")
    for number in range(10):
        cluster.append("orphaned", b"%d" % number)
    before = cluster.partition("orphaned")
    dead = cluster.leader("orphaned")
    dead.kill()
    try:
        assert cluster.append("orphaned", b"after") == 10
        after = cluster.partition("orphaned")
        assert after.leader_epoch > before.leader_epoch
        assert after.leader_id != before.leader_id
    finally:
        dead.start()
    cluster.in_sync("orphaned", 0, 1, 2)
    assert cluster.append("orphaned", b"again") == 11
    cluster.same_files("orphaned")


def test_too_few_in_sync_replicas_refuse_acks_all_only(cluster: Cluster) -> None:
    cluster.create("scarce")
    cluster.append("scarce", b"first")
    leader = cluster.partition("scarce").leader_id
    others = [broker for number, broker in enumerate(cluster.brokers) if number != leader]
    for broker in others:
        broker.kill()
    try:
        cluster.in_sync("scarce", leader)
        with WireClient(cluster.brokers[leader].bootstrap) as wire:
            refused = lambda: produce(wire, "scarce", batch(b"all"), acks=-1).error_code  # noqa: E731
            eventually(lambda: refused() is ErrorCode.not_enough_replicas, "acks=all is refused")
            assert produce(wire, "scarce", batch(b"one"), acks=1).error_code is ErrorCode.none
            assert fetch(wire, "scarce", 0).high_watermark == 1, "the watermark stands still below the minimum (R2)"
    finally:
        for broker in others:
            broker.start()
    cluster.in_sync("scarce", 0, 1, 2)
    assert cluster.append("scarce", b"all again") >= 2


def test_a_silent_follower_leaves_and_comes_back(cluster: Cluster) -> None:
    cluster.create("silent")
    cluster.append("silent", b"first")
    leader = cluster.partition("silent").leader_id
    quiet = next(number for number in range(3) if number != leader)
    cluster.brokers[quiet].pause()
    try:
        cluster.append("silent", b"second")
        assert quiet not in cluster.partition("silent").isr_nodes
    finally:
        cluster.brokers[quiet].resume()
    cluster.in_sync("silent", 0, 1, 2)
    cluster.same_files("silent")


def test_a_replaced_disk_is_filled_again(cluster: Cluster) -> None:
    cluster.create("refilled")
    for number in range(20):
        cluster.append("refilled", b"%d" % number)
    lost = cluster.leader("refilled")
    lost.kill()
    shutil.rmtree(lost.log_dir)
    lost.start("--accept-missing-logs")
    cluster.in_sync("refilled", 0, 1, 2)
    assert cluster.same_files("refilled").count(b"19") == 1


def test_an_unclean_election_takes_the_replica_with_the_most_records(cluster: Cluster) -> None:
    """The disk of the preferred one is replaced, the other in-sync one stays away, and the third lacks one record."""
    cluster.create("unclean")
    for number in range(20):
        cluster.append("unclean", b"value %d" % number)
    replaced, away, behind = (cluster.brokers[number] for number in cluster.partition("unclean").replica_nodes)
    numbers = [cluster.brokers.index(one) for one in (replaced, away, behind)]
    behind.kill()
    try:
        cluster.in_sync("unclean", *numbers[:2])
        cluster.append("unclean", b"not everywhere")
        away.kill()
        cluster.in_sync("unclean", numbers[0])
        replaced.kill()
        shutil.rmtree(replaced.log_dir)
        replaced.start("--accept-missing-logs")
        behind.start()
        eventually(lambda: cluster.elect_uncleanly("unclean") is ErrorCode.none, "an unclean election")
        eventually(lambda: cluster.partition("unclean").leader_id == numbers[2], "the one with the most leads")
        eventually(lambda: cluster.values("unclean").count(b"value") == 20, "two in-sync replicas show the records")
    finally:
        away.start()
    cluster.in_sync("unclean", 0, 1, 2)
    assert cluster.same_files("unclean").count(b"value") == 20


def test_a_stopped_broker_hands_over_first(cluster: Cluster) -> None:
    cluster.create("handed")
    cluster.append("handed", b"first")
    leader = cluster.leader("handed")
    assert leader.stop() == 0
    try:
        assert leader is not cluster.leader("handed")
        assert cluster.append("handed", b"second") == 1
    finally:
        leader.start()
    cluster.in_sync("handed", 0, 1, 2)


def test_all_brokers_die_at_once(cluster: Cluster) -> None:
    cluster.create("survived")
    for number in range(20):
        cluster.append("survived", b"value %d" % number)
    for broker in cluster.brokers:
        broker.kill()
    for broker in cluster.brokers:
        broker.start()
    cluster.in_sync("survived", 0, 1, 2)
    # All are in the ISR that they left; the leader knows what is committed once the followers have fetched.
    whole = lambda found: all(b"value %d" % number in found for number in range(20))  # noqa: E731
    eventually(lambda: whole(cluster.values("survived")), "every record is there")
    assert cluster.append("survived", b"more") == 20


def test_a_follower_s_fetch_from_a_stranger_is_answered_as_any(cluster: Cluster) -> None:
    """A Fetch that names a replica of another epoch does not move the high watermark (R3)."""
    cluster.create("strange")
    cluster.append("strange", b"first")
    with WireClient(cluster.leader("strange").bootstrap) as wire:
        found = metadata(wire, ["strange"], version=12).topics[0]
        epoch = found.partitions[0].leader_epoch
        answer = wire.call(
            ApiKey.FETCH, 18,
            replica_state=part(ApiKey.FETCH, 18, "ReplicaState", replica_id=77, replica_epoch=1),
            max_wait=timedelta(), min_bytes=0, max_bytes=1 << 20, forgotten_topics_data=(),
            topics=(
                part(
                    ApiKey.FETCH, 18, "FetchTopic", topic_id=found.topic_id,
                    partitions=(
                        part(
                            ApiKey.FETCH, 18, "FetchPartition", partition=0, current_leader_epoch=epoch, fetch_offset=0,
                            partition_max_bytes=1 << 20,
                        ),
                    ),
                ),
            ),
        )  # fmt: skip
    assert answer.error_code is ErrorCode.none
    assert answer.responses[0].partitions[0].records
