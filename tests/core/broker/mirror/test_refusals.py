"""What a mirror must not or cannot copy: one line in the log and in `klamm mirror status`, which says what to do, while
other topics and links go on (docs/mirror.md, "What a link refuses").

One cluster with several links: `berlin` to a broker of Klamm, the others to brokers in memory that answer what no
broker of today does.
"""

from __future__ import annotations

import errno
import json
import logging
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest
import yaml
from typer.testing import CliRunner

from klamm.core.broker.mirror import link_control
from klamm.core.broker.mirror.link_fetches import LinkFetches
from klamm.core.broker.mirror.source_fetcher import SourceFetcher
from klamm.core.cli.mirror.commands import app
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.mirrors import (
    LinkNode,
    MirrorTopicNode,
    PartitionReport,
    ReportNode,
    link_path,
    read_links,
    read_topics,
    remove_link,
    report_path,
    topic_path,
    update,
)
from klamm.core.config.sections.mirror import MirrorConfig
from klamm.core.config.settings import load_settings
from klamm.core.errors import BrokerError, ConfigError, ErrorCode
from klamm.core.interfaces.coordination import Coordination, CoordinationUnavailableError
from klamm.core.mirror.completeness import CompleteUntil
from klamm.core.mirror.planner import plan_link
from klamm.core.protocol.apis import SPOKEN, ApiKey
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.brokers.inprocess import broker_thread
from klammtest.brokers.scripted_cluster import Led, ScriptedCluster, scripted_cluster
from klammtest.faulty import fault_hook
from klammtest.logs import append, batch, codec_table, open_log
from klammtest.waiting import PATIENCE_S, eventually, within

QUICK = {"metadata.interval.ms": 100, "fetch.max.wait.ms": 50}
ODD = {"odd.old": 1, "odd.configured": 1, "odd.good": 1, "odd.split": 2, "__consumer_offsets": 1, "_schemas": 1}


class World:
    """The target with its links' file, and the source of `berlin`."""

    def __init__(self, folder: Path, source: RunningBroker, stack: ExitStack) -> None:
        coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
        self._target = stack.enter_context(broker_thread(folder, coordination))
        self.data = folder / "data"
        self.bootstrap = f"127.0.0.1:{self._target.advertised[0].port}"
        self._file = folder / "klamm.yaml"
        client = {"bootstrap.servers": self.bootstrap}
        self._sections: dict[str, Any] = {"coordination": coordination, "producer": client, "mirrors": {}}
        self.source = stack.enter_context(ClusterClient(source.bootstrap, codecs=codec_table()))
        self.target = stack.enter_context(ClusterClient(self.bootstrap, codecs=codec_table()))
        self.source_bootstrap = source.bootstrap

    @contextmanager
    def coordination(self) -> Iterator[Coordination]:
        found = load_settings(self._file).make_coordination()
        found.start(30)
        try:
            yield found
        finally:
            found.close()

    def run(self, *arguments: str) -> tuple[str, str]:
        """Runs `klamm mirror`; returns its output and its error."""
        result = CliRunner().invoke(app, [*arguments, "--config", str(self._file)])
        return result.output, "" if result.exception is None else str(result.exception)

    def link(self, name: str, bootstrap: str, **keys: object) -> None:
        section = {"bootstrap.servers": bootstrap, **QUICK, **{key.replace("_", "."): keys[key] for key in keys}}
        self._sections["mirrors"][name] = section
        self._file.write_text(yaml.safe_dump(self._sections))
        assert self.run("create", name)[1] == ""

    def says(self, link: str, *words: str) -> str:
        """Waits until one line of `status` has all the words; returns it. The command must fail."""

        lines: list[str] = []

        def found() -> bool:
            output, error = self.run("status", link)
            lines[:] = [line for line in output.splitlines() if all(word in line for word in words)]
            return len(lines) == 1 and "does not copy everything" in error

        assert within(found, PATIENCE_S), (words, self.run("status", link))
        return lines[0]

    def is_well(self, link: str) -> None:
        """Waits until `status` succeeds: a reason is reported for a moment after the record that it was about."""
        assert within(lambda: self.run("status", link)[1] == "", PATIENCE_S), self.run("status", link)

    def failed(self, link: str, topic: str) -> None:
        """Waits until the topic's partition is reported as FAILED, which its reason may precede."""
        eventually(lambda: "FAILED" in self.run("status", link, "--topic", topic)[0], f"{topic} is FAILED")

    def follows(self, link: str, topic: str, end: int) -> None:
        def reached() -> bool:
            rows = json.loads(self.run("status", link, "--topic", topic, "--json")[0])["partitions"]
            return [(row["status"], row["end"]) for row in rows] == [("FOLLOWING", end)]

        assert within(reached, PATIENCE_S), (topic, end, self.run("status", link))

    def goes_on(self) -> None:
        """A record more is copied by the link `berlin`."""
        self.source.produce({TopicPartition("trips.good", 0): batch([b"x"])})
        ((end, _),) = self.source.list_offsets({TopicPartition("trips.good", 0): -1}).values()
        self.follows("berlin", "trips.good", end)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("refusals")
    with ExitStack() as stack:
        source = stack.enter_context(running_broker(folder / "source"))
        (folder / "target").mkdir()
        found = World(folder / "target", source, stack)
        found.source.create_topics({"trips.good": NewTopic(1, 1, {"retention.ms": "-1"})})
        found.link("berlin", source.bootstrap, **{"topics.regex": r"trips\..*"})
        found.goes_on()
        yield found


