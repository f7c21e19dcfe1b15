"""`klamm groups reset` and `klamm topics apply` against three brokers, with groups of Klamm's and of other clients."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from klamm import Consumer, Producer
from klamm.core.cli.admin.offset_reset import PartitionReset, compare_and_set
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import Settings, load_settings
from klamm.core.errors import KlammError
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.partition import TopicPartition
from klammtest.logs import codec_table
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.waiting import eventually

Klamm = Callable[..., Any]
FIRST_MS = 1_700_000_000_000
"""The timestamp of the first record; each later one of a partition is a second younger."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("admin")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with running_cluster(folder, tree) as running:
        yield running


@pytest.fixture(scope="module")
def settings(brokers: BrokerCluster) -> Settings:
    servers = {"bootstrap.servers": brokers.bootstrap}
    tree = {"plugin": "embedded", "path": str(brokers.folder / "tree.db"), "session.timeout.ms": 20_000}
    return load_settings({"coordination": tree, "producer": servers, "consumer": servers})


@pytest.fixture(scope="module")
def client(brokers: BrokerCluster, settings: Settings) -> Iterator[ClusterClient]:
    """Of a topic `log` with 2 partitions of 100 records, of which the first 20 of partition 0 are deleted."""
    with ClusterClient(brokers.bootstrap, codecs=codec_table()) as made:
        made.create_topics({"log": NewTopic(2, 3, {"retention.ms": "-1"})})
        with Producer(settings) as producer:
            for number in range(200):
                at_ms = FIRST_MS + number // 2 * 1000
                producer.send("log", b"x", partition=number % 2, timestamp_ms=at_ms)
        made.delete_records({TopicPartition("log", 0): 20})
        yield made


@pytest.fixture
def groups(
    klamm: Klamm, brokers: BrokerCluster, client: ClusterClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Klamm:
    monkeypatch.chdir(tmp_path)
    Path("klamm.yaml").write_text((brokers.folder / "broker-0" / "klamm.yaml").read_text())
    return lambda command, *arguments: klamm("groups", command, *arguments, "-b", brokers.bootstrap)


def commit(client: ClusterClient, group: str, *offsets: int) -> None:
    client.commit_offsets(
        group, {TopicPartition("log", number): CommittedOffset(offset) for number, offset in enumerate(offsets)}
    )


def committed(client: ClusterClient, group: str) -> dict[str, int]:
    return {str(tp): found.offset for tp, found in client.fetch_offsets(group).items()}


@pytest.mark.parametrize(
    ("options", "expected"),
    [  # for each partition: target, skipped, repeated, deleted
        (("--to", "earliest"), [(20, 0, 0, 10), (0, 0, 50, 0)]),
        (("--to", "latest"), [(100, 80, 0, 10), (100, 50, 0, 0)]),
        (("--to", "40"), [(40, 20, 0, 10), (40, 0, 10, 0)]),
        (("--to", "5"), [(20, 0, 0, 15), (5, 0, 45, 0)]),
        (("--to", "-1"), [(99, 79, 0, 10), (99, 49, 0, 0)]),
        (("--to", "2023-11-14T22:14:19.500+00:00"), [(60, 40, 0, 10), (60, 10, 0, 0)]),
        (("--to", f"@{FIRST_MS + 60_000}"), [(60, 40, 0, 10), (60, 10, 0, 0)]),
        (("--to", "-1m"), [(100, 80, 0, 10), (100, 50, 0, 0)]),
        (("--shift-by", "-20"), [(20, 0, 0, 20), (30, 0, 20, 0)]),
        (("--shift-by", "30"), [(40, 20, 0, 10), (80, 30, 0, 0)]),
        (("--to", "70", "--topic", "log:1"), [(70, 20, 0, 0)]),
    ],
)
def test_the_plan_says_what_is_skipped_repeated_and_deleted(
    groups: Klamm, client: ClusterClient, options: tuple[str, ...], expected: list[tuple[int, ...]]
) -> None:
    commit(client, "plans", 10, 50)
    done = groups("reset", "plans", *options, "--json")
    rows = [json.loads(line) for line in done.out.splitlines()]
    names = ("target", "skipped", "repeated", "deleted")
    assert [tuple(row[name] for name in names) for row in rows] == expected
    assert (done.status, done.err.count("a dry run: --yes writes them")) == (0, 1)
    assert committed(client, "plans") == {"log-0": 10, "log-1": 50}


def test_it_is_written_with_yes_and_read_from_there(groups: Klamm, client: ClusterClient, settings: Settings) -> None:
    commit(client, "written", 50, 100)
    done = groups("reset", "written", "--to", "-3", "--yes")
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0] == ["topic", "partition", "committed", "target", "skipped", "repeated", "deleted"]
    assert lines[1:3] == [["log", "0", "50", "97", "47", "0", "0"], ["log", "1", "100", "97", "0", "3", "0"]]
    assert (done.status, done.err, lines[3]) == (0, "", ["2", "offsets", "of", "group", "written", "reset"])
    assert committed(client, "written") == {"log-0": 97, "log-1": 97}
    with consuming(settings, "written") as consumer:
        seen: list[tuple[int, int]] = []
        while len(seen) < 6:
            seen += [(record.partition, record.offset) for record in consumer.poll(1.0)]
    assert sorted(seen) == [(number, offset) for number in range(2) for offset in (97, 98, 99)]
    assert groups("reset", "written", "--to", "97", "--yes").out.endswith("nothing to change\n")


