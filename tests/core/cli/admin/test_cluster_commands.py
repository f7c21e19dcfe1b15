"""`klamm topics` and `klamm groups` against a real broker."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm import Consumer, Producer
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker

Klamm = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("cli")) as running:
        text = running.config_path.read_text()
        for section in ("producer", "consumer"):
            text += f"{section}: {{bootstrap.servers: '{running.bootstrap}'}}\n"
        text += "topics:\n  of-file: {partitions: 2, config: {retention.ms: -1}}\n  second: {}\n"
        running.config_path.write_text(text)
        yield running


@pytest.fixture(autouse=True)
def here(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(broker.folder)
    return broker.folder


def test_the_files_topics_are_created_once(klamm: Klamm) -> None:
    assert klamm("topics", "create", "--all-from-config").out == "of-file: created\nsecond: created\n"
    assert klamm("topics", "create", "--all-from-config").out == "of-file: exists\nsecond: exists\n"
    assert klamm("topics", "list").out.split() >= ["of-file", "second"]
    shown = klamm("topics", "describe", "of-file").out
    assert len([line for line in shown.splitlines() if line.split()[0].isdigit()]) == 2
    assert "\nretention.ms=-1\n" in shown


def test_a_refused_topic_of_the_file_does_not_stop_the_others(klamm: Klamm, broker: RunningBroker) -> None:
    before = broker.config_path.read_text()
    topics = "topics:\n  there: {}\n  large: {replication.factor: 2}\n  behind: {}\n"
    broker.config_path.write_text(before[: before.index("topics:")] + topics)
    try:
        klamm("topics", "create", "there")
        done = klamm("topics", "create", "--all-from-config")
    finally:
        broker.config_path.write_text(before)
    why = "topic 'large' with replication factor 2: it is larger than the number of live brokers, 1"
    assert (done.status, done.err) == (1, f"klamm: INVALID_REPLICATION_FACTOR: {why}\n")
    assert done.out == "there: exists\nbehind: created\n"
    for name in ("there", "behind"):
        assert klamm("topics", "delete", name).status == 0


def test_a_minimum_above_the_number_of_replicas_is_said(klamm: Klamm, broker: RunningBroker) -> None:
    """It is accepted, as by Kafka; an acks=all that should wait for two has the one replica only."""
    done = klamm("topics", "create", "lone", "--set", "min.insync.replicas=2")
    said = "topic 'lone': min.insync.replicas={} counts as 1, since it has 1 replica"
    assert (done.status, done.out, done.err) == (0, "lone: created\n", f"klamm: {said.format(2)}\n")
    assert klamm("topics", "alter", "lone", "--set", "min.insync.replicas=3").err == f"klamm: {said.format(3)}\n"
    assert klamm("topics", "alter", "lone", "--set", "min.insync.replicas=1").err == ""
    assert klamm("topics", "alter", "lone", "--unset", "min.insync.replicas").err == ""
    assert [number for number in range(5) if said.format(number) in broker.log()] == [2, 3]
    klamm("topics", "delete", "lone")


def test_a_topics_life(klamm: Klamm) -> None:
    assert klamm("topics", "create", "t", "-p", "2", "--set", "segment.bytes=1000").out == "t: created\n"
    done = klamm("topics", "create", "t")
    assert done.status == 1
    assert done.err == "klamm: TOPIC_ALREADY_EXISTS: topic 't' already exists\n"
    assert klamm("topics", "alter", "t", "--set", "retention.ms=7", "--unset", "segment.bytes", "-p", "3").status == 0
    shown = klamm("topics", "describe", "t").out
    assert "retention.ms=7" in shown
    assert "segment.bytes=1000" not in shown
    assert [line.split()[:2] for line in shown.splitlines()[1:4]] == [["0", "0"], ["1", "0"], ["2", "0"]]
    assert klamm("topics", "delete", "t").out == "t: deleted\n"
    done = klamm("topics", "describe", "t")
    assert (done.status, "there is no topic 't'" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create",), "name one topic, or use --all-from-config"),
        (("create", "x", "--all-from-config"), "name one topic, or use --all-from-config"),
        (("create", "a/b"), "topic name 'a/b': only letters, digits"),
        (("create", ".."), "'..' is not a valid topic name"),
        (
            ("create", "x", "--set", "retention.mss=1"),
            "retention.mss: unknown topic config; did you mean retention.ms?",
        ),
        (("create", "x", "--set", "retention.ms"), "--set retention.ms: expected KEY=VALUE"),
        (("create", "x", "--set", "retention.ms=1", "--set", "retention.ms=2"), "retention.ms is given twice"),
        (("list", "--config", "nope.yaml", "--bootstrap", "127.0.0.1:1"), "nope.yaml: no such file"),
        (("alter", "x"), "nothing to change"),
        (("create", "x", "--config", "retention.ms=1"), "set a topic config with --set retention.ms=1"),
        (("alter", "x", "--config", "retention.ms=1"), "set a topic config with --set retention.ms=1"),
        (("alter", "x", "--set", "retention.ms=soon"), "retention.ms: expected a whole number of ms, or a time"),
    ],
)
def test_what_is_wrong_is_said_before_a_broker_is_asked(klamm: Klamm, arguments: tuple[str, ...], words: str) -> None:
    done = klamm("topics", *arguments)
    assert done.status == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def test_records_that_are_not_deleted_say_why(klamm: Klamm) -> None:
    klamm("topics", "create", "table", "--set", "cleanup.policy=compact")
    klamm("topics", "create", "short")
    done = klamm("topics", "delete-records", "table")
    assert (done.status, "its topic is only compacted" in done.err) == (1, True)
    done = klamm("topics", "delete-records", "short", "--before", "7")
    assert (done.status, "--before is above its end" in done.err) == (1, True)
    assert klamm("topics", "delete-records", "short").out == "short-0: starts at 0\n"


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_groups_of_both_protocols_and_their_lag(klamm: Klamm, broker: RunningBroker, protocol: str) -> None:
    topic, group = f"lag-{protocol}", f"group-{protocol}"
    klamm("topics", "create", topic, "-p", "2")
    settings = load_settings("klamm.yaml")
    with Producer(settings) as producer:
        for i in range(10):
            producer.send(topic, b"x", partition=i % 2)
    changes = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consuming = settings.with_(consumer=settings.consumer.model_copy(update=changes))
    with Consumer(consuming, topics=[topic]) as consumer:
        seen = 0
        while seen < 10:
            seen += len(consumer.poll(1.0))
        consumer.commit()
        with Producer(settings) as producer:
            producer.send(topic, b"late", partition=0)
        listed = {line.split()[0]: line.split()[1:] for line in klamm("groups", "list").out.splitlines()}
        assert listed[group] == [protocol, "Stable"]
        rows = klamm("groups", "describe", group).out.splitlines()
        assert [row.split()[:5] for row in rows[1:3]] == [[topic, "0", "5", "6", "1"], [topic, "1", "5", "5", "0"]]
        assert all(row.split()[5] != "-" for row in rows[1:3])
        assert rows[3] == "total lag 1"
    assert klamm("groups", "describe", group).status == 0


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_partitions_without_a_commit_are_shown(klamm: Klamm, broker: RunningBroker, protocol: str) -> None:
    topic, group = f"uncommitted-{protocol}", f"begins-{protocol}"
    klamm("topics", "create", topic, "-p", "3")
    settings = load_settings("klamm.yaml")
    changes = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "earliest"}
    consuming = settings.with_(consumer=settings.consumer.model_copy(update=changes))
    with Consumer(consuming, topics=[topic]) as consumer:
        while len(consumer.assignment()) < 3:
            consumer.poll(0.2)
        done = klamm("groups", "describe", group)
        rows = [row.split() for row in done.out.splitlines()]
        assert [row[:5] for row in rows[1:4]] == [[topic, str(n), "-", "0", "-"] for n in range(3)]
        assert all(row[5] != "-" for row in rows[1:4])
        assert done.out.splitlines()[4:] == ["total lag 0, unknown for 3 of 3 partitions"]


def test_partitions_beside_a_committed_one_are_shown(klamm: Klamm, broker: RunningBroker) -> None:
    """Offsets left by a client that commits only where it has read: records that no consumer has read are not a lag of
    0.
    """
    klamm("topics", "create", "beside", "-p", "3")
    settings = load_settings("klamm.yaml")
    with Producer(settings) as producer:
        for number in range(3):
            producer.send("beside", b"x", partition=number)
    with ClusterClient(broker.bootstrap, codecs=settings.codec_table()) as client:
        client.commit_offsets("gone", {TopicPartition("beside", 1): CommittedOffset(1)})
    lines = klamm("groups", "describe", "gone").out.splitlines()
    rows = [line.split()[1:] for line in lines[1:4]]
    assert rows == [["0", "-", "1", "-", "-"], ["1", "1", "1", "0", "-"], ["2", "-", "1", "-", "-"]]
    assert lines[4:] == ["total lag 0, unknown for 2 of 3 partitions"]


def test_a_partition_that_is_offline_hides_no_other(klamm: Klamm, tmp_path: Path) -> None:
    with running_broker(tmp_path) as one:
        there = ("--config", str(one.config_path))
        klamm("topics", "create", "t", "-p", "3", "--set", "retention.ms=-1", *there, "-b", one.bootstrap)
        settings = load_settings({"producer": {"bootstrap.servers": one.bootstrap}})
        with Producer(settings) as producer:
            for number in range(3):
                producer.send("t", b"x", partition=number)
        with ClusterClient(one.bootstrap, codecs=settings.codec_table()) as client:
            client.commit_offsets("g", {TopicPartition("t", number): CommittedOffset(1) for number in range(3)})
        one.stop()
        shutil.rmtree(one.log_dir / "t-1")
        one.start()
        done = klamm("topics", "describe", "t", *there, "-b", one.bootstrap)
        rows = [row.split() for row in done.out.splitlines()[:4]]
        assert (done.status, [(row[0], row[1], row[4], row[5]) for row in rows[-3:]]) == (
            0,
            [("0", "0", "0", "1"), ("1", "none", "-", "-"), ("2", "0", "0", "1")],
        )
        assert "retention.ms=-1" in done.out
        assert done.err.startswith("klamm: t-1 is offline: ")
        done = klamm("groups", "describe", "g", *there, "-b", one.bootstrap)
        rows = [row.split()[1:5] for row in done.out.splitlines()[1:4]]
        assert (done.status, rows) == (0, [["0", "1", "1", "0"], ["1", "1", "-", "-"], ["2", "1", "1", "0"]])
        assert done.err.count("\n") == 1


def test_a_commit_beyond_the_end_is_no_lag_of_0(klamm: Klamm, broker: RunningBroker) -> None:
    klamm("topics", "create", "cut", "-p", "1")
    with ClusterClient(broker.bootstrap, codecs=load_settings("klamm.yaml").codec_table()) as client:
        client.commit_offsets("beyond", {TopicPartition("cut", 0): CommittedOffset(7)})
    lines = klamm("groups", "describe", "beyond").out.splitlines()
    assert (lines[1].split()[1:5], lines[2]) == (["0", "7", "0", "-7"], "total lag 0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topics", "delete", "nearby-topix"), "there is no topic 'nearby-topix'; did you mean 'nearby-topic'?"),
        (("topics", "alter", "nearby-topix", "-p", "5"), "did you mean 'nearby-topic'?"),
        (("topics", "alter", "nearby-topix", "--set", "retention.ms=5"), "did you mean 'nearby-topic'?"),
        (("groups", "describe", "nearby-groop"), "has neither offsets nor members; did you mean 'nearby-group'?"),
        (("groups", "delete", "nearby-groop"), "there is no group 'nearby-groop'; did you mean 'nearby-group'?"),
        (("groups", "delete", "nearby-groop", "--topic", "x"), "group 'nearby-groop' has no offsets; did you mean"),
        (("groups", "delete", "nearby-group", "--topic", "x"), "group 'nearby-group' has no offset of 'x'"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(
    klamm: Klamm, broker: RunningBroker, arguments: tuple[str, ...], words: str
) -> None:
    klamm("topics", "create", "nearby-topic", "-p", "1")
    with ClusterClient(broker.bootstrap, codecs=load_settings("klamm.yaml").codec_table()) as client:
        client.commit_offsets("nearby-group", {TopicPartition("nearby-topic", 0): CommittedOffset(0)})
    done = klamm(*arguments)
    assert (done.status, words in done.err, done.err.count("\n")) == (1, True, 1), done.err


@pytest.mark.parametrize("protocol", ["registry", "classic"])
def test_a_group_with_members_is_not_deleted_and_says_why(klamm: Klamm, broker: RunningBroker, protocol: str) -> None:
    topic, group = f"in-use-{protocol}", f"live-{protocol}"
    klamm("topics", "create", topic, "-p", "1")
    settings = load_settings("klamm.yaml")
    changes = {"group_id": group, "group_protocol": protocol}
    with Consumer(settings.with_(consumer=settings.consumer.model_copy(update=changes)), topics=[topic]) as consumer:
        while not consumer.assignment():
            consumer.poll(0.2)
        consumer.position(TopicPartition(topic, 0))  # waits: before, there is nothing to commit
        consumer.commit()
        for arguments in ((group,), (group, "--topic", topic)):
            done = klamm("groups", "delete", *arguments)
            assert (done.status, "the group has active members" in done.err) == (1, True), done.err


def test_an_unknown_group_is_one_line(klamm: Klamm) -> None:
    done = klamm("groups", "describe", "nobody")
    assert (done.status, done.out) == (1, "")
    assert "group 'nobody' has neither offsets nor members" in done.err


def test_the_name_of_a_group_forges_no_row(klamm: Klamm, broker: RunningBroker) -> None:
    forged = "forger\nbilling  registry  Stable\x1b[2K\r\u202e[bold]"
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        client.create_topics({"forged": NewTopic(1, 1)})
        client.commit_offsets(forged, {TopicPartition("forged", 0): CommittedOffset(0)})
    shown = r"forger\nbilling  registry  Stable\x1b[2K\r\u202e[bold]"
    listed = klamm("groups", "list").out
    assert [line for line in listed.split("\n") if "billing" in line and line.startswith(shown)]
    assert all(line.isprintable() for line in listed.split("\n"))
    unknown = klamm("groups", "describe", "nobody\nforged")
    assert unknown.status == 1
    assert unknown.err.endswith("\n")
    assert unknown.err[:-1].isprintable()
    assert klamm("groups", "delete", forged).out == f"{shown}: deleted\n"
