"""Start, stop, kill, restart: what a broker says, keeps and refuses; and two brokers as one cluster."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klamm.core.records.codecs import CodecTable
from klamm.core.transport.address import Address
from klammtest.broker import RunningBroker, running_broker
from klammtest.ports import free_port
from klammtest.requests import (
    batch,
    create_topic,
    fetch,
    fetch_fields,
    metadata,
    new_topic,
    produce,
    wait_until_all_are_known,
)
from klammtest.waiting import eventually
from klammtest.wire import WireClient


def refusal(folder: Path, **sections: Any) -> str:
    """The one line with which a broker of this file does not start."""
    folder.mkdir(parents=True, exist_ok=True)
    broker = RunningBroker(folder, {"coordination": {"plugin": "embedded", "path": "./own.db"}, **sections}, 0)
    with pytest.raises(RuntimeError):
        broker.start()
    said = [line for line in broker.log().splitlines() if " INFO " not in line and " WARNING " not in line]
    assert len(said) == 1, broker.log()
    return said[0]


def test_a_port_in_use(broker: RunningBroker, tmp_path: Path) -> None:
    listeners = f"PLAINTEXT://127.0.0.1:{broker.port}"
    line = refusal(tmp_path, broker={"listeners": listeners, "log.dirs": "./data"})
    assert f"127.0.0.1:{broker.port}" in line
    assert "in use" in line


def test_an_address_of_another_host(tmp_path: Path) -> None:
    line = refusal(tmp_path, broker={"listeners": "PLAINTEXT://192.0.2.1:9092", "log.dirs": "./data"})
    assert "192.0.2.1:9092: Cannot assign requested address" in line
    assert line.endswith("give an address of this host, and a port that this user may take")


@pytest.mark.parametrize("host", ["", "[::]"])
def test_a_listener_without_a_host_serves_ipv4_and_ipv6(tmp_path: Path, host: str) -> None:
    keys = {
        "listeners": f"PLAINTEXT://{host}:0",
        "advertised.listeners": "PLAINTEXT://[::1]:0",
        "metrics.port": 0,
        "metrics.host": "::1",
    }
    with running_broker(tmp_path, port=1, broker=keys) as broker:
        found = re.search(r"klamm broker ready.*PLAINTEXT://\[::1\]:(\d+)", broker.log())
        assert found is not None, broker.log()
        port = int(found[1])
        for loopback in ("127.0.0.1", "::1"):
            with ClusterClient(str(Address(loopback, port)), codecs=CodecTable()) as client:
                assert [(node.host, node.port) for node in client.metadata([]).nodes.values()] == [("::1", port)]
        assert re.search(r"metrics are served on http://\[::1\]:\d+/metrics", broker.log())


def test_a_log_directory_that_another_broker_has_open(broker: RunningBroker, tmp_path: Path) -> None:
    own = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(broker.log_dir)}
    line = refusal(tmp_path, broker=own)
    assert str(broker.log_dir) in line
    assert "another broker" in line


@pytest.mark.parametrize("changed", ["broker.id", "cluster"])
def test_a_log_directory_of_another_broker_or_cluster(tmp_path: Path, changed: str) -> None:
    with running_broker(tmp_path / "first") as first:
        assert first.stop() == 0
        config = yaml.safe_load(first.config_path.read_text())
        if changed == "broker.id":
            config["broker"]["broker.id"] = 7
            config["coordination"]["path"] = str(tmp_path / "first" / "coordination.db")
        else:
            config["coordination"]["path"] = "./another.db"
        config["broker"]["log.dirs"] = str(first.log_dir)
        line = refusal(tmp_path / "second", **config)
        assert "meta.properties" in line or str(first.log_dir) in line
        first.start()


def test_a_coordination_that_is_not_there(tmp_path: Path) -> None:
    port = free_port()
    line = refusal(
        tmp_path,
        broker={"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "./data"},
        coordination={"plugin": "zookeeper", "zookeeper.connect": f"127.0.0.1:{port}/klamm"},
    )
    assert f"127.0.0.1:{port}" in line


def test_a_broker_id_that_is_taken(tmp_path: Path) -> None:
    """The second one waits for one and a half of its own session time-outs."""
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}
    lasting, shorter = ({**tree, "session.timeout.ms": ms} for ms in (20_000, 6_000))
    with running_broker(tmp_path / "first", topics={"t": {"partitions": 1}}, coordination=lasting) as first:
        own = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "./data"}
        line = refusal(tmp_path / "second", broker=own, coordination=shorter)
        assert f"broker id 0 is taken by the live broker at 127.0.0.1:{first.port}; configure another" in line
        assert "If that one was this broker, and is dead: log directory " in line
        assert "is empty, but the cluster has 1 partition here (t-0)" in line


def test_sigterm_answers_what_is_parked_and_leaves_clean_logs(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, WireClient(broker.bootstrap) as wire:
        topic = new_topic(wire)
        produce(wire, topic, batch(b"a", b"b"))
        wire.send(ApiKey.FETCH, 12, **fetch_fields({(topic, 0): 2}, max_wait_ms=60_000))
        with WireClient(broker.bootstrap) as other:
            metadata(other, None)  # by now the fetch is parked
        assert broker.stop() == 0
        assert wire.receive(ApiKey.FETCH, 12).responses[0].partitions[0].records == b""
        assert wire.closed()
        assert (broker.log_dir / ".kafka_cleanshutdown").exists()
        broker.start()
        with WireClient(broker.bootstrap) as again:
            assert fetch(again, topic, 0).high_watermark == 2
            assert produce(again, topic, batch(b"c")).base_offset == 2


def test_records_that_were_acknowledged_outlive_kill_9(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with WireClient(broker.bootstrap) as wire:
            topic = new_topic(wire, segment_bytes=10_000)
            for _ in range(50):
                produce(wire, topic, batch(b"x" * 1000))
        for _ in range(2):
            broker.kill()
            broker.start()
            with WireClient(broker.bootstrap) as wire:
                assert fetch(wire, topic, 49).high_watermark == 50


def test_a_directory_that_the_cluster_does_not_know_is_set_aside(tmp_path: Path) -> None:
    with running_broker(tmp_path, topics={"known": {"partitions": 1}}) as broker:
        broker.stop()
        shutil.copytree(broker.log_dir / "known-0", broker.log_dir / "ghost-0")
        broker.start()
        names = {path.name for path in broker.log_dir.iterdir() if path.is_dir()}
        assert "ghost-0" not in names
        assert [name for name in names if name.startswith("ghost-0.") and name.endswith("-stray")]
        assert "ghost-0 was set aside" in broker.log()
        with WireClient(broker.bootstrap) as wire:
            assert produce(wire, "known", batch(b"a")).error_code is ErrorCode.none


def test_port_0_is_advertised_as_the_port_that_was_bound(tmp_path: Path) -> None:
    with running_broker(tmp_path, broker={"listeners": "PLAINTEXT://127.0.0.1:0"}) as broker:
        ready = next(line for line in broker.log().splitlines() if "klamm broker ready" in line)
        host, _, port = ready.rpartition("//")[2].rpartition(":")
        assert int(port) > 0
        with WireClient(f"127.0.0.1:{port}") as wire:
            (node,) = metadata(wire, None).brokers
        assert (node.host, node.port) == (host, int(port))


def test_all_interfaces_need_an_address_to_tell(tmp_path: Path) -> None:
    for number, listeners in enumerate(("PLAINTEXT://:0", "PLAINTEXT://0.0.0.0:0")):
        assert "advertised.listeners" in refusal(tmp_path / str(number), broker={"listeners": listeners})


def test_each_listener_tells_its_own_address(tmp_path: Path) -> None:
    inside, outside = free_port(), free_port()
    config = {
        "listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "advertised.listeners": f"INSIDE://127.0.0.1:{inside},OUTSIDE://localhost:{outside}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    }
    with running_broker(tmp_path, broker=config):
        for port, host in ((inside, "127.0.0.1"), (outside, "localhost")):
            with WireClient(f"127.0.0.1:{port}") as wire:
                (node,) = metadata(wire, None).brokers
                assert (node.host, node.port) == (host, port)


def test_idle_and_superfluous_connections_are_closed(tmp_path: Path) -> None:
    limits = {"max.connections": 3, "connections.max.idle.ms": 4000}  # by then the superfluous one must be there
    with running_broker(tmp_path, broker=limits) as broker:
        clients = [WireClient(broker.bootstrap) for _ in range(3)]
        assert metadata(clients[2], None).brokers
        with WireClient(broker.bootstrap) as superfluous:
            assert superfluous.closed()
        assert all(client.closed() for client in clients)
        with WireClient(broker.bootstrap) as late:
            assert metadata(late, None).brokers
        assert "max.connections=3 are open" in broker.log()
        assert "closed idle connection" in broker.log()  # one line a second, however many
        for client in clients:
            client.close()


# -- two brokers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[RunningBroker, RunningBroker]]:
    """Brokers 0 (the controller) and 1 on one embedded coordination with short sessions."""
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db"), "session.timeout.ms": 6000}
    with (
        running_broker(tmp_path / "zero", coordination=tree) as zero,
        running_broker(tmp_path / "one", coordination=tree, broker={"broker.id": 1}) as one,
    ):
        wait_until_all_are_known([zero.bootstrap, one.bootstrap])
        yield zero, one


def leaders(broker: RunningBroker, topic: str) -> dict[int, int]:
    with WireClient(broker.bootstrap) as wire:
        return {p.partition_index: p.leader_id for p in metadata(wire, [topic]).topics[0].partitions}


def stop_until_expired(stopped: RunningBroker, other: RunningBroker) -> None:
    """SIGSTOP until its session is over. One that is stopped while it holds the tree's lock has everybody wait for it:
    then it goes on for a moment, and is stopped again."""
    for _ in range(6):
        stopped.pause()
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            with WireClient(other.bootstrap) as wire:
                if len(metadata(wire, []).brokers) == 1:
                    return
            time.sleep(0.02)
        stopped.resume()
        time.sleep(0.05)
    raise AssertionError("its session did not expire")


def test_each_broker_leads_its_own_partitions(two: tuple[RunningBroker, RunningBroker]) -> None:
    with WireClient(two[0].bootstrap) as zero, WireClient(two[1].bootstrap) as one:
        assert create_topic(one, "t").error_code is ErrorCode.not_controller
        assert create_topic(zero, "t", 4).error_code is ErrorCode.none
        eventually(lambda: sorted(leaders(two[0], "t").values()) == [0, 0, 1, 1], "they lead")
        led = leaders(two[0], "t")
        eventually(lambda: leaders(two[1], "t") == led, "broker 1 knows the topic")
        for partition, leader in led.items():
            mine, other = (zero, one) if leader == 0 else (one, zero)
            record = batch(b"%d" % partition, producer_id=1, producer_epoch=0, base_sequence=0)
            eventually(lambda: produce(mine, "t", record, partition).base_offset == 0, "its leader has opened it")  # noqa: B023
            assert produce(other, "t", batch(b"x"), partition).error_code is ErrorCode.not_leader_or_follower
            assert fetch(other, "t", 0, partition).error_code is ErrorCode.not_leader_or_follower
        assert sorted(b.node_id for b in metadata(one, []).brokers) == [0, 1]
        found = {}
        for wire in (zero, one):
            answer = wire.call(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=tuple("abcdefgh"))
            found[wire] = [c.node_id for c in answer.coordinators]
        assert found[zero] == found[one]
        assert set(found[zero]) == {0, 1}
        strange = "abcdefgh"[found[zero].index(1)]
        who = {"group_id": strange, "generation_id": 1, "member_id": "m"}
        assert zero.call(ApiKey.HEARTBEAT, 4, **who).error_code is ErrorCode.not_coordinator


def test_a_broker_whose_session_expired_comes_back(two: tuple[RunningBroker, RunningBroker]) -> None:
    zero, one = two
    with WireClient(zero.bootstrap) as wire:
        create_topic(wire, "t", 2)
        mine = next(p for p, leader in leaders(zero, "t").items() if leader == 0)
        produce(wire, "t", batch(b"before"), mine)
    stop_until_expired(zero, one)
    eventually(lambda: leaders(one, "t").get(mine) == -1, "broker 1 sees that broker 0 has gone")
    with WireClient(one.bootstrap) as wire:
        eventually(lambda: metadata(wire, []).controller_id == 1, "broker 1 is the controller")
        assert create_topic(wire, "meanwhile").error_code is ErrorCode.none
    zero.resume()
    eventually(lambda: leaders(zero, "t").get(mine) == 0 == leaders(one, "t").get(mine), "broker 0 leads again")
    with WireClient(zero.bootstrap) as wire:
        eventually(lambda: produce(wire, "t", batch(b"after"), mine).error_code is ErrorCode.none, "it takes records")
        assert fetch(wire, "t", 0, mine, leader_epoch=0).error_code is ErrorCode.fenced_leader_epoch
        assert metadata(wire, ["meanwhile"]).topics[0].error_code is ErrorCode.none


def test_the_embedded_tree_names_the_cluster(broker: RunningBroker) -> None:
    meta = dict(
        line.split("=", 1) for line in (broker.log_dir / "meta.properties").read_text().splitlines() if "=" in line
    )
    with WireClient(broker.bootstrap) as wire:
        assert meta["cluster.id"] == metadata(wire, []).cluster_id
    assert json.loads(meta["broker.id"]) == 0
