"""Apache Kafka: one KRaft node, broker and controller in one process, from the jars that `bench/install.sh` fetches.

`kafka` has the JVM of Kafka's own kafka-server-start.sh and its config/server.properties; `kafka-tuned` is set for a
machine with two cores: as many threads as cores, the throughput collector, socket buffers left to the kernel, a heap
that grows when it is needed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from klamm.core.java import find_java
from klammbench.paths import VAR
from klammbench.process import tree
from klammbench.systems.base import WARM_S, Child, answers, free_ports, remove

_JARS = VAR / "kafka"
_CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
_COMMON: Mapping[str, object] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    # Deleted topics leave the disk at once (by default after a minute and more); nothing that is measured is touched.
    "log.segment.delete.delay.ms": 100,
    "log.initial.task.delay.ms": 500,
}
_LOG4J = """<Configuration status="WARN">
<Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


@dataclass(frozen=True, slots=True)
class Tuning:
    jvm: Sequence[str]
    properties: Mapping[str, object]


_SERVER_START = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
                 "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
                 "-Djava.awt.headless=true")  # fmt: skip
DEFAULT = Tuning(
    _SERVER_START,
    {"num.network.threads": 3, "num.io.threads": 8, "socket.send.buffer.bytes": 102_400,
     "socket.receive.buffer.bytes": 102_400, "num.recovery.threads.per.data.dir": 2},
)  # fmt: skip
TUNED = Tuning(
    ("-Xmx1G", "-Xms256m", "-server", "-XX:+UseParallelGC", "-XX:-UsePerfData", "-Djava.awt.headless=true"),
    {"num.network.threads": 2, "num.io.threads": 2, "socket.send.buffer.bytes": -1, "socket.receive.buffer.bytes": -1,
     "background.threads": 2, "num.recovery.threads.per.data.dir": 2, "log.cleaner.dedupe.buffer.size": 16_777_216},
)  # fmt: skip


class KafkaNode:
    """A process that is broker and controller. `ports`: those of the clients and of the controller."""

    def __init__(
        self,
        name: str,
        folder: Path,
        data_dir: Path,
        tuning: Tuning,
        ports: tuple[int, int],
        *,
        node_id: int = 1,
        voters: Mapping[int, int] | None = None,
        replicas: int = 1,
    ) -> None:
        """`voters`: the controllers' ports by node id, if there are several. `replicas`: of Kafka's own topics."""
        self._name = name
        self._folder = folder
        self._data_dir = data_dir
        self._tuning = tuning
        self.port, self._controller_port = ports
        self._node_id = node_id
        self._voters = voters or {node_id: self._controller_port}
        self._replicas = replicas
        self._process: Child | None = None

    def launch(self) -> None:
        """Starts the process, on a formatted data directory; `wait` waits until it serves."""
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._write_files()
        if not (self._data_dir / "meta.properties").exists():
            self._format(properties)
        command = [*self._java(), *self._tuning.jvm, "kafka.Kafka", str(properties)]
        self._process = Child(command, self._folder / "broker.out", self._folder)

    def wait(self) -> None:
        assert self._process is not None
        # Kafka opens the port only after it has started.
        self._process.wait_until(lambda: answers(self.port), self._name)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = None

    def pids(self) -> list[int]:
        return tree(self._process.pid) if self._process else []

    def _java(self) -> list[str]:
        if not _JARS.exists():
            raise RuntimeError(f"{_JARS} does not exist: run bench/install.sh")
        log4j = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}"
        return [find_java(), "-cp", f"{_JARS}/*", log4j, f"-Dkafka.logs.dir={self._folder}"]

    def _write_files(self) -> Path:
        (self._folder / "log4j2.xml").write_text(_LOG4J)
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}"
        least = min(self._replicas, 2)
        properties = {
            **_COMMON,
            **self._tuning.properties,
            "node.id": self._node_id,
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in self._voters.items()),
            "log.dirs": self._data_dir,
            "offsets.topic.replication.factor": self._replicas,
            "transaction.state.log.replication.factor": self._replicas,
            "share.coordinator.state.topic.replication.factor": self._replicas,
            "min.insync.replicas": least,
            "transaction.state.log.min.isr": least,
            "share.coordinator.state.topic.min.isr": least,
        }
        path = self._folder / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        return path

    def _format(self, properties: Path) -> None:
        command = [*self._java(), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{self._name} could not format its storage:\n{(done.stdout + done.stderr)[-2000:]}")


class Kafka:
    """A cluster of one node."""

    def __init__(self, name: str, folder: Path, tuning: Tuning) -> None:
        self.name = name
        self._folder = folder
        self.data_dir = folder / "data"
        self.warm_s = WARM_S
        self._tuning = tuning
        self._node: KafkaNode | None = None

    def version(self) -> str:
        return kafka_version()

    def settings(self) -> str:
        return tuning_line(self._tuning)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._node.port if self._node else 0}"

    def start(self) -> None:
        port, controller = free_ports(2)
        self._node = KafkaNode(self.name, self._folder, self.data_dir, self._tuning, (port, controller))
        self._node.launch()
        self._node.wait()

    def stop(self) -> None:
        if self._node is not None:
            self._node.stop()

    def kill_and_start(self) -> None:
        """Starts the killed node on its ports and data: a new leader epoch begins."""
        assert self._node is not None
        self._node.kill()
        self._node.launch()
        self._node.wait()

    def pids(self) -> list[int]:
        return self._node.pids() if self._node else []

    def wipe(self) -> None:
        remove(self._folder)


def kafka_version() -> str:
    jar = next(_JARS.glob("kafka_2.13-*.jar"), None)
    return jar.stem.removeprefix("kafka_2.13-") if jar else "not installed"


def tuning_line(tuning: Tuning) -> str:
    return " ".join([*tuning.jvm, *(f"{key}={value}" for key, value in tuning.properties.items())])


def kafka_default(folder: Path) -> Kafka:
    return Kafka("kafka", folder, DEFAULT)


def kafka_tuned(folder: Path) -> Kafka:
    return Kafka("kafka-tuned", folder, TUNED)