@pytest.fixture
def odd(world: World) -> Iterator[ScriptedCluster]:
    """A source in memory; the links to it are dropped at the end."""
    with scripted_cluster(ODD, 1) as cluster:
        cluster.stored[TopicPartition("odd.good", 0)].append((1_700_000_000_000, None, b"a", ()))
        try:
            yield cluster
        finally:
            for row in map(json.loads, world.run("list", "--json")[0].splitlines()):
                if row["source"] == cluster.bootstrap:
                    dropped(world, row["link"])


def dropped(world: World, link: str) -> None:
    """Removes a link and its topics, so that its source may end."""
    world.run("pause", link)

    def done() -> bool:
        """Deletes the topics again: one may have been created just after the pause was stored."""
        names = {row["topic"] for row in json.loads(world.run("status", link, "--json")[0])["partitions"]}
        if names:
            with suppress(BrokerError):  # it is being deleted already
                world.target.delete_topics(sorted(names))
        return world.run("drop", link)[1] == ""

    eventually(done, f"link {link} is removed")


def test_a_controller_that_has_not_seen_that_a_topic_was_created_changes_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose session has ended while the source did not answer it, so that the next one has created the topic."""

    def known() -> MirrorTopicNode:
        with world.coordination() as coordination:
            return read_topics(coordination, "berlin")["trips.good"]

    def from_an_older_image(link: str, config: Any, own: str, source: Any, target: Mapping[str, Any]) -> Any:
        plan = plan_link(link, config, own, source, {name: target[name] for name in target if name != "trips.good"})
        planned.append("trips.good" in plan.create)
        return plan

    before, planned = known(), list[bool]()
    with monkeypatch.context() as changed:
        changed.setattr(link_control, "plan_link", from_an_older_image)
        eventually(lambda: planned.count(True) > 1, "the first plan was carried out")
    assert known() == before
    world.goes_on()
    world.is_well("berlin")


def test_a_link_that_was_dropped_and_created_again_is_reported_again(world: World) -> None:
    world.link("again", world.source_bootstrap, topics=["trips.good"])
    said = world.says("again", "topic trips.good exists and is a mirror of link berlin")
    with world.coordination() as coordination:
        config = read_links(coordination)["again"].config
        remove_link(coordination, "again")
        update(coordination, link_path("again"), LinkNode, lambda _: LinkNode(config=config))
    assert world.says("again", "topic trips.good exists and is a mirror of link berlin") == said
    dropped(world, "again")


def test_a_promotion_asks_the_source_for_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of the source may hang, while another one leads and takes records: its last answer is old then."""
    topic, hangs, continued = "trips.hung", threading.Event(), threading.Event()

    def fetch_later(fetcher: SourceFetcher) -> Any:
        if any(each.source.topic == topic for each in fetcher._share.values()):
            hangs.set()
            continued.wait(PATIENCE_S)
        return fetch(fetcher)

    fetch = SourceFetcher._fetch
    world.source.create_topics({topic: NewTopic(1, 1, {"retention.ms": "-1"})})
    world.source.produce({TopicPartition(topic, 0): batch([b"a"])})
    world.follows("berlin", topic, 1)
    with monkeypatch.context() as changed, ThreadPoolExecutor(1) as thread:
        changed.setattr(SourceFetcher, "_fetch", fetch_later)
        eventually(hangs.is_set, "the source's answers come later")
        world.source.produce({TopicPartition(topic, 0): batch([b"b"])})
        assert f"{topic}-0 has the source's records up to 1 of 2" in world.run("promote", "berlin", "--topic", topic)[1]
        promotion = thread.submit(world.run, "promote", "berlin", "--topic", topic, "--drain", "--quiet", "1s")
        wait([promotion], 3)
        continued.set()
        assert f"{topic}-0: clients write from offset 2 on" in promotion.result()[0]
    world.goes_on()


