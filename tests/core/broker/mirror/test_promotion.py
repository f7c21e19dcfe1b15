"""Both ways to end a mirror, and what each prints that it may lose (docs/mirror.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from klamm.core.cli.mirror.promotion import missing_after
from klamm.core.cluster.mirrors import MirrorTopicNode, read_topics, topic_path, update
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import ProducerIdBlockNode
from klamm.core.config.settings import load_settings
from klamm.core.errors import BrokerError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.offsets import CommittedOffset
from klamm.core.records.header import iter_headers
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker, running_broker
from klammtest.logs import batch
from klammtest.mirrored import LARGE, Clusters, stored
from klammtest.ports import free_port
from klammtest.waiting import eventually

LARGE_ID = 2**55
"""Above every producer id that the target allocates before the promotion."""


class Pair(Clusters):
    source_broker: RunningBroker
    stack: ExitStack

    def writes(self, topic: str, value: bytes) -> int:
        """Writes a record at the target; returns its offset."""
        tp, offsets = TopicPartition(topic, 0), []

        def written() -> bool:
            try:
                offsets.append(self.target.produce({tp: batch([value])})[tp].base_offset)
            except BrokerError:  # the leader has not read the change yet
                return False
            return True

        eventually(written, "a client's record")
        return offsets[0]

    @contextmanager
    def coordination(self) -> Iterator[Coordination]:
        found = load_settings(self.target_broker.config_path).make_coordination()
        found.start(10)
        try:
            yield found
        finally:
            found.close()

    def change(self, link: str, topic: str, change: Callable[[Any], MirrorTopicNode]) -> None:
        with self.coordination() as coordination:
            update(coordination, topic_path(link, topic), MirrorTopicNode, change)

    def nodes(self, link: str) -> dict[str, MirrorTopicNode]:
        with self.coordination() as coordination:
            return read_topics(coordination, link)

    def last_allocated(self) -> int:
        """Returns the last producer id of the target's blocks."""
        with self.coordination() as coordination:
            data, _ = coordination.get(paths.PRODUCER_ID_BLOCK)
        return ProducerIdBlockNode.decode(paths.PRODUCER_ID_BLOCK, data).block_end


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("promotion")
    with ExitStack() as stack:
        port = free_port()
        rome = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "topics": ["trips.back", "trips.other", "trips.compacted"],
            "metadata.interval.ms": 100,
        }
        circle = {**rome, "topics": [], "topics.regex": r"loop\..*", "prefix": "loop.rome."}
        back = {"rome": rome, "circle": circle}
        source = stack.enter_context(running_broker(folder / "source", mirrors=back))
        often = {
            "bootstrap.servers": source.bootstrap,
            "groups.regex": r"load\..*",
            "groups.interval.ms": 100,
            "metadata.interval.ms": 100,
            "fetch.max.wait.ms": 100,
        }
        links = {
            "berlin": {**often, "topics.regex": r"trips\..*"},
            "circle": {**often, "topics.regex": r"loop\..*", "prefix": "loop.berlin."},
            "careful": {**often, "topics.regex": r"care\..*", "on.gap": "stop", "on.divergence": "stop"},
            "slow": {
                **often,
                "topics.regex": r"slow\..*",
                "throttle.bytes.per.second": 10,
                "max.partition.fetch.bytes": 1,
            },
        }
        target = stack.enter_context(running_broker(folder / "target", port=port, mirrors=links))
        found = Pair(source, target, load_settings({}).codec_table(), stack)
        found.source_broker, found.stack = source, stack
        for link in links:
            found.mirror("create", link)
        yield found


def test_a_planned_promotion_waits_and_continues_where_the_source_ends(clusters: Pair) -> None:
    topic = "trips.planned"
    assert "has no mirror topic" in clusters.mirror("fail-over", "careful", fails=True)
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.follows(topic, 2)
    assert "ends at 2 (newest record of " in clusters.mirror("promote", "berlin", "--topic", topic, "--dry-run")
    done = clusters.mirror("promote", "berlin", "--topic", topic, "--drain", "--quiet", "1s")
    assert f"{topic}-0: clients write from offset 2 on\n" in done
    assert clusters.writes(topic, b"c") == 2
    headers = [header for _, header in iter_headers(stored(clusters.target, topic))]
    assert headers[-1].leader_epoch > headers[0].leader_epoch
    eventually(lambda: "was promoted" in clusters.status(topic)["left_out"].get(topic, ""), "it is not taken back")
    assert topic not in clusters.status(topic)["refused"], "this is no error"
    again = clusters.mirror("promote", "berlin", "--topic", topic, fails=True)
    assert f"topic {topic!r} was promoted (`klamm mirror promotions` shows where)" in again
    clusters.target.delete_records({TopicPartition(topic, 0): 1})


