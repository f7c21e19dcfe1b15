"""Where one run of the demo keeps everything: its configuration, the broker's log, the lake, who saw what."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from struct import Struct

from klamm.core.errors import ConfigError

PORTS = range(20_000, 32_000)
"""Below those that systems give to outgoing connections."""
POSITION = Struct(">iq")
"""Partition and offset of a record that was handed out, as members write them down."""


@dataclass(frozen=True)
class Workspace:
    """A directory of its own for each run; `broker_port` and `zookeeper_port` were free when it was made."""

    root: Path
    broker_port: int
    zookeeper_port: int

    @classmethod
    def make(cls, parent: Path, now: datetime | None = None) -> Workspace:
        """Writes `klamm.yaml` and the schema next to it; `ConfigError` when it cannot."""
        ports = free_ports(2)
        root = parent / (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S-%f")
        made = cls(root.absolute(), *ports)
        try:
            made.logs.mkdir(parents=True)
            package = resources.files(__package__)
            schema, config = package.joinpath("flights.avsc"), package.joinpath("klamm.yaml")
            (made.root / "flights.avsc").write_text(schema.read_text())
            made.config.write_text(made._filled(config.read_text()))
        except OSError as error:
            raise ConfigError(f"cannot write to {root}: {error.strerror}; give another --dir") from error
        return made

    def _filled(self, text: str) -> str:
        places = {"${DEMO_BROKER}": self.bootstrap, "${DEMO_ZOOKEEPER}": f"127.0.0.1:{self.zookeeper_port}"}
        for name, address in places.items():
            text = text.replace(name, address)
        return text

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def config(self) -> Path:
        return self.root / "klamm.yaml"

    @property
    def logs(self) -> Path:
        """What the processes print."""
        return self.root / "logs"

    @property
    def lake(self) -> Path:
        return self.root / "lake"

    @property
    def broker_data(self) -> Path:
        return self.root / "broker"

    def acknowledged(self, producer: str) -> Path:
        """The keys of the flights that a producer was acknowledged for, one a line."""
        return self.root / f"acknowledged-{producer}.txt"

    def seen(self, member: int) -> Path:
        """The positions that a member of the group was handed."""
        return self.root / f"seen-{member}.bin"


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of 127.0.0.1 that nobody listens on; `ConfigError` when there are not as many."""
    found: list[int] = []
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return tuple(found)
    raise ConfigError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