def test_partitions_that_cannot_be_added_here_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with fewer live brokers than replicas."""

    def refused(*_: Any) -> None:
        raise BrokerError(ErrorCode.invalid_replication_factor, "3 is larger than 2")

    world.source.create_topics({"trips.grows": NewTopic(1, 1, {"retention.ms": "-1"})})
    world.follows("berlin", "trips.grows", 0)
    with monkeypatch.context() as changed:
        changed.setattr(Cluster, "create_partitions", refused)
        world.source.create_partitions("trips.grows", 2)
        line = world.says("berlin", "topic trips.grows: mirrored without the source's new partitions: INVALID_REPLICA")
    assert "3 is larger than 2" in line
    world.is_well("berlin")


def test_a_link_to_its_own_cluster_copies_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        world.link("mine", world.bootstrap, **{"topics.regex": ".*", "prefix": "copy."})
        line = world.says("mine", f"{world.bootstrap} is this cluster")
    assert "correct bootstrap.servers, then run `klamm mirror create mine`" in line
    assert logged(caplog, "mirror mine: ") == 1
    assert not [name for name in world.target.metadata().topics if name.startswith("copy.")]
    world.goes_on()
    dropped(world, "mine")


def test_a_source_without_fetch_12_copies_nothing(world: World, odd: ScriptedCluster) -> None:
    (broker,) = odd.brokers.values()
    low, _ = SPOKEN[ApiKey.FETCH]
    broker.versions[ApiKey.FETCH] = (low, 11)
    world.link("old", odd.bootstrap, **{"topics.regex": r"odd\..*"})
    line = world.says("old", "broker 1 of the source serves Fetch only up to version 11")
    assert "upgrade it to Apache Kafka 3.1 or newer" in line
    assert not [name for name in world.target.metadata().topics if name.startswith("odd.")]
    world.goes_on()


def test_a_topic_that_exists_here_is_not_mirrored(world: World) -> None:
    world.target.create_topics({"trips.here": NewTopic(1, 1)})
    world.source.create_topics({"trips.here": NewTopic(1, 1)})
    line = world.says("berlin", "topic trips.here: not mirrored", "is an ordinary topic")
    assert "delete it, or set another prefix" in line
    world.goes_on()
    world.source.delete_topics(["trips.here"])
    world.is_well("berlin")


def test_records_of_an_old_format_stop_their_partition(world: World, odd: ScriptedCluster) -> None:
    odd.stored[TopicPartition("odd.old", 0)].batches.append((1, message(b"a", magic=1)))
    world.link("odd", odd.bootstrap, topics=["odd.old", "odd.good"])
    line = world.says("odd", "odd.old-0: the source's record at offset 0 has magic 1")
    assert "delete such records there (retention, DeleteRecords), or leave the topic out" in line
    world.failed("odd", "odd.old")
    world.follows("odd", "odd.good", 1)
    world.goes_on()


def test_another_cluster_behind_the_addresses_copies_nothing(world: World, odd: ScriptedCluster) -> None:
    world.link("moved", odd.bootstrap, topics=["odd.good"])
    world.follows("moved", "odd.good", 1)
    odd.cluster_id = "elsewhere"
    line = world.says("moved", "is cluster elsewhere, and the link has copied from scripted")
    assert "to copy from the other one, promote or delete the link's topics, run `klamm mirror drop moved`" in line
    odd.stored[TopicPartition("odd.good", 0)].append((1_700_000_000_000, None, b"of another cluster", ()))
    asked = len(odd.asked(ApiKey.METADATA))
    eventually(lambda: len(odd.asked(ApiKey.METADATA)) > asked + 1, "the source is compared again")
    rows = json.loads(world.run("status", "moved", "--json")[0])["partitions"]
    assert [(row["status"], row["end"]) for row in rows] == [("FAILED", 1)]
    world.goes_on()
    odd.cluster_id = "scripted"
    world.follows("moved", "odd.good", 2)


def test_a_pattern_leaves_internal_topics_out_and_says_so(world: World, odd: ScriptedCluster) -> None:
    world.link("all", odd.bootstrap, **{"topics.regex": r"odd\.good|_.*"})
    world.follows("all", "odd.good", 1)
    eventually(lambda: "__consumer_offsets" in world.run("status", "all")[0], "the topics that are left out")
    output, error = world.run("status", "all")
    assert "topic __consumer_offsets is left out: an internal topic of the source is never mirrored" in output
    assert "topic _schemas is left out: to mirror it, list it in `topics`" in output
    assert error == ""
    world.link("all", odd.bootstrap, topics=["odd.good", "__consumer_offsets"])
    line = world.says("all", "topic __consumer_offsets: not mirrored")
    assert "remove it from `topics`" in line
    world.follows("all", "odd.good", 1)


def test_a_topic_whose_configuration_is_refused_here_is_not_mirrored(world: World, odd: ScriptedCluster) -> None:
    odd.configs["odd.configured"] = {"compression.type": "lzo", "retention.ms": "-1"}
    keys = ["retention.ms", "compression.type"]
    world.link("strict", odd.bootstrap, topics=["odd.configured", "odd.good"], configs=keys)
    line = world.says("strict", "topic odd.configured: not mirrored: this cluster refuses", "compression.type")
    assert "change it there, or name in the link's `configs` only keys that are to be copied" in line
    world.follows("strict", "odd.good", 1)
    assert "odd.configured" not in world.target.metadata().topics
    odd.configs["odd.good"] = {"compression.type": "lzo"}
    world.says("strict", "topic odd.good: mirrored with its earlier configuration: this cluster refuses")
    odd.stored[TopicPartition("odd.good", 0)].append((1_700_000_000_000, None, b"b", ()))
    world.follows("strict", "odd.good", 2)
    world.goes_on()


def test_a_link_names_topic_configurations_that_exist() -> None:
    link = {"bootstrap.servers": "b:9092", "topics": ["a"], "configs": ["retention.ms", "clean.policy"]}
    with pytest.raises(ConfigError, match=r"clean.policy: unknown topic config; did you mean cleanup.policy\?"):
        load_settings({"mirrors": {"berlin": link}})


def test_a_topic_whose_configuration_the_source_does_not_show_stops_no_other(
    world: World, odd: ScriptedCluster
) -> None:
    odd.hidden = {"odd.configured"}
    world.link("blind", odd.bootstrap, topics=["odd.configured", "odd.good"])
    line = world.says("blind", "topic odd.configured: not mirrored: the source does not show its configuration")
    assert "TOPIC_AUTHORIZATION_FAILED" in line
    assert "grant DESCRIBE_CONFIGS there" in line
    world.follows("blind", "odd.good", 1)
    odd.hidden = {"odd.good"}
    world.follows("blind", "odd.configured", 0)
    world.says("blind", "topic odd.good: mirrored with its earlier configuration")


def test_a_partition_without_a_leader_at_the_source_stops_no_other_of_its_topic(
    world: World, odd: ScriptedCluster
) -> None:
    led, unled = TopicPartition("odd.split", 0), TopicPartition("odd.split", 1)
    odd.led[unled].leader = -1
    odd.stored[led].append((1_700_000_000_000, None, b"a", ()))
    world.link("split", odd.bootstrap, topics=["odd.split"])
    world.says("split", "odd.split-1: no broker of the source leads it")

    def states() -> list[tuple[str, int]]:
        rows = json.loads(world.run("status", "split", "--json")[0])["partitions"]
        return [(row["status"], row["end"]) for row in rows]

    eventually(lambda: states() == [("FOLLOWING", 1), ("SOURCE_UNREACHABLE", 0)], "the other partition is copied")
    odd.led[unled].leader = 1
    world.is_well("split")


def test_a_partition_that_no_broker_of_the_source_serves_is_named(world: World, odd: ScriptedCluster) -> None:
    """Its leader, by the metadata, answers that it is not."""
    served = TopicPartition("odd.good", 0)
    odd.behind[1] = dict(odd.led)
    odd.led[served] = Led(2)
    world.link("unserved", odd.bootstrap, topics=["odd.good"])
    world.says("unserved", "odd.good-0: no broker of the source serves it now")
    odd.led[served] = Led(1)
    world.follows("unserved", "odd.good", 1)
    world.is_well("unserved")


def test_a_partition_goes_on_when_its_disk_has_space_again(world: World) -> None:
    """The quota of one partition's directory is used up."""
    world.source.create_topics({"trips.full": NewTopic(1, 1, {"retention.ms": "-1"})})
    world.follows("berlin", "trips.full", 0)
    with fault_hook(no_space_below("trips.full-0")):
        world.source.produce({TopicPartition("trips.full", 0): batch([b"a"])})
        line = world.says("berlin", "trips.full-0: the disk of broker 0 is full")
        assert "free space, and it goes on" in line
        world.failed("berlin", "trips.full")
        world.goes_on()
    world.follows("berlin", "trips.full", 1)
    world.is_well("berlin")