def test_a_record_of_an_impossible_time_does_not_prevent_a_fail_over(clusters: Pair) -> None:
    topic = "trips.future"
    clusters.create(topic, message_timestamp_after_max_ms=str(2**63 - 1))
    clusters.source.produce({TopicPartition(topic, 0): batch([b"a"], timestamp_ms=2**62)})
    clusters.follows(topic, 1)
    done = clusters.mirror("fail-over", "berlin", "--topic", topic)
    assert f"newest record of {2**62} ms after 1970" in done
    assert clusters.writes(topic, b"b") == 1


def test_links_in_a_circle_copy_no_mirror_back(clusters: Pair) -> None:
    back = Pair(clusters.target_broker, clusters.source_broker, clusters.codecs, clusters.stack)
    back.mirror("create", "circle")
    clusters.create("loop.a")
    clusters.write("loop.a", b"a")
    clusters.follows("loop.berlin.loop.a", 1, link="circle")
    eventually(
        lambda: "mirror of this cluster" in back.status("", "circle")["left_out"].get("loop.berlin.loop.a", ""),
        "it is left out",
    )
    assert "loop.rome.loop.berlin.loop.a" not in clusters.source.metadata().topics
    assert back.mirror("status", "circle")
    back.mirror("drop", "circle")


def test_producer_ids_of_the_source_are_not_given_out_again(clusters: Pair) -> None:
    topic, tp = "trips.ids", TopicPartition("trips.ids", 0)
    clusters.create(topic)
    held, _ = clusters.target.init_producer_id()
    assert held < LARGE_ID, "the rest of its block is below it, too"
    clusters.source.produce({tp: batch([b"a"], producer=(LARGE_ID, 0, 0))})
    clusters.follows(topic, 1)
    clusters.mirror("promote", "berlin", "--topic", topic)
    assert clusters.writes(topic, b"b") == 1
    assert clusters.last_allocated() >= LARGE_ID, "before a client writes"
    new, _ = clusters.target.init_producer_id()
    assert new > LARGE_ID


def test_a_fail_over_prints_what_the_source_had_beyond_the_mirror(clusters: Pair) -> None:
    topic = "slow.lost"
    clusters.create(topic)
    clusters.write(topic, *[b"x" * 100] * 30)
    eventually(lambda: clusters.row(topic, link="slow")["status"] == "COPYING", "the copy of a part")
    eventually(lambda: clusters.row(topic, link="slow")["source_end"] == 30, "the source's end is known")
    assert "--drain waits" in clusters.mirror("promote", "slow", "--topic", topic, fails=True)
    clusters.source_broker.kill()
    clusters.target_broker.restart()  # what the source has is still known
    eventually(lambda: clusters.row(topic, link="slow")["end"] > 0, "the mirror's new leader")
    before = clusters.mirror("fail-over", "slow", "--topic", topic, "--dry-run")
    end = clusters.row(topic, link="slow")["end"]
    assert f"ends at {end} (newest record of 20" in before
    assert f"the source at 30 when it last answered: {30 - end} missing" in before
    (line,) = clusters.mirror("fail-over", "slow", "--topic", topic, "--json").splitlines()
    done = json.loads(line)
    assert (done["begins"], done["missing"], done["end"]) == (end, 30 - end, end)
    assert clusters.writes(topic, b"after") == end
    clusters.source_broker.start()


@pytest.mark.parametrize(
    ("end", "source_end", "missing", "lacks"),
    [(20, 30, 10, 5), (20, 30, 0, 0), (25, 30, 5, 5), (None, 30, None, 5), (None, 20, None, 0), (20, None, None, None)],
)
def test_what_is_missing_after_a_fail_over(
    end: int | None, source_end: int | None, missing: int | None, lacks: int | None
) -> None:
    """Of a mirror that begins at 25 then. It has no `end` before if no leader of it has reported."""
    assert missing_after({"end": end, "source_end": source_end, "missing": missing}, 25) == lacks


