"""Mistakes of those who run three brokers: each gets one clear line, and no acknowledged record is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm.core.errors import ErrorCode
from klamm.core.records.partition import TopicPartition
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.clients.grouping import find_coordinator
from klammtest.ports import free_port
from klammtest.replicated.cluster import BrokerCluster, running_cluster
from klammtest.requests import batch, create_topic, fetch, metadata
from klammtest.waiting import eventually
from klammtest.wire import WireClient

T0 = TopicPartition("t", 0)
SESSION_MS = 6000
LARGER = "it is larger than the number of live brokers, 3"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    keys = {"default.replication.factor": 4, "auto.create.topics.enable": True}
    tree = {"plugin": "embedded", "path": str(folder / "tree.db"), "session.timeout.ms": SESSION_MS}
    offsets = {"offsets": {"plugin": "topic", "offsets.topic.replication.factor": 4}}
    with running_cluster(folder, tree, broker=keys) as running:
        running.stop()
        for broker in running.brokers:
            found = yaml.safe_load(broker.config_path.read_text())
            broker.config_path.write_text(yaml.safe_dump({**found, **offsets}))
        running.start()
        eventually(lambda: len(running.registered()) == 3, "all are registered")
        running.create_topic("t", 1)
        assert running.await_in_sync("t", 1)
        yield running
        for broker in running.brokers:
            assert "Traceback" not in broker.log()


@pytest.fixture
def wire(cluster: BrokerCluster) -> Iterator[WireClient]:
    with WireClient(cluster.brokers[cluster.controller()].bootstrap) as wire:
        yield wire


def klamm(cluster: BrokerCluster, *arguments: str, config: dict[str, Any] | None = None) -> tuple[int, str]:
    """Runs a command; returns its exit status and what it says of errors."""
    file = cluster.folder / "asked.yaml"
    file.write_text(yaml.safe_dump({"producer": {"bootstrap.servers": cluster.bootstrap}, **(config or {})}))
    asked = [KLAMM, *arguments, "--config", str(file), "--bootstrap", cluster.bootstrap]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stderr


def one_line(said: str, words: str) -> bool:
    (line,) = said.strip().splitlines()
    return words in line


def acknowledged(cluster: BrokerCluster, value: bytes) -> None:
    cluster.append("t", batch(value))


def records(cluster: BrokerCluster) -> bytes:
    state = cluster.state(T0)
    assert state is not None
    with WireClient(cluster.brokers[state.leader].bootstrap) as wire:
        return bytes(fetch(wire, "t", 0).records)


# -- a replication factor that is larger than the cluster


def test_a_factor_that_is_asked_for(cluster: BrokerCluster, wire: WireClient) -> None:
    answer = create_topic(wire, "large", replication_factor=4)
    assert answer.error_code is ErrorCode.invalid_replication_factor
    assert LARGER in answer.error_message
    code, said = klamm(cluster, "topics", "create", "large", "--replication-factor", "4")
    assert code == 1
    assert one_line(said, LARGER)


def test_a_factor_in_the_file_s_topics(cluster: BrokerCluster) -> None:
    topics = {"topics": {"large": {"partitions": 1, "replication.factor": 4}}}
    code, said = klamm(cluster, "topics", "create", "--all-from-config", config=topics)
    assert code == 1
    assert one_line(said, LARGER)


def test_a_default_factor(cluster: BrokerCluster, wire: WireClient) -> None:
    answer = create_topic(wire, "by-default", replication_factor=-1)
    assert answer.error_code is ErrorCode.invalid_replication_factor
    assert LARGER in answer.error_message
    (topic,) = metadata(wire, ["on-demand"], create=True).topics
    assert topic.error_code is ErrorCode.invalid_replication_factor
    assert not [name for name in ("large", "by-default", "on-demand") if cluster.assignment(name)]


def test_a_factor_of_the_offsets_topic(cluster: BrokerCluster, wire: WireClient) -> None:
    for _ in range(3):
        assert find_coordinator(wire, "g").error_code is ErrorCode.coordinator_not_available
    said = [line for line in cluster.brokers[cluster.controller()].log().splitlines() if "no coordinator" in line]
    (line,) = said
    assert line.endswith("offsets.topic.replication.factor is 4, and 3 brokers are live")


# -- a reassignment to a dead broker


def test_a_reassignment_to_a_broker_that_has_died(cluster: BrokerCluster) -> None:
    with WireClient(cluster.brokers[cluster.controller()].bootstrap) as wire:
        assert create_topic(wire, "moved", replication_factor=1).error_code is ErrorCode.none
    (own,) = cluster.assignment("moved")[0]
    dead = next(number for number in cluster.ids if number not in (own, cluster.controller()))
    live = ", ".join(str(number) for number in cluster.ids if number != dead)
    cluster.kill([dead])
    try:
        eventually(lambda: dead not in cluster.registered(), "it is known to be dead")
        code, said = klamm(cluster, "cluster", "reassign", f"moved:0={own},{dead}")
        assert code == 1
        assert one_line(said, f"moved-0: broker {dead} cannot be added: not live (live brokers: {live})")
        acknowledged(cluster, b"while it is dead")
    finally:
        cluster.start([dead])
    eventually(lambda: b"while it is dead" in records(cluster), "it is there")


# -- two brokers with one id


def test_a_second_broker_in_the_same_directory(cluster: BrokerCluster) -> None:
    acknowledged(cluster, b"one directory")
    with pytest.raises(RuntimeError) as refused:
        second(cluster, 1, cluster.brokers[1].log_dir)
    assert "is in use by another broker, which holds" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    eventually(lambda: b"one directory" in records(cluster), "it is there")


@pytest.mark.parametrize("how", ["a copy", "a new one"])
def test_a_second_broker_in_another_directory(cluster: BrokerCluster, tmp_path: Path, how: str) -> None:
    """While the first lives."""
    acknowledged(cluster, b"before " + how.encode())
    other = tmp_path / "other"
    if how == "a copy":
        cluster.brokers[1].pause()
        shutil.copytree(cluster.brokers[1].log_dir, other)
        cluster.brokers[1].resume()
    arguments = () if how == "a copy" else ("--accept-missing-logs",)
    with pytest.raises(RuntimeError) as refused:
        second(cluster, 1, other, *arguments)
    assert "broker id 1 is taken by the live broker at 127.0.0.1:" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    acknowledged(cluster, b"after " + how.encode())
    eventually(lambda: b"before " + how.encode() in records(cluster), "it is there")


def second(cluster: BrokerCluster, number: int, directory: Path, *arguments: str) -> None:
    """Starts another process with a broker's id, and stops it; raises `RuntimeError` if it ends by itself."""
    found = yaml.safe_load(cluster.brokers[number].config_path.read_text())
    folder = directory.parent / f"second-{directory.name}"
    folder.mkdir()
    keys = {**found["broker"], "log.dirs": str(directory)}
    other = RunningBroker(folder, {**found, "broker": own_ports(keys)}, free_port())
    try:
        other.start(*arguments)
    finally:
        other.kill()


def own_ports(keys: dict[str, Any]) -> dict[str, Any]:
    at = f"PLAINTEXT://127.0.0.1:{free_port()}"
    return {**keys, "listeners": at, "advertised.listeners": at}


def test_the_first_is_refused_when_the_second_has_taken_its_place(cluster: BrokerCluster, tmp_path: Path) -> None:
    acknowledged(cluster, b"before the second")
    first = cluster.brokers[2]
    first.pause()
    shutil.copytree(first.log_dir, tmp_path / "other")
    cluster.kill([2])
    found = yaml.safe_load(first.config_path.read_text())
    keys = own_ports({**found["broker"], "log.dirs": str(tmp_path / "other")})
    with running_broker(tmp_path / "second", broker=keys, coordination=found["coordination"]):
        with pytest.raises(RuntimeError, match="broker id 2 is taken by the live broker at") as refused:
            first.start()
        assert "Traceback" not in str(refused.value)
        acknowledged(cluster, b"with the second")
    cluster.start([2])
    assert cluster.await_in_sync("t", 1)
    eventually(lambda: b"before the second" in records(cluster), "it is there")
    eventually(lambda: b"with the second" in records(cluster), "it is there")