def test_a_compacted_topic_whose_tombstones_may_be_missed_stops_until_it_is_copied_again(world: World) -> None:
    topic = "trips.compacted"
    world.source.create_topics({topic: NewTopic(1, 1, {"cleanup.policy": "compact"})})
    world.source.produce({TopicPartition(topic, 0): batch([b"a"])})
    world.follows("berlin", topic, 1)
    world.run("pause", "berlin", "--topic", topic)
    world.source.alter_configs(topic, {"delete.retention.ms": "0"})
    eventually(
        lambda: world.target.describe_configs(topic)["delete.retention.ms"].value == "0", "the configuration is copied"
    )
    world.source.produce({TopicPartition(topic, 0): batch([None])})
    world.run("resume", "berlin", "--topic", topic)
    line = world.says("berlin", f"{topic}-0: not copied for longer than delete.retention.ms")
    assert "--take-new of `klamm mirror resolve` copies it again" in line
    world.goes_on()
    world.source.alter_configs(topic, {"delete.retention.ms": "86400000"})
    eventually(
        lambda: world.target.describe_configs(topic)["delete.retention.ms"].value == "86400000", "it is copied too"
    )
    assert world.run("resolve", "berlin", "--topic", topic, "--take-new", "--yes")[1] == ""
    world.follows("berlin", topic, 2)
    world.is_well("berlin")


