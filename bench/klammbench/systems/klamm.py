"""Klamm: `klamm broker`, with a real ZooKeeper of its own (counted with it) or with the embedded coordination."""

from __future__ import annotations

import importlib.metadata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammbench.paths import BROKER_COMMAND
from klammbench.process import tree
from klammbench.systems.base import WARM_S, Child, free_port, remove


class Klamm:
    """The broker runs from an environment of its own, which `bench/install.sh` makes: what Klamm needs and nothing else
    (kio imports hypothesis where it is installed, which is nearly half of a start).

    The ZooKeeper is what `klamm zookeeper` runs, without that command's own process, which only waits for it."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        zookeeper: bool,
        audit: bool = False,
        command: Path = BROKER_COMMAND,
    ) -> None:
        self.name = name
        self._folder = folder
        self._command = command
        self.data_dir = folder / "data"
        self.warm_s = WARM_S
        self._zookeeper: ZooKeeperServer | None = None
        self._with_zookeeper = zookeeper
        self._audit = audit
        self._port = 0
        self._broker: Child | None = None

    def version(self) -> str:
        return importlib.metadata.version("klamm")

    def settings(self) -> str:
        audit = ", the audit" if self._audit else ""
        return (
            f"defaults; {'ZooKeeper in a JVM of its own' if self._with_zookeeper else 'embedded coordination'}{audit}"
        )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        if not self._command.exists():
            raise RuntimeError(f"{self._command} is not there: run bench/install.sh")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._port = free_port()  # at each start: another may have taken the last one meanwhile
        if self._with_zookeeper:
            self._zookeeper = ZooKeeperServer(self._folder / "zookeeper", free_port())
        config = self._folder / "klamm.yaml"
        config.write_text(yaml.safe_dump(self._config(), sort_keys=False))
        with ThreadPoolExecutor(1) as beside:
            # Both at once, as anyone would start them: the broker waits for its ZooKeeper.
            zookeeper = beside.submit(self._zookeeper.start) if self._zookeeper else None
            command = [str(self._command), "broker", "--config", str(config)]
            self._broker = Child(command, self._folder / "broker.out", self._folder, {"PYTHONUNBUFFERED": "1"})
            output = self._broker.output
            self._broker.wait_until(lambda: b"klamm broker ready" in output.read_bytes(), self.name)
            if zookeeper:
                zookeeper.result()

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()
        self._broker = self._zookeeper = None

    def pids(self) -> list[int]:
        roots = [self._broker.pid] if self._broker else []
        if self._zookeeper is not None and self._zookeeper.pid is not None:
            roots.append(self._zookeeper.pid)
        return [pid for root in roots for pid in tree(root)]

    def wipe(self) -> None:
        remove(self._folder)

    def _config(self) -> dict[str, object]:
        coordination: dict[str, object] = {"plugin": "embedded", "path": "./coordination.db"}
        if self._zookeeper is not None:
            coordination = {"plugin": "zookeeper", "zookeeper.connect": f"{self._zookeeper.connect}/klamm"}
        config: dict[str, object] = {
            "broker": {
                "broker.id": 0,
                "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
                "log.dirs": "./data",
                "group.initial.rebalance.delay.ms": 0,
            },
            "coordination": coordination,
        }
        return config | ({"audit": {"plugin": "klamm"}} if self._audit else {})


def klamm_zookeeper(folder: Path) -> Klamm:
    return Klamm("klamm", folder, zookeeper=True)


def klamm_embedded(folder: Path) -> Klamm:
    return Klamm("klamm-embedded", folder, zookeeper=False)


def klamm_audited(folder: Path) -> Klamm:
    return Klamm("klamm-audited", folder, zookeeper=False, audit=True)