def test_a_gap_waits_for_the_decision(clusters: Pair) -> None:
    topic = "care.gap"
    clusters.create(topic)
    clusters.write(topic, b"a")
    clusters.follows(topic, 1, link="careful")
    assert "no partition of 'care.gap' has stopped (FOLLOWING)" in resolved(clusters, topic, "--continue", fails=True)
    clusters.mirror("pause", "careful", "--topic", topic)
    eventually(lambda: clusters.row(topic, link="careful")["status"] == "PAUSED", "the pause")
    clusters.write(topic, *[LARGE] * 4)  # the fetch that was under way at the pause may take one
    clusters.source.delete_records({TopicPartition(topic, 0): 4})
    clusters.mirror("resume", "careful", "--topic", topic)
    eventually(lambda: clusters.row(topic, link="careful")["status"] == "GAP", "it stops at the gap")
    assert "resolve --continue" in clusters.printed("status", "careful")
    end = clusters.row(topic, link="careful")["end"]
    assert f"goes on behind the gap at offset {end}" in resolved(clusters, topic, "--continue", "--dry-run")
    assert clusters.row(topic, link="careful")["status"] == "GAP"
    resolved(clusters, topic, "--continue", "--partition", "0")
    clusters.follows(topic, 5, link="careful")
    assert clusters.row(topic, link="careful")["gaps"] == [[end, 4]]


def test_a_topic_that_was_created_again_is_taken(clusters: Pair) -> None:
    topic = "care.again"
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.follows(topic, 2, link="careful")
    clusters.source.delete_topics([topic])
    clusters.create(topic)
    clusters.write(topic, b"x", b"y", b"z")
    eventually(lambda: clusters.row(topic, link="careful")["status"] == "SOURCE_REPLACED", "the new topic is noticed")
    assert "fail-over careful --topic care.again" in resolved(clusters, topic, "--continue", fails=True)
    assert "add --yes" in resolved(clusters, topic, "--take-new", fails=True)
    assert f"{topic}-0: offsets 0 to 2 (not in it) are deleted here" in resolved(
        clusters, topic, "--take-new", "--dry-run"
    )
    assert "is copied from the source's start" in resolved(clusters, topic, "--take-new", "--yes")
    clusters.follows(topic, 3, link="careful")
    clusters.same(topic)


def resolved(clusters: Pair, topic: str, *options: str, fails: bool = False) -> str:
    return clusters.mirror("resolve", "careful", "--topic", topic, *options, fails=fails)