def test_a_decision_about_tombstones_counts_for_one_stop(world: World) -> None:
    topic = "trips.twice"
    world.source.create_topics({topic: NewTopic(1, 1, {"cleanup.policy": "compact"})})
    world.source.produce({TopicPartition(topic, 0): batch([b"a"])})
    world.follows("berlin", topic, 1)

    def has_retention(ms: str) -> bool:
        return world.target.describe_configs(topic)["delete.retention.ms"].value == ms

    def stops() -> None:
        """Makes the partition STALE without a record more."""
        for retention_ms in ("0", "86400000"):
            world.source.alter_configs(topic, {"delete.retention.ms": retention_ms})
            eventually(partial(has_retention, retention_ms), "the configuration is copied")
            if retention_ms == "0":
                world.says("berlin", f"{topic}-0: not copied for longer than delete.retention.ms")

    stops()
    assert world.run("resolve", "berlin", "--topic", topic, "--continue")[1] == ""
    world.follows("berlin", topic, 1)
    with world.coordination() as coordination:
        eventually(lambda: not read_topics(coordination, "berlin")[topic].decisions, "the decision is forgotten")
    stops()
    world.says("berlin", f"{topic}-0: not copied for longer than delete.retention.ms")
    assert world.run("resolve", "berlin", "--topic", topic, "--continue")[1] == ""


def test_a_topic_that_becomes_compacted_has_missed_no_tombstone(world: World) -> None:
    """Before that its source removed none, however long ago the mirror began."""
    topic = "trips.later-compacted"
    world.source.create_topics({topic: NewTopic(1, 1, {"retention.ms": "-1"})})
    world.source.produce({TopicPartition(topic, 0): batch([b"a"])})
    world.follows("berlin", topic, 1)
    with world.coordination() as coordination:
        path = topic_path("berlin", topic)
        update(coordination, path, MirrorTopicNode, lambda node: node and node.model_copy(update={"since_ms": 1}))
    world.source.alter_configs(topic, {"cleanup.policy": "compact"})
    eventually(
        lambda: world.target.describe_configs(topic)["cleanup.policy"].value == "compact", "the configuration is copied"
    )
    world.source.produce({TopicPartition(topic, 0): batch([b"b"])})
    world.follows("berlin", topic, 2)


