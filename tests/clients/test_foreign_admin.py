"""The admin clients of confluent-kafka, kafka-python and Java on a cluster of three: they move and elect replicas."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from klammtest.replicated import java_client
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.waiting import eventually

LIMIT_S = 120.0
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("admin")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with running_cluster(folder, tree) as running:
        yield running


def test_kafka_python_creates_moves_and_elects(brokers: BrokerCluster) -> None:
    from kafka import KafkaAdminClient, TopicPartition

    admin = KafkaAdminClient(bootstrap_servers=brokers.bootstrap.split(","))
    try:
        admin.create_topics({"moved": {"num_partitions": 2, "replication_factor": 2}})
        admin.create_topics({"placed": {"assignments": {0: [2, 0], 1: [0, 1]}}})
        first, second = TopicPartition("moved", 0), TopicPartition("moved", 1)

        def described() -> dict[int, dict[str, object]]:
            (topic,) = admin.describe_topic_partitions(["moved"])["topics"]
            return {p["partition_index"]: p for p in topic["partitions"]}

        eventually(lambda: set(described()) == {0, 1}, "the partitions", LIMIT_S)
        here = list(described()[0]["replica_nodes"])  # type: ignore[call-overload]
        (other,) = {0, 1, 2} - set(here)
        assert admin.alter_partition_reassignments({first: [other, here[0]], second: None}) == {
            first: None,
            second: pytest.importorskip("kafka.errors").NoReassignmentInProgressError,
        }
        eventually(lambda: admin.list_partition_reassignments() == {}, "the end of the move", LIMIT_S)
        eventually(lambda: described()[0]["replica_nodes"] == [other, here[0]], "the new replicas", LIMIT_S)
        assert not described()[0]["eligible_leader_replicas"]
        admin.elect_leaders(0, {"moved": [0]}, raise_errors=False)
        eventually(lambda: described()[0]["leader_id"] == other, "the preferred leader", LIMIT_S)
        directories = admin.describe_log_dirs(brokers=[other])
        assert "moved" in str(directories)
    finally:
        admin.close()


def test_confluent_kafka_describes_and_elects(brokers: BrokerCluster) -> None:
    from confluent_kafka import ElectionType, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    for future in admin.create_topics([NewTopic("elected", 3, 3)]).values():
        future.result(LIMIT_S)
    refused = admin.create_topics([NewTopic("large", 1, 4)])["large"]
    with pytest.raises(Exception, match="it is larger than the number of live brokers, 3"):
        refused.result(LIMIT_S)

    def described() -> list[tuple[int, int]]:
        found = admin.describe_topics(TopicCollection(["elected"]))["elected"].result(LIMIT_S)
        # a partition whose leader does not lead yet has none, as after Kafka's own CreateTopics
        return [(-1 if p.leader is None else p.leader.id, len(p.isr)) for p in found.partitions]

    eventually(lambda: sorted(described()) == [(0, 3), (1, 3), (2, 3)], "leaders and replicas", LIMIT_S)
    results = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition("elected", 0)]).result(LIMIT_S)
    (error,) = results.values()
    assert error is None or error.name() == "ELECTION_NOT_NEEDED"
    cluster = admin.describe_cluster().result(LIMIT_S)
    assert {node.id for node in cluster.nodes} == {0, 1, 2}
    assert cluster.controller.id == brokers.controller()


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("java", "mvn"))), reason="needs java and mvn")
def test_the_java_client_creates_configures_moves_and_elects(brokers: BrokerCluster) -> None:
    program = str(Path(java_client.__file__).parent / "java" / "KafkaAdmin.java")
    done = subprocess.run(
        ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", java_client.class_path(), program, brokers.bootstrap],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "created",
        "configured",
        "moved",
        "elected []",
        "NoReassignmentInProgressException",
        "broker 7 cannot be added: not live (live brokers: 0, 1, 2)",
        "true",
        "[0, 1, 2]",
    ]
