"""Two clusters of one broker each: what a link copies, refuses and survives (docs/mirror.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from klamm.core.cli.mirror.commands import app
from klamm.core.config.settings import load_settings
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.header import BatchHeader
from klamm.core.records.partition import TopicPartition
from klammtest.broker import running_broker
from klammtest.logs import batch
from klammtest.mirrored import LARGE, Clusters, stored
from klammtest.waiting import eventually


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    folder = tmp_path_factory.mktemp("mirror")
    with ExitStack() as stack:
        source = stack.enter_context(running_broker(folder / "source"))
        link = {
            "bootstrap.servers": source.bootstrap,
            "topics.regex": r"trips\..*",
            "groups.regex": r"load\..*",
            "groups.interval.ms": 100,
            "metadata.interval.ms": 100,
            "fetch.max.wait.ms": 100,
        }
        short = {"offset.metadata.max.bytes": 10}
        target = stack.enter_context(running_broker(folder / "target", broker=short, mirrors={"berlin": link}))
        found = Clusters(source, target, load_settings({}).codec_table(), stack)
        assert "mirror berlin follows" in found.mirror("create", "berlin")
        yield found


def test_batches_of_every_codec_are_copied_byte_for_byte(clusters: Clusters) -> None:
    topic = "trips.codecs"
    clusters.create(topic, retention_ms="9000000000000")
    tp = TopicPartition(topic, 0)
    for name in ("gzip", "snappy", "lz4", "zstd"):
        clusters.source.produce({tp: batch([b"a" * 100, b"b"], codec=clusters.codecs.by_name(name))})
    clusters.write(topic, b"plain")
    clusters.follows(topic, 9)
    clusters.same(topic)
    assert clusters.target.describe_configs(topic)["retention.ms"].value == "9000000000000"


def test_offsets_of_groups_are_copied_and_those_of_a_group_that_has_moved_stay(clusters: Clusters) -> None:
    topic, group, tp = "trips.groups", "load.groups", TopicPartition("trips.groups", 0)
    clusters.create(topic)
    clusters.write(topic, b"a", b"b", b"c")
    clusters.source.commit_offsets(group, {tp: CommittedOffset(2)})
    clusters.source.commit_offsets("other", {tp: CommittedOffset(1)})
    clusters.follows(topic, 3)
    eventually(lambda: clusters.target.fetch_offsets(group).get(tp, CommittedOffset(-1)).offset == 2, "the copy")
    clusters.target.commit_offsets(group, {tp: CommittedOffset(1)})
    clusters.source.commit_offsets(group, {tp: CommittedOffset(3)})
    clusters.source.commit_offsets("load.after", {tp: CommittedOffset(3)})
    eventually(lambda: tp in clusters.target.fetch_offsets("load.after"), "a later copy")
    assert clusters.target.fetch_offsets(group)[tp].offset == 1
    clusters.target.commit_offsets(group, {tp: CommittedOffset(2)})  # the value that was copied, but its own now
    clusters.source.commit_offsets("load.later", {tp: CommittedOffset(3)})
    eventually(lambda: tp in clusters.target.fetch_offsets("load.later"), "a later copy")
    assert clusters.target.fetch_offsets(group)[tp].offset == 2
    assert tp not in clusters.target.fetch_offsets("other")


def test_a_group_that_goes_back_here_to_an_offset_that_was_copied_before_stays_there(clusters: Clusters) -> None:
    topic, group, tp = "trips.back", "load.back", TopicPartition("trips.back", 0)
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.follows(topic, 2)

    def copied(name: str, offset: int) -> None:
        clusters.source.commit_offsets(name, {tp: CommittedOffset(offset)})
        eventually(lambda: clusters.target.fetch_offsets(name).get(tp) == CommittedOffset(offset), "the copy")

    for offset in (1, 2):
        copied(group, offset)
    copied("load.back-and-forth", 1)  # groups are copied in the order of their names
    clusters.target.commit_offsets(group, {tp: CommittedOffset(1)})
    copied("load.back-and-forth", 2)
    assert clusters.target.fetch_offsets(group)[tp].offset == 1


def test_a_group_that_cannot_be_copied_stops_no_other(clusters: Clusters) -> None:
    topic, tp = "trips.some", TopicPartition("trips.some", 0)
    clusters.create(topic)
    clusters.write(topic, b"a")
    clusters.follows(topic, 1)
    clusters.source.commit_offsets("load.a", {tp: CommittedOffset(1, metadata="longer than the target takes")})
    clusters.source.commit_offsets("load.b", {tp: CommittedOffset(1, metadata="of Spark")})
    eventually(lambda: tp in clusters.target.fetch_offsets("load.b"), "the copy")
    assert clusters.target.fetch_offsets("load.b")[tp].metadata == "of Spark"
    eventually(
        lambda: "the offsets of group 'load.a' are not copied" in clusters.printed("status", "berlin"), "the reason"
    )
    clusters.source.delete_group("load.a")


def test_a_topic_that_is_deleted_while_it_is_paused_is_not_copied_again(clusters: Clusters) -> None:
    topic, other = "trips.paused", "trips.other"
    clusters.create(topic)
    clusters.create(other)
    clusters.follows(other, 0)
    clusters.write(topic, b"a")
    clusters.follows(topic, 1)
    clusters.mirror("pause", "berlin")
    clusters.target.delete_topics([topic])
    clusters.create("trips.meanwhile")
    eventually(lambda: clusters.row(other)["status"] == "PAUSED", "the brokers know it")
    assert not {topic, "trips.meanwhile"} & set(clusters.target.metadata().topics)
    clusters.mirror("resume", "berlin")
    clusters.follows(topic, 1)
    clusters.mirror("pause", "berlin", "--topic", topic)
    clusters.target.delete_topics([topic])
    eventually(lambda: clusters.row(topic)["status"] == "PAUSED", "it is created, and stays paused")
    assert clusters.row(topic)["end"] == 0, "a report of the former topic"
    clusters.mirror("resume", "berlin", "--topic", topic)
    clusters.follows(topic, 1)


def test_clients_cannot_change_a_mirror(clusters: Clusters) -> None:
    topic = "trips.refused"
    clusters.create(topic)
    clusters.write(topic, b"a")
    clusters.follows(topic, 1)
    for acks in (1, -1):
        with pytest.raises(BrokerError) as refused:
            clusters.target.produce({TopicPartition(topic, 0): batch([b"x"])}, acks=acks)
        assert refused.value.code is ErrorCode.policy_violation
    with pytest.raises(BrokerError) as refused:
        clusters.target.create_partitions(topic, 2)
    assert refused.value.code is ErrorCode.policy_violation
    with pytest.raises(BrokerError) as refused:
        clusters.target.delete_records({TopicPartition(topic, 0): 1})
    assert refused.value.code is ErrorCode.policy_violation
    clusters.write(topic, b"b")
    clusters.follows(topic, 2)
    clusters.same(topic)


def test_partitions_and_configurations_follow(clusters: Clusters) -> None:
    topic = "trips.grows"
    clusters.create(topic)
    clusters.follows(topic, 0)
    clusters.source.create_partitions(topic, 2)
    clusters.source.alter_configs(topic, {"retention.ms": "9000000000001"})
    clusters.write(topic, b"a", number=1)
    clusters.follows(topic, 1, number=1)
    clusters.same(topic, 1)
    eventually(
        lambda: clusters.target.describe_configs(topic)["retention.ms"].value == "9000000000001", "the retention"
    )


def test_a_gap_is_stored_and_copying_goes_on_behind_it(clusters: Clusters) -> None:
    topic, tp = "trips.gap", TopicPartition("trips.gap", 0)
    clusters.create(topic)
    clusters.write(topic, b"a")
    clusters.follows(topic, 1)
    clusters.mirror("pause", "berlin", "--topic", topic)
    eventually(lambda: clusters.row(topic)["status"] == "PAUSED", "the pause")
    clusters.write(topic, LARGE, LARGE, LARGE)
    clusters.source.delete_records({tp: 3})
    clusters.mirror("resume", "berlin", "--topic", topic)
    clusters.follows(topic, 4)
    row = clusters.row(topic)
    # The fetch that was under way at the pause may have taken a record more.
    assert [gap[1] for gap in row["gaps"]] == [3]
    clusters.shows_all(topic)
    assert stored(clusters.target, topic, offset=3) == stored(clusters.source, topic, offset=3)


def test_a_mirror_that_has_copied_nothing_has_no_gap_under_its_next_leader_either(clusters: Clusters) -> None:
    topic, tp = "trips.late", TopicPartition("trips.late", 0)
    clusters.mirror("pause", "berlin")
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.source.delete_records({tp: 2})
    clusters.mirror("resume", "berlin")
    clusters.follows(topic, 2)
    clusters.mirror("pause", "berlin", "--topic", topic)
    eventually(lambda: clusters.row(topic)["status"] == "PAUSED", "the pause")
    clusters.target_broker.restart()
    clusters.write(topic, LARGE, LARGE, LARGE)
    clusters.source.delete_records({tp: 4})
    clusters.mirror("resume", "berlin", "--topic", topic)
    clusters.follows(topic, 5)
    assert clusters.row(topic)["gaps"] == []


def test_a_topic_that_was_created_again_stops_and_is_copied_anew_once_it_is_deleted_here(clusters: Clusters) -> None:
    topic = "trips.again"
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.source.commit_offsets("load.again", {TopicPartition(topic, 0): CommittedOffset(2)})
    clusters.follows(topic, 2)
    eventually(lambda: clusters.target.fetch_offsets("load.again"), "the group")
    clusters.shows_all(topic)
    before = stored(clusters.target, topic)
    clusters.source.delete_topics([topic])
    clusters.create(topic, 2, retention_ms="9000000000002")
    clusters.write(topic, b"x", b"y", b"z")
    eventually(lambda: clusters.row(topic)["status"] == "SOURCE_REPLACED", "the new topic is noticed")
    assert stored(clusters.target, topic) == before
    assert "does not copy everything" in clusters.mirror("status", "berlin", fails=True)
    tp, beside = TopicPartition(topic, 0), TopicPartition("trips.beside", 0)
    clusters.create(beside.topic)
    clusters.source.commit_offsets("load.again", {tp: CommittedOffset(1)})
    clusters.source.commit_offsets("load.beside", {beside: CommittedOffset(0)})
    clusters.source.alter_configs(beside.topic, {"retention.ms": "70000"})
    eventually(lambda: beside in clusters.target.fetch_offsets("load.beside"), "a later group")
    eventually(lambda: retention_ms(clusters, beside.topic) == "70000", "a later configuration")
    assert clusters.target.fetch_offsets("load.again")[tp].offset == 2, "of the former topic's records"
    assert retention_ms(clusters, topic) == "-1", "the new topic's would delete the former one's"
    assert len(clusters.target.metadata([topic]).topics[topic].partitions) == 1
    clusters.target.delete_topics([topic])
    clusters.follows(topic, 3)
    clusters.same(topic)
    eventually(lambda: clusters.target.fetch_offsets("load.again").get(tp, CommittedOffset(2)).offset == 1, "its group")


def retention_ms(clusters: Clusters, topic: str) -> str | None:
    return clusters.target.describe_configs(topic)["retention.ms"].value


def test_a_mirroring_broker_that_was_killed_goes_on_without_a_duplicate(clusters: Clusters) -> None:
    topic = "trips.killed"
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.follows(topic, 2)
    clusters.target_broker.kill()
    clusters.write(topic, b"c")
    clusters.target_broker.start()
    clusters.write(topic, b"d")
    clusters.follows(topic, 4)
    clusters.same(topic)


def test_commands_refuse_what_is_wrong(clusters: Clusters) -> None:
    assert "there is no such link (there are: berlin)" in clusters.mirror("create", "paris", fails=True)
    assert "no mirror 'paris'" in clusters.mirror("status", "paris", fails=True)
    assert "has no topic 'flights'" in clusters.mirror("pause", "berlin", "--topic", "flights", fails=True)
    clusters.create("trips.kept")
    clusters.follows("trips.kept", 0)
    assert "promote them first" in clusters.mirror("drop", "berlin", fails=True)
    assert "berlin" in clusters.mirror("list")
    changed = clusters.target_broker.folder / "changed.yaml"
    changed.write_text(clusters.target_broker.config_path.read_text().replace("berlin:", "berlin:\n    prefix: old."))
    result = CliRunner().invoke(app, ["create", "berlin", "--config", str(changed)])
    assert "mirrors.berlin.prefix: the link's topics here begin with ''" in str(result.exception)


def test_a_diverging_epoch_is_answered_to_clients(clusters: Clusters, tmp_path: Path) -> None:
    """As Apache Kafka does for a consumer that names the epoch of its last record (Fetch 12)."""
    from klamm.core.client.cluster_client import Lineage

    topic, tp = "epochs", TopicPartition("epochs", 0)
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    ((node, _),) = clusters.source.by_leader([tp]).items()

    def fetched(offset: int, last_epoch: int) -> Any:
        lineage = {tp: Lineage(last_epoch=last_epoch)}
        return clusters.source.fetch(node, {tp: offset}, lineages=lineage, max_wait_ms=0)[tp]

    epoch = BatchHeader.parse(stored(clusters.source, topic)).leader_epoch
    assert fetched(1, epoch).records
    assert fetched(5, epoch).diverging == (epoch, 2)
    assert fetched(1, epoch + 1).error is ErrorCode.offset_out_of_range