def test_beyond_the_end_is_said(groups: Klamm, client: ClusterClient) -> None:
    commit(client, "far", 50, 50)
    done = groups("reset", "far", "--to", "1000", "--yes")
    assert done.err.splitlines() == [f"klamm: log-{number}: offset 1000 is after the end, 100" for number in range(2)]
    assert committed(client, "far") == {"log-0": 100, "log-1": 100}


def test_a_saved_file_is_the_way_back(groups: Klamm, client: ClusterClient) -> None:
    commit(client, "saved", 33, 44)
    assert groups("offsets", "saved", "--save", "before.csv").out == "before.csv: 2 offsets of group saved saved\n"
    assert Path("before.csv").read_text() == "log,0,33\nlog,1,44\n"
    again = groups("offsets", "saved", "--save", "before.csv")
    assert (again.status, again.err) == (2, "klamm: before.csv: already exists; it was not changed\n")
    assert groups("reset", "saved", "--to", "latest", "--yes").status == 0
    assert committed(client, "saved") == {"log-0": 100, "log-1": 100}
    assert groups("reset", "saved", "--file", "before.csv", "--yes").status == 0
    assert committed(client, "saved") == {"log-0": 33, "log-1": 44}
    assert groups("reset", "copy", "--file", "before.csv", "--yes").status == 0
    assert committed(client, "copy") == {"log-0": 33, "log-1": 44}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("log,0\n", "file.csv:1: expected topic,partition,offset, got 'log,0'"),
        ("log,0,1\n\nlog,x,1\n", "file.csv:3: expected topic,partition,offset, got 'log,x,1'"),
        ("log,0,1\nlog,0,2\n", "file.csv:2: log-0 is there twice"),
        (f"log,0,{2**63}\n", "file.csv:1: expected topic,partition,offset"),
        ("\n", "file.csv: has no lines"),
        ("log,7,1\n", "--file: there is no partition log-7"),
        ("missing,0,1\n", "there is no topic 'missing'"),
    ],
)
def test_what_is_wrong_in_a_file(groups: Klamm, client: ClusterClient, text: str, words: str) -> None:
    commit(client, "files", 1, 1)
    Path("file.csv").write_text(text)
    done = groups("reset", "files", "--file", "file.csv", "--yes")
    assert (done.status in (1, 2), words in done.err, done.err.count("\n")) == (True, True, 1), done.err
    assert committed(client, "files") == {"log-0": 1, "log-1": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("wrong",), "groups reset: give one of --to, --shift-by and --file"),
        (("wrong", "--to", "latest", "--shift-by", "1"), "groups reset: give one of --to, --shift-by and --file"),
        (("wrong", "--to", "yesterday"), "--to: expected earliest, latest, -10 (the last ten"),
        (("wrong", "--to", "-1y"), "--to: expected earliest, latest, -10"),
        (("wrong", "--to", str(2**63)), "--to: expected earliest, latest, -10"),
        (("wrong", "--file", "nope.csv"), "nope.csv: no such file; `klamm groups offsets GROUP --save FILE`"),
        (("wrong", "--to", "latest", "--topic", "log:x"), "--topic log:x: expected TOPIC, or TOPIC:0,1"),
        (("wrong", "--to", "latest", "--topic", "log:9"), "--topic log:9: topic 'log' has the partitions 0 to 1"),
        (("wrong", "--to", "latest", "--topic", "lag"), "there is no topic 'lag'; did you mean 'log'?"),
        (
            ("wrogn", "--to", "latest"),
            "group 'wrogn' has no offsets; with --topic or --file it gets its first; did you",
        ),
    ],
)
def test_what_is_refused_in_one_line(
    groups: Klamm, client: ClusterClient, arguments: tuple[str, ...], words: str
) -> None:
    commit(client, "wrong", 1, 1)
    done = groups("reset", *arguments)
    assert (done.status in (1, 2), words in done.err, done.err.count("\n")) == (True, True, 1), done.err


