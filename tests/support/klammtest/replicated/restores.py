"""Three brokers on a coordination of which a backup is made and put back: the file of one host, a real ZooKeeper, or a
real etcd."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from klamm.core.cluster.image_reader import metadata_version
from klamm.core.cluster.tree.steps import run_steps
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klamm.core.log.state.seen_metadata import SeenMetadata
from klamm.core.records.partition import TopicPartition
from klamm.plugins.coordination.etcd.server import EtcdServer
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klammtest.ports import free_port
from klammtest.requests import batch, fetch, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

from .cluster import BrokerCluster, running_cluster

SESSION_MS: Final = 6_000
"""A cluster that starts waits for twice as long; a busy machine starts a broker in less."""
PARTITIONS: Final = 3
"""Of a topic: each broker leads one of them, and follows in the others."""


class Backup(Protocol):
    """A coordination's data. `section` is the brokers' configuration."""

    section: Mapping[str, Any]

    def make(self) -> None: ...

    def put_back(self) -> None: ...


class EmbeddedBackup:
    """The backup is made while brokers use the file; all are stopped when it is put back."""

    def __init__(self, folder: Path) -> None:
        self._tree, self._copy = folder / "tree.db", folder / "backup.db"
        self.section = {"plugin": "embedded", "path": str(self._tree), "session.timeout.ms": SESSION_MS}

    def make(self) -> None:
        with closing(sqlite3.connect(self._tree)) as source, closing(sqlite3.connect(self._copy)) as target:
            source.backup(target)

    def put_back(self) -> None:
        for left in self._tree.parent.glob("tree.db*"):
            left.unlink()
        shutil.copy(self._copy, self._tree)


class ServerBackup:
    """A copy of the server's data directory, while the server is stopped; brokers may run meanwhile."""

    def __init__(self, server: ZooKeeperServer | EtcdServer, data: Path, section: Mapping[str, Any]) -> None:
        self._server, self._data, self._copy = server, data, data.with_name("backup")
        self.section = section

    def make(self) -> None:
        self._server.stop()
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._data, self._copy)
        self._server.start()

    def put_back(self) -> None:
        self._server.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._copy, self._data)
        self._server.start()


@contextmanager
def server_backup(kind: str, folder: Path, session_ms: int = SESSION_MS) -> Iterator[ServerBackup]:
    """Runs a server of its own, `zookeeper` or `etcd`."""
    data, port = folder / "server", free_port()
    server: ZooKeeperServer | EtcdServer
    if kind == "etcd":
        server = EtcdServer(data, port)
        section = {"plugin": kind, "etcd.endpoints": server.url, "etcd.session.timeout.ms": session_ms}
    else:
        server = ZooKeeperServer(data, port)
        section = {
            "plugin": kind,
            "zookeeper.connect": f"{server.connect}/klamm",
            "zookeeper.session.timeout.ms": session_ms,
        }
    with server:
        yield ServerBackup(server, data, section)


@dataclass
class RestoredCluster:
    """Every method waits until what it says is so."""

    cluster: BrokerCluster
    backup: Backup
    _values: dict[str, list[bytes]] = field(default_factory=dict)

    @property
    def tree(self) -> Coordination:
        return self.cluster.tree

    def create_topic(self, topic: str, minimum: int = 2) -> None:
        self.cluster.create_topic(topic, PARTITIONS, {"min.insync.replicas": str(minimum)})
        self.in_sync(0, 1, 2, topic=topic)

    def restore(self) -> None:
        """Puts the backup in the place of the coordination's data."""
        self.tree.close()
        self.backup.put_back()
        self.tree.start(timeout_s=60.0)

    def states(self, topic: str) -> list[Any]:
        found = self.cluster.states(topic, PARTITIONS)
        return [found[tp] for tp in sorted(found)]

    def append(self, *values: bytes, topic: str) -> None:
        """Produces each value to each partition, until it is acknowledged by all in-sync replicas."""
        for value in values:
            for number in range(PARTITIONS):
                eventually(partial(self._append, topic, number, value), f"{value!r} is acknowledged")
            self._values.setdefault(topic, []).append(value)

    def _append(self, topic: str, number: int, value: bytes) -> bool:
        state = self.cluster.state(TopicPartition(topic, number))
        if state is None or state.leader < 0:
            return False
        try:
            with WireClient(self.cluster.brokers[state.leader].bootstrap, timeout_s=10) as wire:
                code: ErrorCode = produce(wire, topic, batch(value), partition=number).error_code
        except (OSError, IndexError):
            return False
        return code is ErrorCode.none

    def has_all(self, topic: str) -> None:
        """Waits until consumers see every value of `append`: a new leader knows late what is committed."""

        def seen() -> bool:
            stored = [self.records(topic, number) for number in range(PARTITIONS)]
            return all(value in records for records in stored for value in self._values[topic])

        eventually(seen, f"{self._values[topic]} are there")

    def records(self, topic: str, partition: int) -> bytes:
        state = self.cluster.state(TopicPartition(topic, partition))
        if state is None or state.leader < 0:
            return b""
        with WireClient(self.cluster.brokers[state.leader].bootstrap) as wire:
            return bytes(fetch(wire, topic, 0, partition=partition).records)

    def in_sync(self, *members: int, topic: str) -> None:
        def reached() -> bool:
            states = self.states(topic)
            return len(states) == PARTITIONS and all(
                state.leader in members and set(state.isr) == set(members) for state in states
            )

        eventually(reached, f"{members} are in sync in {topic}")

    def lose(self, stale: int, *topics: str) -> tuple[int, ...]:
        """Kills a broker, which is then out of sync; returns the ids of the others, which have both read that."""
        others = tuple(number for number in self.cluster.ids if number != stale)
        self.cluster.kill([stale])
        for topic in topics:
            self.in_sync(*others, topic=topic)
        version, _ = run_steps(self.tree, metadata_version())
        # Only a broker that has read the change can tell that a backup lacks it.
        eventually(lambda: all(self._has_seen(number, version) for number in others), "both have read the change")
        return others

    def _has_seen(self, number: int, version: int) -> bool:
        seen = SeenMetadata(self.cluster.brokers[number].log_dir).last
        return seen is not None and seen.version >= version

    def said(self, number: int) -> str:
        return self.cluster.brokers[number].log()

    def noticed(self, *numbers: int) -> bool:
        """Returns True if one of these brokers has said that the coordination is older than its logs."""
        return any("older than this broker's logs" in self.said(number) for number in numbers)


@contextmanager
def restored_cluster(folder: Path, backup: Backup) -> Iterator[RestoredCluster]:
    with running_cluster(folder, backup.section, broker={"replica.lag.time.max.ms": 2000}) as cluster:
        eventually(lambda: len(cluster.registered()) == 3, "all are registered")
        made = RestoredCluster(cluster, backup)
        yield made
        for number in cluster.ids:
            assert "Traceback" not in made.said(number), made.said(number)


def copy_of_a_disk(it: RestoredCluster, number: int, folder: Path) -> Path:
    """Copies a running broker's log directory, as a backup tool does."""
    it.cluster.brokers[number].pause()
    try:
        return Path(shutil.copytree(it.cluster.brokers[number].log_dir, folder / f"copy-{number}"))
    finally:
        it.cluster.brokers[number].resume()
