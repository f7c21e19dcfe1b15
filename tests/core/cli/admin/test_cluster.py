"""`klamm cluster` against three real brokers: what it shows, what it moves, and what it refuses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from klamm.core.cli.admin.cluster import Health, kept_leaders
from klamm.core.client.cluster_admin import ClusterAdmin
from klamm.core.client.cluster_client import BROKER_RESOURCE, ClusterClient, NewTopic
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.logs import codec_table
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch
from klammtest.waiting import eventually

Klamm = Callable[..., Any]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with running_cluster(folder, tree) as running:
        with ClusterClient(running.bootstrap, codecs=codec_table()) as client:
            client.create_topics({"one": NewTopic(4, 1), "three": NewTopic(2, 3)})
        yield running


@pytest.fixture
def cluster(klamm: Klamm, brokers: BrokerCluster) -> Klamm:
    def run(command: str, *arguments: str) -> Any:
        return klamm("cluster", command, *arguments, "--bootstrap", brokers.bootstrap)

    return run


def test_the_status_shows_brokers_and_partitions(cluster: Klamm, brokers: BrokerCluster) -> None:
    assert cluster("status", "--wait", "60s").status == 0
    done = cluster("status")
    assert (done.status, done.err) == (0, "")
    rows = done.out.splitlines()
    assert rows[0].split() == ["broker", "address", "rack", "leads", "replicas", "out", "of", "sync", "size", "free"]
    assert [row.split()[0] for row in rows[1:4]] == ["0", "1", "2"]
    assert all(re.search(r"\b0 +0 bytes +\d", row) for row in rows[1:4])
    assert sum(int(re.split(r" {2,}", row)[3]) for row in rows[1:4]) == 6
    assert "6 partitions: 0 without a leader, 0 under-replicated, 0 being moved" in rows


def test_waiting_ends_at_once_where_nothing_lacks(cluster: Klamm) -> None:
    assert cluster("status", "--wait", "60s").status == 0


def test_json_of_moves_needs_a_dry_run(cluster: Klamm) -> None:
    done = cluster("drain", "0", "--json")
    words = "klamm: --json applies only with --dry-run: it prints what would be moved\n"
    assert (done.status, done.out, done.err) == (2, "", words)


def test_nothing_is_in_progress(cluster: Klamm) -> None:
    assert cluster("reassign", "--list").out.splitlines()[-1] == "0 in progress"
    assert cluster("reassign", "--cancel").out.splitlines()[-1] == "0 cancelled"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("reassign",), 2, "cluster reassign: name partitions (orders:0=1,2,3), or use --list or --cancel"),
        (("reassign", "one:x=1"), 2, "'one:x=1': expected TOPIC, TOPIC:PARTITION or TOPIC:PARTITION=BROKER,BROKER"),
        (("reassign", "one=1"), 2, "one=1: which partition? one:0=…"),
        (("reassign", "one"), 2, "one: name the brokers of a partition (one:0=1,2,3), or give --replication-factor"),
        (("reassign", "one:1"), 2, "one:1: name the brokers of a partition (one:1=1,2,3), or give"),
        (("reassign", "one:0=0,1", "one:0=1,2"), 2, "one:0 is given twice; name each partition once"),
        (("reassign", "one:0=99999999999"), 2, "one:0=99999999999: 99999999999 is above 2147483647"),
        (
            ("reassign", "one:0=" + "9" * 5000),
            2,
            f"klamm: one:0={'9' * 34}…: {'9' * 40}… is above 2147483647, the largest",
        ),
        (("reassign", "one:" + "9" * 5000), 2, f"{'9' * 40}… is above 2147483647, the largest"),
        (("reassign", f"one:{'0' * 5000}9=1"), 2, "one:9: there is no such topic or partition"),
        (("reassign", "one:٣=1"), 2, "'one:٣=1': expected TOPIC, TOPIC:PARTITION or TOPIC:PARTITION=BROKER,BROKER"),
        (
            ("reassign", "moves.json"),
            2,
            "moves.json: there is no such topic or partition; name partitions as",
        ),
        (("reassign", "nowhere", "--cancel"), 2, "nowhere: there is no such topic or partition"),
        (("reassign", "one:0=0,1", "--cancel"), 2, "one:0=0,1: name partitions beside --cancel without brokers: one:0"),
        (("reassign", "one:0=0,1", "--list"), 2, "one:0=0,1: name partitions beside --list without brokers: one:0"),
        (("reassign", "--list", "--cancel"), 2, "cluster reassign: give --list or --cancel, not both"),
        (("reassign", "--list", "-r", "2"), 2, "cluster reassign: give --replication-factor or --list, not both"),
        (("reassign", "one:0=1", "-r", "2"), 2, "or give --replication-factor for topics, not both"),
        (("reassign", "nowhere:0=1"), 2, "nowhere:0: there is no such topic or partition"),
        (("reassign", "one:9=1"), 2, "one:9: there is no such topic or partition"),
        (
            ("reassign", "one:0=0,7"),
            1,
            "INVALID_REPLICA_ASSIGNMENT: one-0: broker 7 cannot be added: not live (live brokers: 0, 1, 2)",
        ),
        (
            ("reassign", "one:0=1,1"),
            1,
            "INVALID_REPLICA_ASSIGNMENT: one-0: the list of replicas has broker 1 more than once",
        ),
        (
            ("reassign", "one", "-r", "4"),
            1,
            "INVALID_REPLICATION_FACTOR: the replication factor 4 is larger than the number of live brokers, 3",
        ),
        (("drain", "7"), 2, "broker 7 is not live and has no replicas (live brokers: 0, 1, 2)"),
        (
            ("drain", "2"),
            1,
            "INVALID_REPLICATION_FACTOR: broker 2 cannot be drained: three-0 has 3 replicas, and of the other live "
            "brokers (0, 1) each has one already; add a broker, or lower the topic's replication factor",
        ),
        (("status", "--wait", "soon"), 2, "--wait: expected an interval such as 90s, 10m or 1h, got 'soon'"),
    ],
)
def test_what_is_refused_in_one_line(cluster: Klamm, arguments: tuple[str, ...], status: int, words: str) -> None:
    done = cluster(*arguments)
    assert done.status == status
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_factor_larger_than_the_cluster_is_refused(klamm: Klamm, brokers: BrokerCluster) -> None:
    done = klamm("topics", "create", "large", "--replication-factor", "5", "--bootstrap", brokers.bootstrap)
    assert (done.status, done.err) == (
        1,
        "klamm: INVALID_REPLICATION_FACTOR: topic 'large' with replication factor 5: it is larger than the number of "
        "live brokers, 3\n",
    )


def test_an_even_cluster_has_nothing_to_move(cluster: Klamm) -> None:
    done = cluster("balance", "--dry-run")
    assert (done.status, done.out) == (0, "nothing to move\n")


def test_health_names_what_lacks() -> None:
    tp = TopicPartition("t", 0)
    health = Health(3, (), (tp,), ())
    assert not health.is_well
    assert list(health.lines()) == [
        "3 partitions: 0 without a leader, 1 under-replicated, 0 being moved",
        "under-replicated: t-0",
    ]


def test_one_partition_is_counted_as_one() -> None:
    assert list(Health(1, (), (), ()).lines()) == ["1 partition: 0 without a leader, 0 under-replicated, 0 being moved"]


def test_partitions_that_keep_their_leaders_are_named_once_and_many_in_one_line() -> None:
    why = "broker 3 is not in sync, or is not live"
    refused = {
        tp: BrokerError(ErrorCode.preferred_leader_not_available, f"{tp}: {why}")
        for tp in (TopicPartition("t", number) for number in range(5))
    }
    assert kept_leaders({}) == []
    assert kept_leaders(dict(list(refused.items())[:3])) == [f"t-{n} keeps its leader: {why}" for n in range(3)]
    assert kept_leaders(refused) == [f"5 partitions keep their leaders: t-0: {why}; t-1: {why}; t-2: {why}; and 2 more"]


def replicas(cluster: Klamm) -> list[int]:
    """Returns the number of replicas of each broker."""
    rows = cluster("status").out.splitlines()[1:4]
    return [int(re.split(r" {2,}", row)[4]) for row in rows]


def test_a_broker_is_drained_and_gets_its_share_again(cluster: Klamm) -> None:
    done = cluster("reassign", "one", "three", "--replication-factor", "2", "--throttle", "100000000", "--moves", "2")
    assert (done.status, done.out.splitlines()[-1]) == (0, "6 partitions reassigned")
    assert sum(replicas(cluster)) == 12
    planned = [json.loads(line) for line in cluster("drain", "2", "--dry-run", "--json").out.splitlines()]
    assert [(move["from"], 2 in move["replicas"]) for move in planned] == [(2, False)] * replicas(cluster)[2]
    done = cluster("drain", "2")
    assert (done.status, done.out.splitlines()[-1]) == (0, "broker 2 has no replicas: it can be stopped")
    assert replicas(cluster) == [6, 6, 0]
    done = cluster("unregister", "2")
    assert done.status == 1
    assert done.err.startswith("klamm: INVALID_REQUEST: broker 2 is live: stop it first (one that was killed counts as")
    done = cluster("balance", "--moves", "3")
    assert done.status == 0
    assert re.search(r"^4 replicas moved, \d+ preferred leaders changed$", done.out, re.MULTILINE)
    assert replicas(cluster) == [4, 4, 4]
    assert cluster("status", "--wait", "60s").status == 0
    assert cluster("reassign", "three", "-r", "3").status == cluster("reassign", "one", "-r", "1").status == 0


def test_a_refused_partition_hides_no_other(cluster: Klamm) -> None:
    done = cluster("reassign", "one:0=1", "one:1=1,9", "one:2=2", "one:3=0,8", "--moves", "1")
    refused = "klamm: INVALID_REPLICA_ASSIGNMENT: one-{}: broker {} cannot be added: not live (live brokers: 0, 1, 2)\n"
    assert (done.status, done.out.splitlines()[-2:]) == (1, ["one-0: reassigned", "one-2: reassigned"])
    assert done.err == refused.format(1, 9) + refused.format(3, 8)
    done = cluster("reassign", "one:1=1,9")
    assert (done.status, done.out, done.err) == (1, "", refused.format(1, 9)), "no progress bar where nothing moves"
    assert cluster("reassign", "--list").out.splitlines()[-1] == "0 in progress"


def test_a_drain_waits_for_a_move_that_was_begun_elsewhere(cluster: Klamm, brokers: BrokerCluster) -> None:
    tp = TopicPartition("slow", 0)
    rate = "follower.replication.throttled.rate"
    assert cluster("reassign", "three", "-r", "2").status == 0
    with ClusterClient(brokers.bootstrap, codecs=codec_table()) as client:
        client.create_topics({"slow": NewTopic(1, 1, {"follower.replication.throttled.replicas": "*"})})
        admin = ClusterAdmin(client)
        leader = lambda: admin.view().topics["slow"].partitions[0].leader  # noqa: E731
        eventually(lambda: leader() >= 0, "it is led")
        source = leader()
        target = (source + 1) % 3
        for _ in range(30):
            client.produce({tp: batch(bytes(100_000))})
        client.alter_configs(str(target), {rate: "1000"}, resource=BROKER_RESOURCE)
        freed = threading.Timer(6.0, client.alter_configs, (str(target), {rate: None}), {"resource": BROKER_RESOURCE})
        try:
            assert admin.alter_reassignments({tp: (target,)}) == {}
            freed.start()
            done = cluster("drain", str(source))
            assert admin.view().topics["slow"].partitions[0].replicas == (target,)
            last = done.out.splitlines()[-1]
            assert (done.status, last) == (0, f"broker {source} has no replicas: it can be stopped")
            assert f"1 move off broker {source} in progress: slow-0\n" in done.out
        finally:
            freed.join()
            client.delete_topics(["slow"])
    assert cluster("balance").status == cluster("reassign", "three", "-r", "3").status == 0


def test_the_status_is_1_while_replicas_lack(cluster: Klamm, brokers: BrokerCluster) -> None:
    brokers.kill([2])
    done = cluster("status", "--json")

    def lacking() -> bool:
        nonlocal done
        done = cluster("status", "--json")
        return len(json.loads(done.out)["under_replicated"]) >= 2 and done.status == 1

    eventually(lacking, "the status is 1")
    assert done.err == "klamm: partitions lack a leader or replicas\n"
    found = json.loads(done.out)
    assert {"three-0", "three-1"} <= set(found["under_replicated"])
    assert {row["broker"]: row["address"] is None for row in found["brokers"]}[2]
    assert cluster("status", "--wait", "1s").err == "klamm: partitions lack a leader or replicas still, after 1s\n"
    brokers.start([2])
    eventually(lambda: cluster("status").status == 0, "all replicas are in sync again")