def test_a_new_group_and_a_partition_without_an_offset(groups: Klamm, client: ClusterClient) -> None:
    done = groups("reset", "new", "--to", "earliest", "--topic", "log:1", "--yes")
    assert done.out.splitlines()[1].split() == ["log", "1", "-", "0", "-", "-", "0"]
    assert committed(client, "new") == {"log-1": 0}
    done = groups("reset", "new", "--shift-by", "7", "--yes")
    assert done.err == "klamm: log-0 has no committed offset to shift; it is left as it is\n"
    assert committed(client, "new") == {"log-1": 7}


def test_a_commit_after_the_plan_to_an_offset_that_was_to_stay(client: ClusterClient) -> None:
    """The plan showed that partition 0 is at the target already; it is not any more."""
    commit(client, "moved", 20, 50)
    plan = [PartitionReset(TopicPartition("log", number), at, 0, 100, 20) for number, at in ((0, 20), (1, 50))]
    commit(client, "moved", 90, 50)
    with pytest.raises(KlammError, match="log-0 has the committed offset 90 now, and had 20 when the plan was made"):
        compare_and_set(client, "moved", plan)
    assert committed(client, "moved") == {"log-0": 90, "log-1": 50}


@contextmanager
def consuming(settings: Settings, group: str, protocol: str = "classic") -> Iterator[Consumer]:
    changes = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False}
    with Consumer(settings.with_(consumer=settings.consumer.model_copy(update=changes)), topics=["log"]) as consumer:
        yield consumer


@contextmanager
def klamm_member(settings: Settings, group: str, protocol: str) -> Iterator[None]:
    with consuming(settings, group, protocol) as consumer:
        while len(consumer.assignment()) < 2:
            consumer.poll(0.2)
        yield


@contextmanager
def confluent_member(settings: Settings, group: str) -> Iterator[None]:
    servers = settings.consumer.bootstrap_servers
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": group, "client.id": "theirs", "enable.auto.commit": False}
    )
    member.subscribe(["log"])
    try:
        eventually(lambda: member.poll(0.2) is None and len(member.assignment()) == 2, "both partitions are assigned")
        yield
    finally:
        member.close()


