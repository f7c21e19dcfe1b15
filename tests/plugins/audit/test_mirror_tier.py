"""The tier `mirror`: what a cluster has mirrored beside what the source's tiers have counted (docs/audit.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from klamm import Producer
from klamm.core.cli.main import app
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.config.settings import load_settings
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.event import MIRROR
from klamm.plugins.audit.gate import Gate, obstacle
from klamm.plugins.audit.query import Answer, AuditQuery, ask, audit_config
from klamm.plugins.audit.web import views
from klamm.plugins.audit.windows import parse_instant
from klammtest.broker import RunningBroker, running_broker
from klammtest.requests import create_topic, metadata
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

TOPICS = ("trips", "gaps", "again", "promoted")
CUT = "cut"
START = parse_instant("2013-01-01")
MINUTE = 60_000
AUDIT = {"plugin": "klamm", "topics": [*TOPICS, CUT], "publish.interval.ms": 500, "broker.interval.ms": 50}
RECORDS = 40


class Clusters:
    """A live cluster, and the offline one that mirrors its topics and its audit topic."""

    def __init__(self, live: RunningBroker, offline: RunningBroker, client: ClusterClient) -> None:
        self.live = live
        self.offline = offline
        self.client = client

    def run(self, *arguments: str) -> tuple[int, str]:
        """Runs a command on the offline cluster."""
        result = self.invoke(*arguments)
        return result.exit_code, result.stdout

    def invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--config", str(self.offline.config_path)])

    def mirror(self, *arguments: str) -> None:
        status, said = self.run("mirror", *arguments)
        assert status == 0, said

    def audit(self, topic: str, *options: str, wait: str = "30") -> tuple[int, dict[str, Any]]:
        result = self.invoke("audit", "--topic", topic, "--json", "--wait", wait, *options)
        assert result.stdout, result.exception
        [found] = json.loads(result.stdout)["topics"]
        return result.exit_code, found

    def asked(self, topic: str) -> Answer:
        settings = load_settings(self.offline.config_path)
        with ClusterClient(self.offline.bootstrap, codecs=settings.codec_table()) as client:
            return ask(client, audit_config(settings), AuditQuery(topics=(topic,)))

    def page(self, topic: str) -> dict[str, Any]:
        """Returns the content of the page of the tier `mirror`."""
        return views.tier(self.asked(topic), topic, MIRROR, views.Filters())

    def gate(self, topic: str, until: str = "2013-01-01T02:00") -> str | None:
        """Returns why the gate of the tier `mirror` is closed."""
        [audit] = self.asked(topic).audits
        return obstacle(audit, Gate(topic, parse_instant(until), tiers=(MIRROR,)))

    def states(self, topic: str) -> set[str]:
        """Returns the states of the tier `mirror`."""
        status, found = self.audit(topic, wait="0")
        states = {row["tiers"][MIRROR]["state"] for row in found["rows"] if MIRROR in row["tiers"]}
        assert status == 1 or states <= {"complete"}
        return states

    def produce(self, topic: str, begin: int = 0, *, to: RunningBroker | None = None) -> None:
        """Sends a record of each minute, in windows of 10 minutes, of which each has batches of its own."""
        with Producer((to or self.live).config_path) as producer:
            for n in range(begin, begin + RECORDS):
                producer.send(topic, b"value", timestamp_ms=START + n * MINUTE)
                if n % 10 == 9:
                    producer.flush()

    def stored(self, topic: str) -> int:
        """Returns how many records the broker tier has counted."""
        return sum(row["tiers"]["broker"]["records"] for row in self.audit(topic, wait="0")[1]["rows"])

    def status(self, topic: str) -> str:
        rows = json.loads(self.run("mirror", "status", "live", "--json")[1])["partitions"]
        return next((row["status"] for row in rows if row["topic"] == topic), "")


def with_clients(broker: RunningBroker) -> RunningBroker:
    said = broker.config_path.read_text()
    broker.config_path.write_text(f"{said}producer:\n  bootstrap.servers: {broker.bootstrap}\n")
    return broker


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    folder = tmp_path_factory.mktemp("mirror-tier")
    with ExitStack() as stack:
        topics = {name: {"partitions": 1, "config": {"retention.ms": -1}} for name in TOPICS}
        live = with_clients(stack.enter_context(running_broker(folder / "live", topics=topics, audit=AUDIT)))
        common = {"bootstrap.servers": live.bootstrap, "metadata.interval.ms": 100, "fetch.max.wait.ms": 100}
        links = {
            "live": {**common, "topics.regex": "|".join((*TOPICS, CUT))},
            "live-audit": {**common, "topics": ["__klamm_audit"], "prefix": "live."},
        }
        audit = {**AUDIT, "mirrored.topics": ["live.__klamm_audit"]}
        offline = stack.enter_context(running_broker(folder / "offline", audit=audit, mirrors=links))
        client = stack.enter_context(ClusterClient(live.bootstrap, codecs=load_settings({}).codec_table()))
        found = Clusters(live, with_clients(offline), client)
        found.mirror("create", "live")
        eventually(lambda: all(map(found.status, TOPICS)), "the mirrors exist")
        yield found


@pytest.fixture
def audited(clusters: Clusters) -> Clusters:
    """The clusters with the audit topic mirrored, too."""
    clusters.mirror("create", "live-audit")
    return clusters


def test_before_the_audit_topic_is_mirrored_nothing_is_complete(clusters: Clusters) -> None:
    result = clusters.invoke("audit", "--topic", "trips", "--json")
    [found] = json.loads(result.stdout)["topics"]
    assert (result.exit_code, found["complete"]) == (1, False)
    assert {problem["tier"] for problem in found["problems"]} >= {"producer", "broker"}
    whole = clusters.invoke("audit")
    assert "klamm: audit.mirrored.topics: there is no topic 'live.__klamm_audit' in the cluster" in whole.stderr


def test_producers_broker_and_mirror_are_complete_at_the_cluster_that_mirrors(audited: Clusters) -> None:
    clusters = audited
    clusters.produce("trips")
    eventually(lambda: clusters.audit("trips", wait="0")[1]["complete"], "the tiers of trips are complete")
    status, found = clusters.audit("trips")
    assert (status, found["problems"]) == (0, [])
    assert len(found["rows"]) == RECORDS // 10
    for row in found["rows"]:
        assert list(row["tiers"]) == ["producer", "broker", MIRROR]
        assert [row["tiers"][tier]["records"] for tier in row["tiers"]] == [10, 10, 10]
    gate = ("audit", "--wait-complete", "trips", "--until", "2013-01-01T00:40", "--tier", MIRROR, "--timeout", "30s")
    status, said = clusters.run(*gate)
    assert (status, f"records: mirror {RECORDS}" in said) == (0, True)
    page = clusters.page("trips")
    assert (page["what"], page["state"], page["lag"]) == ("mirror", "complete", 0)
    assert sum(row["records"] for row in page["rows"]) == RECORDS


def test_a_gap_of_the_mirror_is_missing(audited: Clusters) -> None:
    clusters = audited
    clusters.produce("gaps")
    eventually(lambda: clusters.states("gaps") == {"complete"}, "the mirror of gaps is complete")
    clusters.mirror("pause", "live", "--topic", "gaps")
    eventually(lambda: clusters.status("gaps") == "PAUSED", "the pause")
    for sent in (RECORDS, 2 * RECORDS):  # the fetch that was under way at the pause may take the first ones
        clusters.produce("gaps", sent)
        eventually(lambda n=sent + RECORDS: clusters.stored("gaps") == n, "the broker tier has counted them")
    assert "late" in clusters.states("gaps")
    clusters.client.delete_records({TopicPartition("gaps", 0): 3 * RECORDS - 10})
    clusters.mirror("resume", "live", "--topic", "gaps")
    eventually(lambda: clusters.states("gaps") == {"complete", "missing"}, "the gap is missing")
    status, found = clusters.audit("gaps", wait="0")
    copied = [row["tiers"][MIRROR]["records"] for row in found["rows"]]
    assert (status, copied[:4], copied[8:]) == (1, [10] * 4, [0, 0, 0, 10])
    assert "at mirror lacks 10 of 10 records" in (clusters.gate("gaps") or "")


def test_a_topic_that_was_created_again_is_missing_until_it_is_mirrored_anew(audited: Clusters) -> None:
    clusters = audited
    clusters.produce("again")
    eventually(lambda: clusters.states("again") == {"complete"}, "the mirror of again is complete")
    clusters.client.delete_topics(["again"])
    clusters.client.create_topics({"again": NewTopic(1, 1, {"retention.ms": "-1"})})
    clusters.produce("again", RECORDS)
    eventually(lambda: clusters.states("again") == {"complete", "missing"}, "the new topic is not mirrored")
    assert "at mirror lacks 10 of 10 records, ratio 0 (mirror: the topic was created again" in (
        clusters.gate("again") or ""
    )
    [line] = clusters.page("again")["losses"]
    assert "klamm mirror resolve LINK --topic again --take-new" in line
    eventually(lambda: clusters.status("again") == "SOURCE_REPLACED", "the link knows")
    clusters.mirror("resolve", "live", "--topic", "again", "--take-new", "--yes")
    eventually(lambda: clusters.states("again") == {"complete"}, "the new topic is mirrored")
    assert clusters.page("again")["losses"] == []


def test_after_a_promotion_the_broker_tier_goes_on_where_the_mirror_has_ended(audited: Clusters) -> None:
    clusters = audited
    clusters.produce("promoted")
    eventually(lambda: clusters.states("promoted") == {"complete"}, "the mirror of promoted is complete")
    promote = ("mirror", "promote", "live", "--topic", "promoted")
    eventually(lambda: clusters.run(*promote)[0] == 0, "the link has reported the end of promoted")
    eventually(lambda: clusters.status("promoted") == "", "the promotion")
    clusters.produce("promoted", RECORDS, to=clusters.offline)
    eventually(lambda: clusters.audit("promoted", wait="0")[0] == 0, "all records are counted")
    _, found = clusters.audit("promoted")
    assert sum(row["tiers"]["broker"]["records"] for row in found["rows"]) == 2 * RECORDS
    assert MIRROR not in found["rows"][0]["tiers"]


def create_with_two_replicas(broker: RunningBroker) -> ErrorCode:
    """Creates the topic `CUT` on brokers 0 and 1, of which broker 0 leads it."""
    on = part(ApiKey.CREATE_TOPICS, 7, "CreatableReplicaAssignment", partition_index=0, broker_ids=(0, 1))
    config = {"retention.ms": "-1", "unclean.leader.election.enable": "true"}
    with WireClient(broker.bootstrap) as wire:
        code: ErrorCode = create_topic(wire, CUT, -1, config, assignments=(on,)).error_code
    return code


def led(broker: RunningBroker) -> tuple[int, int]:
    """Returns the leader of the topic `CUT` and the number of its in-sync replicas, as the broker knows them."""
    with WireClient(broker.bootstrap) as wire:
        [topic] = metadata(wire, [CUT]).topics
    [partition] = topic.partitions
    return partition.leader_id, len(partition.isr_nodes)


def test_what_the_source_has_lost_is_missing_at_the_mirror(audited: Clusters) -> None:
    """A follower that lacks the last records is elected at the source."""
    clusters, live = audited, audited.live
    shared = {"plugin": "embedded", "path": str(live.folder / "coordination.db")}
    other = live.folder.parent / "other"
    with running_broker(other, coordination=shared, broker={"broker.id": 1}, audit=AUDIT) as behind:
        eventually(lambda: create_with_two_replicas(live) is ErrorCode.none, "both brokers are there")
        eventually(lambda: led(live) == (0, 2), "both replicas are in sync")
        eventually(lambda: clusters.status(CUT) != "", "the mirror exists")
        clusters.produce(CUT)
        eventually(lambda: clusters.states(CUT) == {"complete"}, "the first records are mirrored")
        behind.stop()
        clusters.produce(CUT, RECORDS)
        eventually(lambda: clusters.stored(CUT) == 2 * RECORDS, "the source has counted the next ones")
        eventually(lambda: clusters.states(CUT) == {"complete"}, "the next ones are mirrored")
        live.stop()
        behind.start()
        eventually(lambda: led(behind)[0] == 1, "the other broker leads")
        live.start()
        eventually(lambda: clusters.states(CUT) == {"complete", "missing"}, "what the source has lost is missing")
        eventually(lambda: led(live) == (1, 2), "both replicas are in sync again")
        clusters.produce(CUT, 2 * RECORDS)
        eventually(lambda: clusters.stored(CUT) == 2 * RECORDS, "the source goes on")
        eventually(lambda: "late" not in clusters.states(CUT), "the mirror goes on")
        status, found = clusters.audit(CUT, wait="0")
    assert (status, found["problems"]) == (1, [])
    for tier in ("broker", MIRROR):
        cells = [row["tiers"][tier] for row in found["rows"]]
        assert [cell["records"] for cell in cells] == [10] * 4 + [0] * 4 + [10] * 4
        assert [cell["state"] for cell in cells] == ["complete"] * 4 + ["missing"] * 4 + ["complete"] * 4
    [line] = clusters.page(CUT)["losses"]
    assert "partition 0: the source has lost 40 records of offsets [40, 80) that were mirrored" in line
    assert "at mirror lacks 10 of 10 records, ratio 0 (mirror: partition 0: the source has lost" in (
        clusters.gate(CUT) or ""
    )