def test_a_partition_follows_the_topic_that_the_coordination_names(world: World) -> None:
    """Also if its leader has read it late: of a mirror that was deleted and made anew it may know the former topic."""
    topic = "trips.read-late"
    world.source.create_topics({topic: NewTopic(1, 1)})
    world.source.produce({TopicPartition(topic, 0): batch([b"a"])})
    world.follows("berlin", topic, 1)
    with world.coordination() as coordination:
        newest = read_topics(coordination, "berlin")[topic].topic_id
        path = topic_path("berlin", topic)
        for topic_id, status in ((uuid4(), "SOURCE_REPLACED"), (newest, "FOLLOWING")):
            named = {"topic_id": topic_id}
            update(
                coordination, path, MirrorTopicNode, lambda node, named=named: node and node.model_copy(update=named)
            )
            eventually(lambda s=status: s in world.run("status", "berlin", "--topic", topic)[0], status)
    world.source.produce({TopicPartition(topic, 0): batch([b"b"])})
    world.follows("berlin", topic, 2)


def test_a_status_without_a_topic_is_no_success(world: World) -> None:
    world.link("nothing", world.source_bootstrap, topics_regex="no-topic-is-called-so")
    assert "mirror nothing has no topic: no broker here has read" in world.run("status", "nothing")[1]
    assert "mirror berlin has no topic 'nosuch'" in world.run("status", "berlin", "--topic", "nosuch")[1]


def test_a_stored_link_that_cannot_be_used_leaves_the_others_alone(world: World) -> None:
    """As a link that a later version has stored."""
    with world.coordination() as coordination:
        node = LinkNode(config={"bootstrap.servers": ["b:9092"], "topics": ["a"], "unknown.key": 1})
        update(coordination, link_path("a-later-one"), LinkNode, lambda _: node)
        world.says("a-later-one", "unknown.key")
        world.goes_on()
        assert world.run("drop", "a-later-one")[1] == ""


def test_what_an_earlier_registration_or_topic_has_reported_does_not_count(world: World) -> None:
    """As that of a controller that was killed: nobody would ever take it back. And as that of a mirror that was deleted
    and is copied again: it would be promoted, empty, as one that has everything."""
    world.goes_on()
    world.is_well("berlin")
    ends = {uuid4(): {0: 10**9}}  # of the source's former topic of the name
    report = ReportNode(problem="broken", refused={"trips.good": "stale"}, broker_epoch=1, source_ends=ends)

    def of_former_topic(node: ReportNode) -> dict[str, Any]:
        former = {number: each.model_copy(update={"topic_id": uuid4()}) for number, each in reported(node).items()}
        return {"partitions": {**node.partitions, "trips.good": former}}

    def reported(node: ReportNode) -> Mapping[int, PartitionReport]:
        return node.partitions["trips.good"]

    changes: list[Callable[[ReportNode], dict[str, Any]]] = [lambda _: {"broker_epoch": 1}, of_former_topic]
    with world.coordination() as coordination:
        update(coordination, report_path("berlin", 7), ReportNode, lambda _: report)
        assert world.run("status", "berlin")[1] == ""
        for change in changes:

            def unreported(change: Callable[[ReportNode], dict[str, Any]] = change) -> bool:
                """Changes the report again: the broker writes its own as soon as that has changed."""
                path = report_path("berlin", 0)
                update(coordination, path, ReportNode, lambda node: node and node.model_copy(update=change(node)))
                output, error = world.run("status", "berlin", "--topic", "trips.good")
                assert str(10**9) not in output, "the end of the former topic"
                silent = "trips.good-0: no broker leads it, or its leader has not reported it yet" in output
                return silent and "NO_REPORT" in output and "does not copy everything" in error

            eventually(unreported, "it has no report")
            world.goes_on()
        coordination.delete(report_path("berlin", 7))


