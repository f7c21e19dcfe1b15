"""The directory of one run of the demo: configuration, the brokers' logs, the lake, the records of each process."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from struct import Struct

from klamm.core.child_process import is_free
from klamm.plugin import ConfigError

PORTS = range(20_000, 32_000)
"""Ports below those that systems assign to outgoing connections."""
BROKERS = 3
POSITION = Struct(">iq")
"""Partition and offset of a returned record, as members record them."""


@dataclass(frozen=True)
class HdfsAddress:
    """The address of a run's own HDFS: the ports of its two processes, which were free when they were chosen."""

    name_node: int
    name_node_http: int
    data_node: int
    data_node_http: int
    data_node_ipc: int

    @property
    def lake(self) -> str:
        return f"hdfs://127.0.0.1:{self.name_node}/lake"

    @property
    def web_url(self) -> str:
        """The address of WebHDFS."""
        return f"http://127.0.0.1:{self.name_node_http}"


@dataclass(frozen=True)
class Workspace:
    """A directory of its own for each run; its ports were free when it was made. `broker_port` is that of the live
    cluster's first broker; those of the others follow it. `hdfs`: None when the lake is a directory."""

    root: Path
    broker_port: int
    zookeeper_port: int
    registry_port: int
    offline_port: int
    hdfs: HdfsAddress | None = None

    @classmethod
    def make(cls, parent: Path, now: datetime | None = None) -> Workspace:
        """Writes the files of both clusters and the schema next to them; raises `ConfigError` if it cannot."""
        broker_port = free_port_run(BROKERS + 3)
        zookeeper_port = broker_port + BROKERS
        root = parent / (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S-%f")
        made = cls(root.absolute(), broker_port, zookeeper_port, zookeeper_port + 1, zookeeper_port + 2)
        try:
            made.logs.mkdir(parents=True)
            package = resources.files(__package__)
            (made.root / "flights.avsc").write_text(package.joinpath("flights.avsc").read_text())
            made._configure()
        except OSError as error:
            raise ConfigError(f"cannot write to {root}: {error.strerror}; give another --dir") from error
        return made

    def with_lake_on(self, hdfs: HdfsAddress) -> Workspace:
        """Returns the same workspace with its lake on that file system, in the offline cluster's file too."""
        moved = replace(self, hdfs=hdfs)
        moved._configure()
        return moved

    def _configure(self) -> None:
        places = {
            "${DEMO_BROKER}": f"127.0.0.1:{self.broker_port}",
            "${DEMO_BROKERS}": self.bootstrap,
            "${DEMO_ZOOKEEPER}": f"127.0.0.1:{self.zookeeper_port}",
            "${DEMO_OFFLINE}": self.offline_bootstrap,
            "${DEMO_LAKE}": self.hdfs.lake if self.hdfs else "lake",
            "${DEMO_WEBHDFS}": self.hdfs.web_url if self.hdfs else "null",
        }
        for file in (self.config, self.offline):
            text = resources.files(__package__).joinpath(file.name).read_text()
            for name, address in places.items():
                text = text.replace(name, address)
            half = file.with_suffix(".half")  # others read it meanwhile
            half.write_text(text)
            half.replace(file)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers of the live cluster."""
        return ",".join(f"127.0.0.1:{self.broker_port + broker}" for broker in range(BROKERS))

    @property
    def offline_bootstrap(self) -> str:
        """The address of the offline cluster's broker."""
        return f"127.0.0.1:{self.offline_port}"

    @property
    def config(self) -> Path:
        """The live cluster's file."""
        return self.root / "klamm.yaml"

    @property
    def offline(self) -> Path:
        """The offline cluster's file, for its broker, the loads and the audit."""
        return self.root / "offline.yaml"

    @property
    def logs(self) -> Path:
        """The output of the processes."""
        return self.root / "logs"

    @property
    def lake(self) -> str:
        """The lake's path, as Spark names it."""
        return self.hdfs.lake if self.hdfs else str(self.root / "lake")

    @property
    def hdfs_data(self) -> Path:
        return self.root / "hdfs"

    @property
    def broker_logs(self) -> list[Path]:
        """The log directory of each live broker, as `klamm broker --brokers` names them."""
        first = self.root / "broker"
        return [first, *(first.with_name(f"{first.name}-{broker}") for broker in range(1, BROKERS))]

    @property
    def mirror_log(self) -> Path:
        """The log directory of the offline broker."""
        return self.root / "offline"

    def acknowledged(self, producer: str) -> Path:
        """The file of the keys of the flights that were acknowledged to a producer, one a line."""
        return self.root / f"acknowledged-{producer}.txt"

    def seen(self, member: int) -> Path:
        """The file of the positions that a group member received."""
        return self.root / f"seen-{member}.bin"

    def taken(self, member: int) -> Path:
        """The file of the assignments of partitions to a member of the group, with times."""
        return self.root / f"taken-{member}.txt"

    @property
    def report(self) -> Path:
        return self.root / "report.html"


def free_port_run(count: int) -> int:
    """Returns the first of `count` consecutive ports of 127.0.0.1 on which nothing listens. Raises `ConfigError` if
    there are none."""
    for first in random.sample(PORTS, 200):
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise ConfigError(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}")
