"""Klamm's clients in a cluster of three real brokers whose leaders are killed in mid-stream."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import klamm
from klamm.core.client.cluster_client import LATEST, ClusterClient
from klamm.core.client.reader.partition_reader import PartitionReader
from klamm.core.errors import LogEndMovedError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.encode import encode_batch
from klamm.core.records.offset_and_epoch import OffsetAndEpoch
from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import RecordMetadata
from klamm.hadoop.options import Reading, parse_options
from klamm.hadoop.spark.columns import source_columns
from klamm.hadoop.spark.stream import KlammStreamReader
from klammtest.clients.readers import read
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.waiting import eventually

NUMBER = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("replicated")
    with running_cluster(folder, {"plugin": "embedded", "path": str(folder / "coordination.db")}) as running:
        yield running


@pytest.fixture
def partition(cluster: BrokerCluster) -> TopicPartition:
    """The partition of a new topic with three replicas, of which two have to be in sync."""
    name = f"replicated-{next(NUMBER)}"
    cluster.create_topic(name, 1)
    assert cluster.await_in_sync(name, 1)
    return TopicPartition(name, 0)


def count_on(client: ClusterClient, partition: TopicPartition, stop: threading.Event) -> list[int]:
    """Appends to the log how many records are before each, by compare-and-append. Returns the numbers that were
    acknowledged. Any number of threads may do so at once."""
    acknowledged = []
    reader = PartitionReader(client, partition, 0)
    while not stop.is_set():
        while data := reader.fetch(60, max_wait_ms=1):
            for _ in reader.raw_batches(data):
                pass
        end = OffsetAndEpoch(reader.position, reader.cursor.leader_epoch)
        batch = encode_batch([(1, None, b"%d" % end.offset, ())])
        with contextlib.suppress(LogEndMovedError):
            client.produce({partition: batch}, after={partition: end}, timeout_s=60)
            acknowledged.append(end.offset)
    return acknowledged


def test_compare_and_append_stores_one_record_at_each_end(
    cluster: BrokerCluster, partition: TopicPartition, codecs: CodecTable
) -> None:
    """Two clients append at once while leaders are killed: no record is lost, and none was appended by a client that
    did not know all records before it."""

    def end() -> int:
        return one.list_offsets({partition: LATEST})[partition][0]

    stop, pool = threading.Event(), ThreadPoolExecutor(2)
    with (
        ClusterClient(cluster.bootstrap, codecs=codecs) as one,
        ClusterClient(cluster.bootstrap, codecs=codecs) as two,
        pool,
    ):
        counting = [pool.submit(count_on, client, partition, stop) for client in (one, two)]
        try:
            for _ in range(3):
                state = cluster.state(partition)
                assert state is not None
                before = end()
                eventually(lambda: end() > before + 20, "it counts")  # noqa: B023
                cluster.kill([state.leader])
                eventually(lambda: end() > before + 60, "it goes on")  # noqa: B023
                revive(cluster, state.leader, partition)
        finally:
            stop.set()
        acknowledged = sorted(number for done in counting for number in done.result())
        with klamm.Consumer(config(cluster)) as consumer:
            consumer.assign([partition])
            values = [int(record.value) for record in read(consumer, end())]
    assert values == list(range(len(values)))
    assert len(set(acknowledged)) == len(acknowledged), "one client's record at each end"
    assert set(acknowledged) <= set(values)
    assert len(acknowledged) > len(values) - 20, "few answers were lost"


def config(cluster: BrokerCluster, **consumer: Any) -> dict[str, Any]:
    keys = {key.replace("_", "."): value for key, value in consumer.items()}
    return {
        "producer": {"bootstrap.servers": cluster.bootstrap, "linger.ms": 0, "batch.size": 200},
        "consumer": {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest", **keys},
    }


class Sending(threading.Thread):
    """Sends numbers until it is stopped; `futures` are theirs."""

    def __init__(self, cluster: BrokerCluster, partition: TopicPartition) -> None:
        super().__init__(daemon=True)
        self.futures: list[Future[RecordMetadata]] = []
        self._partition = partition
        self._producer = klamm.Producer(config(cluster))
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(0.002):
            number = len(self.futures)
            self.futures.append(self._producer.send(self._partition.topic, b"%d" % number, partition=0))

    @property
    def acknowledged(self) -> int:
        return sum(future.done() for future in list(self.futures))

    def close(self) -> None:
        self._stopped.set()
        self.join()
        self._producer.close(60)

    def stop(self) -> list[int]:
        """Returns the offsets of all records, in the order of their numbers."""
        self.close()
        return [future.result(0).offset for future in self.futures]


@pytest.fixture
def sending(cluster: BrokerCluster, partition: TopicPartition) -> Iterator[Sending]:
    with contextlib.closing(Sending(cluster, partition)) as started:
        yield started


def kill_leader(cluster: BrokerCluster, partition: TopicPartition, sending: Sending) -> int:
    """Returns the killed broker once records are acknowledged again."""
    state = cluster.state(partition)
    assert state is not None
    cluster.kill([state.leader])
    eventually(lambda: (now := cluster.state(partition)) and now.leader not in (-1, state.leader), "another leader")
    before = len(sending.futures)
    eventually(lambda: sending.acknowledged > before + 50, "records are acknowledged again")
    return state.leader


def revive(cluster: BrokerCluster, node: int, partition: TopicPartition) -> None:
    cluster.start([node])
    assert cluster.await_in_sync(partition.topic, 1)


def test_producer_and_consumer_go_on_when_leaders_are_killed(
    cluster: BrokerCluster, partition: TopicPartition, sending: Sending
) -> None:
    values: list[bytes] = []
    with klamm.Consumer(config(cluster)) as consumer:
        consumer.assign([partition])
        for _ in range(3):
            before = len(sending.futures)
            eventually(lambda: sending.acknowledged > before, "records are acknowledged")  # noqa: B023
            values += [record.value for record in read(consumer, 1)]
            killed = kill_leader(cluster, partition, sending)
            values += [record.value for record in read(consumer, 50)]
            revive(cluster, killed, partition)
        offsets = sending.stop()
        values += [record.value for record in read(consumer, len(offsets) - len(values))]
    assert offsets == list(range(len(offsets))), "nothing is lost, doubled or reordered"
    assert values == [b"%d" % number for number in range(len(offsets))]


def test_commits_go_on_when_leader_and_coordinator_are_killed(
    cluster: BrokerCluster, partition: TopicPartition, sending: Sending
) -> None:
    keys = config(cluster, group_id=f"group-{partition.topic}", enable_auto_commit=False)
    values: list[bytes] = []
    with klamm.Consumer(keys) as consumer:
        consumer.assign([partition])
        for node in cluster.ids:  # the coordinator is one of them
            values += [record.value for record in read(consumer, 20)]
            consumer.commit()
            before = len(sending.futures)
            cluster.kill([node])
            eventually(lambda: sending.acknowledged > before + 50, "records are acknowledged again")  # noqa: B023
            values += [record.value for record in read(consumer, 20)]
            consumer.commit()
            assert consumer.committed([partition])[partition].leader_epoch >= 0
            revive(cluster, node, partition)
    offsets = sending.stop()
    with klamm.Consumer(keys) as consumer:
        consumer.assign([partition])
        values += [record.value for record in read(consumer, len(offsets) - len(values))]
    assert offsets == list(range(len(offsets)))
    assert values == [b"%d" % number for number in range(len(offsets))]


def test_a_member_goes_on_when_leader_and_coordinator_are_killed(
    cluster: BrokerCluster, partition: TopicPartition, sending: Sending
) -> None:
    """It may read again what it had not committed."""
    keys = config(cluster, group_id=f"group-{partition.topic}", group_protocol="classic", auto_commit_interval_ms=50)
    seen: set[bytes] = set()
    with klamm.Consumer(keys, topics=[partition.topic]) as consumer:
        for node in cluster.ids:
            before = len(sending.futures)
            cluster.kill([node])
            eventually(lambda: sending.acknowledged > before + 50, "records are acknowledged again")  # noqa: B023
            wanted = b"%d" % sending.acknowledged
            eventually(lambda: seen.update(r.value for r in consumer.poll(0.2)) or wanted in seen, "records are read")  # noqa: B023
            revive(cluster, node, partition)
        offsets = sending.stop()
        every = {b"%d" % number for number in range(len(offsets))}
        eventually(lambda: seen.update(r.value for r in consumer.poll(0.2)) or seen == every, "all records are read")
    assert offsets == list(range(len(offsets)))


def test_a_reader_goes_on_when_its_leader_is_killed(
    cluster: BrokerCluster, partition: TopicPartition, sending: Sending, codecs: CodecTable
) -> None:
    eventually(lambda: sending.acknowledged > 500, "records are acknowledged")
    end = sending.acknowledged
    values: list[bytes | None] = []
    state = cluster.state(partition)
    assert state is not None
    with ClusterClient(cluster.bootstrap, codecs=codecs) as client:
        reader = PartitionReader(client, partition, 0, fetch_bytes=1_000)
        while len(values) < end:
            if len(values) > end // 2 and not cluster.brokers[state.leader].died():
                cluster.kill([state.leader])
            for batch in reader.batches(reader.fetch(60, until=end)):
                values += batch.columns.values
    revive(cluster, state.leader, partition)
    assert values == [b"%d" % number for number in range(len(values))]


def test_the_spark_source_goes_on_when_leaders_are_killed(
    cluster: BrokerCluster, partition: TopicPartition, sending: Sending
) -> None:
    """Micro-batches as Spark plans and reads them: the leader is killed after the plan, and while a task reads."""
    options = parse_options(
        {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": partition.topic, "startingOffsets": "earliest"},
        Reading.STREAM,
    )
    reader = KlammStreamReader(options, source_columns(headers=False, quarantine=False))
    values: list[bytes] = []
    with contextlib.closing(sending), contextlib.ExitStack() as stack:
        stack.callback(reader.stop)
        start = reader.initialOffset()
        for kill_at in ("planned", "reading", "planned", ""):
            before = len(sending.futures)
            eventually(lambda: sending.acknowledged > before + 300, "records are acknowledged")  # noqa: B023
            if not kill_at:
                sending.close()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            tasks = reader.partitions(start, end)
            killed = kill_leader(cluster, partition, sending) if kill_at == "planned" else None
            for task in tasks:
                for batch in reader.read(task):
                    values += batch.column("value").to_pylist()
                    if kill_at == "reading" and killed is None:
                        killed = kill_leader(cluster, partition, sending)
            start = end
            if killed is not None:
                revive(cluster, killed, partition)
    assert [future.result(0).offset for future in sending.futures] == list(range(len(sending.futures)))
    assert values == [b"%d" % number for number in range(len(values))], "each once, in order"
    assert len(values) == len(sending.futures)