@pytest.mark.parametrize(
    ("retention_ms", "reported_ms"),
    [(86_400_000, 1_799_999_940_000), (20_000, 1_799_999_995_000), (0, 1_799_999_999_000)],
)
def test_the_next_leader_of_a_compacted_mirror_knows_up_to_when_it_was_complete(
    retention_ms: int, reported_ms: int
) -> None:
    """In steps of less than the retention: a mirror that had everything is not STALE because its leader changes."""
    log = SimpleNamespace(config=SimpleNamespace(compacts=True, delete_retention_ms=retention_ms))
    tp, key = TopicPartition("trips.compacted", 0), (b"id", 0)
    partitions = SimpleNamespace(replicas=lambda: [SimpleNamespace(key=key, name=tp, log=log)])
    config = MirrorConfig.model_validate({"bootstrap.servers": "b:9092", "topics": "a"})
    services: Any = SimpleNamespace(partitions=partitions)
    nothing: Any = None
    fetches = LinkFetches("berlin", config, services, nothing, nothing, nothing, dict, nothing)
    fetches._complete[key] = CompleteUntil(1_799_999_999_999)
    assert fetches.complete_until_ms() == {tp: reported_ms}


def test_what_is_about_to_be_cut_is_copied_once(tmp_path: Path, world: World) -> None:
    """Though the coordination does not answer when the copy is to be noted: it is tried every two seconds."""
    log = open_log(tmp_path)
    append(log, batch([b"a"]))
    replica: Any = SimpleNamespace(name=log.tp, log=log, leader=object())
    with world.coordination() as coordination:
        path = topic_path("berlin", log.tp.topic)
        node = MirrorTopicNode(source=log.tp.topic, topic_id=uuid4())
        update(coordination, path, MirrorTopicNode, lambda _: node)
        away: Any = Away(coordination)
        services: Any = SimpleNamespace(broker_id=0)
        config = MirrorConfig.model_validate({"bootstrap.servers": "b:9092", "topics": "a"})
        nothing: Any = None
        fetches = LinkFetches("berlin", config, services, away, nothing, nothing, dict, nothing)
        for _ in range(3):
            with pytest.raises(CoordinationUnavailableError):
                fetches._set_aside(replica, 0)
        away.is_unavailable = False
        fetches._set_aside(replica, 0)
        (cut,) = read_topics(coordination, "berlin")[log.tp.topic].cuts
        coordination.delete(path)
    assert [str(each) for each in tmp_path.glob("*-cut/*")] == [cut.path]


class Away:
    """A coordination that cannot be reached while `is_unavailable`."""

    def __init__(self, inner: Coordination) -> None:
        self._inner = inner
        self.is_unavailable = True

    def __getattr__(self, name: str) -> Any:
        if self.is_unavailable:
            raise CoordinationUnavailableError("away")
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"bootstrap.servers": "berlin"}, "mirrors.berlin.bootstrap.servers: expected host:port"),
        ({"topics.regex": "("}, "mirrors.berlin.topics.regex"),
        ({"on.gap": "perhaps"}, "mirrors.berlin.on.gap"),
        ({"topic": "a"}, "mirrors.berlin.topic"),
    ],
)
def test_a_wrong_definition_is_one_line(tmp_path: Path, keys: Mapping[str, object], why: str) -> None:
    section = {"bootstrap.servers": "b:9092", "topics": ["a"], **keys}
    (tmp_path / "klamm.yaml").write_text(yaml.safe_dump({"mirrors": {"berlin": section}}))
    result = CliRunner().invoke(app, ["create", "berlin", "--config", str(tmp_path / "klamm.yaml")])
    (line,) = str(result.exception).splitlines()
    assert why in line


def logged(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


def message(value: bytes, magic: int) -> bytes:
    """Returns a message set with one message of magic 1, as brokers before 0.11 store it."""
    body = struct.pack(">bbqii", magic, 0, 1_400_000_000_000, -1, len(value)) + value
    return struct.pack(">qiI", 0, len(body) + 4, crc32(body)) + body


def no_space_below(folder: str) -> Any:
    """Returns a hook by which appends to the segments of one partition fail with EDQUOT."""

    def hook(point: str) -> None:
        if point == "log.append.before_write":
            segment = sys._getframe(2).f_locals["self"]
            if folder in str(segment.path):
                raise OSError(errno.EDQUOT, "Disk quota exceeded")

    return hook
