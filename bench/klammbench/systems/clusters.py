"""Clusters of three brokers on this host, of Klamm and of Apache Kafka: replication factor 3, min.insync.replicas 2.

Klamm's brokers come from one file, as `klamm broker --brokers 3` starts them, but each in a process that the cluster
can end alone (`--only`); its ZooKeeper is counted with them. Kafka's nodes are brokers and controllers (KRaft, combined
mode), each with the tuned setting of `systems/kafka.py`.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammbench.paths import BROKER_COMMAND
from klammbench.process import tree
from klammbench.systems.base import WARM_S, Child, free_port, free_ports, free_ports_in_a_row, remove
from klammbench.systems.kafka import TUNED, KafkaNode, kafka_version, tuning_line

NODES = (1, 2, 3)
_REPLICATED = "3 brokers, replication factor 3, min.insync.replicas 2"


class KlammCluster:
    def __init__(self, name: str, folder: Path, *, zookeeper: bool = True, command: Path = BROKER_COMMAND) -> None:
        """Without `zookeeper`, the brokers share the embedded coordination."""
        self.name = name
        self._folder = folder
        self._command = command
        self.data_dir = folder / "logs"
        self.warm_s = WARM_S
        self._config = folder / "klamm.yaml"
        self._port = 0
        self._with_zookeeper = zookeeper
        self._zookeeper: ZooKeeperServer | None = None
        self._brokers: dict[int, Child] = {}

    def version(self) -> str:
        return importlib.metadata.version("klamm")

    def settings(self) -> str:
        return f"{_REPLICATED}; {'ZooKeeper in a JVM of its own' if self._with_zookeeper else 'embedded coordination'}"

    @property
    def brokers(self) -> Mapping[int, str]:
        return {node: f"127.0.0.1:{self._port + node - NODES[0]}" for node in NODES}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.brokers.values())

    def start(self) -> None:
        if not self._command.exists():
            raise RuntimeError(f"{self._command} is not there: run bench/install.sh")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._port = free_ports_in_a_row(len(NODES))
        coordination: dict[str, object] = {"plugin": "embedded", "path": "./coordination.db"}
        if self._with_zookeeper:
            self._zookeeper = ZooKeeperServer(self._folder / "zookeeper", free_port())
            self._zookeeper.start()
            coordination = {"plugin": "zookeeper", "zookeeper.connect": f"{self._zookeeper.connect}/klamm"}
        broker = {
            "broker.id": NODES[0],
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": "./logs/data",
            "min.insync.replicas": 2,
            "group.initial.rebalance.delay.ms": 0,
        }
        self._config.write_text(yaml.safe_dump({"broker": broker, "coordination": coordination}, sort_keys=False))
        with ThreadPoolExecutor(len(NODES)) as beside:
            list(beside.map(self.start_broker, NODES))
        for address in self.brokers.values():  # an older commit refuses topics until its brokers know one another
            with ClusterClient(address, codecs=load_settings({}).codec_table()) as client:
                while len(client.metadata().nodes) < len(NODES):
                    time.sleep(0.05)

    def stop(self) -> None:
        with ThreadPoolExecutor(len(NODES)) as beside:
            list(beside.map(self.stop_broker, NODES))
        if self._zookeeper is not None:
            self._zookeeper.stop()
        self._zookeeper = None

    def start_broker(self, node: int) -> None:
        command = [str(self._command), "broker", "--config", str(self._config), "--brokers", str(len(NODES))]
        started = Child(
            [*command, "--only", str(node)],
            self._folder / f"broker-{node}.out",
            self._folder,
            {"PYTHONUNBUFFERED": "1"},
        )
        self._brokers[node] = started
        started.wait_until(lambda: b"klamm broker ready" in started.output.read_bytes(), f"{self.name}, broker {node}")

    def stop_broker(self, node: int) -> None:
        if broker := self._brokers.pop(node, None):
            broker.stop()

    def kill_broker(self, node: int) -> None:
        if broker := self._brokers.pop(node, None):
            broker.kill()

    def broker_pids(self, node: int) -> list[int]:
        return tree(self._brokers[node].pid) if node in self._brokers else []

    def pids(self) -> list[int]:
        zookeeper = self._zookeeper.pid if self._zookeeper is not None else None
        return [pid for node in NODES for pid in self.broker_pids(node)] + (tree(zookeeper) if zookeeper else [])

    def wipe(self) -> None:
        remove(self._folder)


class KafkaCluster:
    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self.data_dir = folder / "logs"
        self.warm_s = WARM_S
        self._nodes: dict[int, KafkaNode] = {}

    def version(self) -> str:
        return kafka_version()

    def settings(self) -> str:
        return f"{_REPLICATED}; each {tuning_line(TUNED)}"

    @property
    def brokers(self) -> Mapping[int, str]:
        return {number: f"127.0.0.1:{node.port}" for number, node in self._nodes.items()}

    @property
    def bootstrap(self) -> str:
        return ",".join(self.brokers.values())

    def start(self) -> None:
        free = free_ports(2 * len(NODES))
        ports = dict(zip(NODES, free[::2], strict=True))
        controllers = dict(zip(NODES, free[1::2], strict=True))
        self._nodes = {
            number: KafkaNode(
                f"{self.name}, node {number}", self._folder / str(number), self.data_dir / str(number), TUNED,
                (ports[number], controllers[number]), node_id=number, voters=controllers, replicas=len(NODES),
            )
            for number in NODES
        }  # fmt: skip
        with ThreadPoolExecutor(len(NODES)) as beside:
            list(beside.map(KafkaNode.launch, self._nodes.values()))
            list(beside.map(KafkaNode.wait, self._nodes.values()))

    def stop(self) -> None:
        with ThreadPoolExecutor(len(NODES)) as beside:
            list(beside.map(KafkaNode.stop, self._nodes.values()))

    def start_broker(self, node: int) -> None:
        self._nodes[node].launch()
        self._nodes[node].wait()

    def stop_broker(self, node: int) -> None:
        self._nodes[node].stop()

    def kill_broker(self, node: int) -> None:
        self._nodes[node].kill()

    def broker_pids(self, node: int) -> list[int]:
        return self._nodes[node].pids()

    def pids(self) -> list[int]:
        return [pid for node in self._nodes.values() for pid in node.pids()]

    def wipe(self) -> None:
        remove(self._folder)


def klamm_cluster(folder: Path) -> KlammCluster:
    return KlammCluster("klamm-cluster", folder)


def kafka_cluster(folder: Path) -> KafkaCluster:
    return KafkaCluster("kafka-cluster", folder)
