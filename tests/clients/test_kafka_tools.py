"""Apache Kafka's own command line tools on a cluster of three: kafka-reassign-partitions.sh and kafka-configs.sh."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from klamm.core.protocol.apis import ApiKey
from klammtest.replicated import java_client
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch, create_topic, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient, part

LIMIT_S = 120.0
SLOW = 1_000
"""Bytes per second at which the move of `LARGE` does not end while the test runs."""
LARGE = batch(bytes(200_000))
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, ("java", "mvn"))), reason="needs java and mvn"),
]


class Tools:
    """Kafka's tools in one process: `run` returns the lines that a tool prints."""

    def __init__(self, bootstrap: str, sent: IO[str], heard: IO[str]) -> None:
        self._bootstrap, self._sent, self._heard = bootstrap, sent, heard

    def run(self, tool: str, *arguments: str) -> list[str]:
        self._sent.write("\t".join((tool, "--bootstrap-server", self._bootstrap, *arguments)) + "\n")
        self._sent.flush()
        lines = []
        for line in self._heard:
            if line.startswith("exit "):
                assert line == "exit 0\n", lines
                return lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the tools ended: {lines}")


@contextmanager
def running_tools(bootstrap: str) -> Iterator[Tools]:
    program = str(Path(java_client.__file__).parent / "java" / "KafkaTools.java")
    command = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", java_client.class_path("tools"), program)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Tools(bootstrap, process.stdin, process.stdout)
        process.stdin.close()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("tools")
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": 20_000}
    with running_cluster(folder, tree) as running:
        yield running


def created(brokers: BrokerCluster, topic: str, factor: int) -> None:
    with WireClient(brokers.advertised[brokers.controller()]) as wire:
        assert not create_topic(wire, topic, 1, {"retention.ms": "-1"}, replication_factor=factor).error_code


def replicas(brokers: BrokerCluster, topic: str) -> list[int]:
    with WireClient(brokers.advertised[brokers.controller()]) as wire:
        asked = (part(ApiKey.METADATA, 9, "MetadataRequestTopic", name=topic),)
        answer = wire.call(
            ApiKey.METADATA, 9, topics=asked, allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
        )  # fmt: skip
        return list(answer.topics[0].partitions[0].replica_nodes)


def throttles(brokers: BrokerCluster, topic: str) -> dict[str, str]:
    """Returns the dynamic configs of the brokers and of the topic that throttle moves."""
    found = {}
    for place in brokers.ids:
        with WireClient(brokers.advertised[place]) as wire:
            for kind, name in ((4, str(place)), (2, topic)):
                asked = part(
                    ApiKey.DESCRIBE_CONFIGS, 4, "DescribeConfigsResource", resource_type=kind, resource_name=name,
                    configuration_keys=None,
                )  # fmt: skip
                (result,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=(asked,)).results
                found |= {f"{name}: {c.name}": c.value for c in result.configs if c.config_source in (1, 2)}
    found.pop(f"{topic}: retention.ms")
    return found


def test_a_throttled_move_is_verified_and_cancelled(brokers: BrokerCluster, tmp_path: Path) -> None:
    """`--verify` and `--cancel` take the throttles away, of moves between log directories too."""
    plan = tmp_path / "plan.json"

    def planned(topic: str, *target: int) -> tuple[str, str]:
        rows = [{"topic": topic, "partition": 0, "replicas": list(target), "log_dirs": ["any"] * len(target)}]
        plan.write_text(json.dumps({"version": 1, "partitions": rows}))
        return "--reassignment-json-file", str(plan)

    with running_tools(brokers.bootstrap) as tools:
        for topic in ("moved", "stays"):
            created(brokers, topic, 2)
            first, second = replicas(brokers, topic)
            (third,) = {0, 1, 2} - {first, second}
            with WireClient(brokers.advertised[first]) as wire:
                eventually(lambda t=topic, w=wire: not produce(w, t, LARGE).error_code, "its leader", LIMIT_S)
            rate = SLOW if topic == "stays" else 10_000_000
            limits = ("--throttle", str(rate), "--replica-alter-log-dirs-throttle", str(rate))
            tools.run(REASSIGN, "--execute", *limits, *planned(topic, first, third))
            set_rates = {f"{first}: {key}" for key in RATES}
            eventually(lambda t=topic, keys=set_rates: throttles(brokers, t).keys() >= keys, "the throttles", LIMIT_S)
            if topic == "moved":
                eventually(lambda t=topic, now=[first, third]: replicas(brokers, t) == now, "the move", LIMIT_S)
                assert f"Reassignment of partition {topic}-0 is completed." in tools.run(
                    REASSIGN, "--verify", *planned(topic, first, third)
                )
            else:
                lines = tools.run(REASSIGN, "--verify", "--preserve-throttles", *planned(topic, first, third))
                assert f"Reassignment of partition {topic}-0 is still in progress." in lines
                assert "Successfully cancelled" in "\n".join(
                    tools.run(REASSIGN, "--cancel", *planned(topic, first, third))
                )
                assert sorted(replicas(brokers, topic)) == sorted((first, second))
            eventually(lambda t=topic: throttles(brokers, t) == {}, "no throttle at any broker", LIMIT_S)


def test_kafka_configs_describes_alters_and_deletes(brokers: BrokerCluster) -> None:
    """Any broker answers, as far as it knows by then."""
    created(brokers, "configured", 1)
    with running_tools(brokers.bootstrap) as tools:
        to_broker = ("--entity-type", "brokers", "--entity-name", "1")
        kerberos = "sasl.kerberos.min.time.before.relogin"

        def shows(what: str, *of: str, wanted: bool = True) -> None:
            said = f"{what} in {of}: {wanted}"
            eventually(lambda: (what in "\n".join(tools.run(CONFIGS, "--describe", *of))) == wanted, said, LIMIT_S)

        tools.run(CONFIGS, "--alter", *to_broker, "--add-config", f"{kerberos}=70000")
        shows(f"{kerberos}=70000 sensitive=false synonyms={{DYNAMIC_BROKER_CONFIG:", *to_broker)
        tools.run(CONFIGS, "--alter", *to_broker, "--delete-config", kerberos)
        shows(kerberos, *to_broker, wanted=False)
        shows("ssl.keystore.password=null sensitive=true", "--all", *to_broker)
        to_all = ("--entity-type", "brokers", "--entity-default")
        tools.run(CONFIGS, "--alter", *to_all, "--add-config", "background.threads=4,log.retention.ms=86400000")
        shows("background.threads=4", *to_all)
        tools.run(CONFIGS, "--alter", *to_all, "--delete-config", "background.threads,log.retention.ms")
        shows("background.threads", *to_all, wanted=False)
        to_topic = ("--entity-type", "topics", "--entity-name", "configured")
        tools.run(CONFIGS, "--alter", *to_topic, "--add-config", "cleanup.policy=,segment.jitter.ms=5")
        shows("cleanup.policy= sensitive=false", *to_topic)
        shows("segment.jitter.ms=5", *to_topic)