def test_the_former_source_mirrors_its_former_mirror_without_a_new_copy(clusters: Pair, tmp_path: Path) -> None:
    topic = "trips.back"
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.follows(topic, 2)
    clusters.source.commit_offsets("load.back", {TopicPartition(topic, 0): CommittedOffset(2)})
    clusters.mirror("fail-over", "berlin", "--topic", topic)
    clusters.write(topic, b"not copied", b"nor this")
    assert clusters.writes(topic, b"x") == 2
    assert clusters.writes(topic, b"y") == 3
    before = stored(clusters.source, topic)
    promoted = tmp_path / "promotions.jsonl"
    promoted.write_text(clusters.mirror("promotions", "--topic", topic, "--json"))
    back = Pair(clusters.target_broker, clusters.source_broker, clusters.codecs, clusters.stack)
    back.mirror("create", "rome")
    adopt = ("adopt", "rome", "--topic", topic, "--promotions", str(promoted))
    cut = f"{topic}-0: ends at 4, was promoted at 2: offsets 2 to 4 (not in it) are cut and kept in a file"
    assert cut in back.mirror(*adopt, "--dry-run")
    assert stored(clusters.source, topic) == before
    done = back.mirror(*adopt)
    assert cut in done
    assert "1 topic adopted" in done
    back.follows(topic, 4, link="rome")
    back.same(topic)
    assert stored(clusters.source, topic).startswith(before[: len(before) // 4])
    eventually(lambda: back.row(topic, link="rome")["cuts"], "the cut is noted")
    (kept,) = back.row(topic, link="rome")["cuts"]
    assert (kept["start"], kept["end"], Path(kept["path"]).read_bytes()) == (2, 4, stored_from(before, 2))
    with pytest.raises(BrokerError):
        clusters.write(topic, b"refused")
    assert "is a mirror of link rome already" in back.mirror(*adopt, fails=True)
    back.change("rome", topic, lambda node: node.model_copy(update={"cuts": ()}))  # as if it had crashed before
    back.target_broker.restart()
    eventually(lambda: back.row(topic, link="rome").get("cuts") == [kept], "the cut is noted again")
    back.target.commit_offsets("other", {TopicPartition(topic, 0): CommittedOffset(4)})
    assert clusters.writes(topic, b"z") == 4
    back.follows(topic, 5, link="rome")
    back.same(topic)


def test_a_topic_that_was_created_again_since_the_command_is_not_adopted(clusters: Pair) -> None:
    """And stops no other: the controller was away, and the operator has given it up."""
    topic = "given.up"
    clusters.create(topic)
    clusters.write(topic, b"a")
    back = Pair(clusters.target_broker, clusters.source_broker, clusters.codecs, clusters.stack)
    back.mirror("create", "rome")
    asked = MirrorTopicNode(source=topic, topic_id=uuid4(), adopt={0: (0, 9)}, adopt_id=uuid4())
    for name in ("a.deleted.one", topic):
        back.change("rome", name, lambda _: asked)
    eventually(lambda: not {"a.deleted.one", topic} & back.nodes("rome").keys(), "they are given up")
    clusters.write(topic, b"b")


def test_a_compacted_topic_is_adopted(clusters: Pair, tmp_path: Path) -> None:
    """It has missed no tombstone, since the promotion is not long ago."""
    topic = "trips.compacted"
    clusters.create(topic, cleanup_policy="compact")
    clusters.write(topic, b"a")
    clusters.follows(topic, 1)
    promoted = tmp_path / "promotions.jsonl"
    promoted.write_text(clusters.mirror("promote", "berlin", "--topic", topic, "--json"))
    clusters.writes(topic, b"b")
    back = Pair(clusters.target_broker, clusters.source_broker, clusters.codecs, clusters.stack)
    back.mirror("create", "rome")
    back.mirror("adopt", "rome", "--topic", topic, "--promotions", str(promoted))
    back.follows(topic, 2, link="rome")


def test_a_topic_that_is_not_the_source_is_not_adopted(clusters: Pair, tmp_path: Path) -> None:
    topic = "trips.other"
    clusters.create(topic)
    clusters.write(topic, b"a", b"b")
    clusters.follows(topic, 2)
    rows = clusters.mirror("promote", "berlin", "--topic", topic, "--json")
    promoted = tmp_path / "promotions.jsonl"
    promoted.write_text(rows)
    back = Pair(clusters.target_broker, clusters.source_broker, clusters.codecs, clusters.stack)
    back.mirror("create", "rome")
    back.mirror("pause", "rome")
    eventually(lambda: back.row("trips.back", link="rome")["status"] == "PAUSED", "the link back copies nothing")
    clusters.source.delete_topics([topic])
    clusters.create(topic)
    clusters.write(topic, b"x", b"y")

    def refused(*options: str) -> str:
        return back.mirror("adopt", "rome", "--promotions", str(promoted), *options, fails=True)

    assert f"{topic}-0: the batches below offset 2 differ in the two clusters" in refused()
    assert "selects no topic 'trips.planned'" in refused("--topic", "trips.planned")
    promoted.write_text(rows.replace('"begins": 2', '"begins": null'))
    assert f"promotions.jsonl:1: it is not known where {topic}-0 was promoted" in refused()
    promoted.write_text(rows.replace('"leader_epoch": ', '"leader_epoch": 99'))
    assert "promotions.jsonl:1: expected a line of" in refused()
    promoted.write_text("\n")
    assert "promotions.jsonl has no line of `klamm mirror promotions --json`" in refused()
    assert "there is no topic 'trips.none' here" in back.mirror("promotions", "--topic", "trips.none", fails=True)
    promoted.write_text("flights\n")
    assert "promotions.jsonl:1: expected a line of `klamm mirror promotions --json`, got 'flights'" in refused()
    promoted.write_text("[" * 100_000)
    assert "promotions.jsonl:1: expected a line of" in refused()


def stored_from(batches: bytes, offset: int) -> bytes:
    """Returns the batches from this offset on."""
    return b"".join(
        bytes(batches[at : at + header.size]) for at, header in iter_headers(batches) if header.base_offset >= offset
    )