@contextmanager
def kcat_member(settings: Settings, group: str) -> Iterator[None]:
    command = ["kcat", "-b", settings.consumer.bootstrap_servers, "-X", "client.id=theirs", "-G", group, "log"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "assigned" not in process.stderr.readline():
                assert process.poll() is None
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize("kind", ["registry", "classic", "confluent", "kcat"])
def test_it_is_refused_while_members_live(groups: Klamm, client: ClusterClient, settings: Settings, kind: str) -> None:
    """A group of one kind is live, one of Klamm's beside it is not affected."""
    group = f"live-{kind}"
    commit(client, group, 30, 30)
    commit(client, "beside", 30, 30)
    members = {"confluent": confluent_member, "kcat": kcat_member}
    with members[kind](settings, group) if kind in members else klamm_member(settings, group, kind):
        for options in ((), ("--yes",)):
            done = groups("reset", group, "--to", "earliest", *options)
            assert (done.status, done.out.count("\n")) == (1, 3)
            assert f"klamm: group '{group}' has live members (" in done.err
            assert "stop them first; one that was killed counts until its session times out" in done.err
            assert kind in ("registry", "classic") or "theirs/127.0.0.1" in done.err
        # the coordinator refuses, too, where the command has not seen the members
        plan = [PartitionReset(TopicPartition("log", 1), 30, 0, 100, 0)]
        if kind == "registry":
            with pytest.raises(KlammError, match="has live members, which joined meanwhile; nothing was changed"):
                compare_and_set(client, group, plan)
        assert committed(client, group) == {"log-0": 30, "log-1": 30}
        assert groups("reset", "beside", "--to", "40", "--yes").status == 0
        assert committed(client, "beside") == {"log-0": 40, "log-1": 40}
    eventually(lambda: groups("reset", group, "--to", "earliest", "--yes").status == 0, "the members have left")
    assert committed(client, group) == {"log-0": 20, "log-1": 0}


def test_a_commit_after_the_plan_stops_it(groups: Klamm, client: ClusterClient, settings: Settings) -> None:
    """Confluent's consumer commits after the plan was made, and leaves again: nothing but the offset shows that."""
    commit(client, "raced", 30, 30)
    plan = [PartitionReset(TopicPartition("log", number), 30, 0, 100, 0) for number in range(2)]
    other = confluent_kafka.Consumer({"bootstrap.servers": settings.consumer.bootstrap_servers, "group.id": "raced"})
    other.commit(offsets=[confluent_kafka.TopicPartition("log", 1, 31)], asynchronous=False)
    other.close()
    with pytest.raises(KlammError) as caught:
        compare_and_set(client, "raced", plan)
    words = "group 'raced': log-1 has the committed offset 31 now, and had 30 when the plan was made"
    assert str(caught.value) == f"{words}; nothing was changed: plan again"
    assert committed(client, "raced") == {"log-0": 30, "log-1": 31}


def test_nobody_can_commit_between_the_last_look_and_the_write(
    client: ClusterClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others try while the command is the group's only member, after it has compared the offsets."""
    commit(client, "guarded", 30, 30)
    seen: list[str] = []
    commit_offsets = client.commit_offsets
    with ClusterClient(settings.consumer.bootstrap_servers, codecs=codec_table()) as other:

        def committing(*arguments: Any, **options: Any) -> None:
            with pytest.raises(KlammError, match="UNKNOWN_MEMBER_ID"):
                commit(other, "guarded", 60, 60)
            seen.append("outside")
            with (
                pytest.raises(KlammError, match="INCONSISTENT_GROUP_PROTOCOL"),
                klamm_member(settings, "guarded", "registry"),
            ):
                pass
            seen.append("registry")
            commit_offsets(*arguments, **options)

        monkeypatch.setattr(client, "commit_offsets", committing)
        compare_and_set(client, "guarded", [PartitionReset(TopicPartition("log", 1), 30, 0, 100, 5)])
    assert (seen, committed(client, "guarded")) == (["outside", "registry"], {"log-0": 30, "log-1": 5})


def test_a_member_that_joins_meanwhile_fences_the_write(
    client: ClusterClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that starts after the offsets were compared gets its assignment in the next generation, in which the
    command's commit is refused."""
    commit(client, "fenced", 30, 30)
    commit_offsets = client.commit_offsets

    def committing(*arguments: Any, **options: Any) -> None:
        with confluent_member(settings, "fenced"):  # waits for its assignment: the command's session must end first
            commit_offsets(*arguments, **options)

    monkeypatch.setattr(client, "commit_offsets", committing)
    with pytest.raises(KlammError, match="has live members, which joined meanwhile; nothing was changed"):
        compare_and_set(client, "fenced", [PartitionReset(TopicPartition("log", 1), 30, 0, 100, 5)])
    assert committed(client, "fenced")["log-1"] == 30


APPLY = """
coordination: {plugin: embedded, path: ./unused.db}
topics:
  made: {partitions: 2, replication.factor: 3, config: {retention.ms: 7d}}
  grown: {partitions: 4, replication.factor: 3, config: {cleanup.policy: "delete,compact", segment.bytes: 16m}}
  cannot: {partitions: 1, replication.factor: 3, config: {min.insync.replicas: 2}}
  same: {partitions: 1, config: {cleanup.policy: "delete,compact"}}
"""


def test_apply(klamm: Klamm, client: ClusterClient, brokers: BrokerCluster, tmp_path: Path) -> None:
    client.create_topics(
        {
            "grown": NewTopic(2, 3, {"segment.bytes": "1000000", "flush.ms": "1000"}),
            "cannot": NewTopic(2, 1),
            "same": NewTopic(1, 3, {"cleanup.policy": "compact,delete"}),
        }
    )
    file = tmp_path / "topics.yaml"
    file.write_text(APPLY)

    def topics(command: str, *arguments: str) -> Any:
        return klamm("topics", command, *arguments, "-c", str(file), "-b", brokers.bootstrap)

    def differences(done: Any) -> list[tuple[Any, ...]]:
        rows = [json.loads(line) for line in done.out.splitlines()]
        return [tuple(row[name] for name in ("topic", "change", "key", "cluster", "file", "result")) for row in rows]

    cannot = [
        ("cannot", "cannot", "partitions", "2", "1", None),
        ("cannot", "cannot", "replication.factor", "1", "3", None),
    ]
    left = ("grown", "left", "flush.ms", "1000", None, None)
    # before
    created = topics("create", "--all-from-config")
    assert (created.status, created.out) == (1, "made: created\nsame: exists\n")
    assert "klamm: grown: exists, and differs: partitions is 2, 4 in the file; " in created.err
    assert "klamm: cannot: exists, and differs: partitions is 2, 1 in the file; replication.factor is 1" in created.err
    client.delete_topics(["made"])
    # a dry run
    planned = topics("apply", "--dry-run", "--json")
    assert planned.status == 1
    assert sorted(differences(planned), key=str) == sorted(
        [
            ("made", "create", None, None, "partitions=2 replication.factor=3 retention.ms=604800000", None),
            ("grown", "add partitions", "partitions", "2", "4", None),
            ("grown", "set", "cleanup.policy", "delete", "delete,compact", None),
            ("grown", "set", "segment.bytes", "1000000", "16777216", None),
            left,
            *cannot,
            ("cannot", "set", "min.insync.replicas", "1", "2", None),
        ],
        key=str,
    )
    controller = client.controller()  # the first that knows what the commands changed
    assert "made" not in client.metadata(node_id=controller).topics
    assert topics("apply", "--dry-run", "grown").status == 3
    # applied
    applied = topics("apply", "made", "grown")
    assert (applied.status, applied.err) == (0, "")
    assert applied.out.splitlines()[-1] == "4 changes made"
    assert len(client.metadata(node_id=controller).topics["grown"].partitions) == 4
    configs = client.describe_configs("grown", node_id=controller)
    assert [configs[key].value for key in ("segment.bytes", "flush.ms")] == ["16777216", "1000"]
    assert client.describe_configs("made", node_id=controller)["retention.ms"].value == "604800000"
    again = topics("apply", "made", "same")
    assert (again.status, again.out) == (0, "the topics are as the file defines them\n")
    assert differences(topics("apply", "grown", "--dry-run", "--json")) == [left]
    # what cannot be done, beside what can
    applied = topics("apply", "--json")
    assert applied.status == 1
    assert differences(applied) == [
        left,
        *cannot,
        ("cannot", "set", "min.insync.replicas", "1", "2", "done"),
    ]
    assert applied.err.splitlines() == [
        "klamm: cannot: partitions: partitions cannot be removed; create another topic, or change the file",
        "klamm: cannot: replication.factor: klamm cluster reassign cannot --replication-factor 3 moves replicas",
        "klamm: topic 'cannot': min.insync.replicas=2 counts as 1, since it has 1 replica",
    ]
    # refused by the cluster
    file.write_text("topics: {large: {replication.factor: 9}, made: {config: {retention.ms: 1h}}}\n")
    refused = topics("apply")
    assert refused.status == 1
    assert [line.split()[-1] for line in refused.out.splitlines()[1:3]] == ["refused", "done"]
    assert "klamm: large: not created: INVALID_REPLICATION_FACTOR" in refused.err
    assert refused.out.splitlines()[-1] == "1 change made, 1 not made"
    done = topics("apply", "larg")
    assert (done.status, "there is no 'larg' (there are: large, made)" in done.err) == (2, True)
