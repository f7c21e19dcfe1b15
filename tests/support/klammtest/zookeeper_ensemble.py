"""A ZooKeeper ensemble of three real servers, of which any may be killed and started again."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pytest

from klamm.core.java import HOST, JavaProcess
from klamm.plugins.coordination.zookeeper.jars import find_class_path
from klamm.plugins.coordination.zookeeper.server import TICK_MS
from klammtest.ports import free_port
from klammtest.waiting import eventually

SIZE: Final = 3
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM: Final = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss256k", "-XX:-UsePerfData",
    "-Dslf4j.internal.verbosity=ERROR", "-Djava.net.preferIPv4Stack=true", "-Dzookeeper.preAllocSize=4096",
)  # fmt: skip


class EnsembleMember:
    """One server. States: stopped → `start` → running → `kill` → stopped; its data stays."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.port = free_port()
        self.quorum = f"{HOST}:{free_port()}:{free_port()}"
        """Its address for the others: host, port of the leader, port for elections."""
        self._folder = folder
        self._process: JavaProcess | None = None

    def configure(self, members: list[EnsembleMember]) -> None:
        self._folder.mkdir(parents=True)
        (self._folder / "myid").write_text(f"{self.number}\n")
        settings = {
            "dataDir": self._folder,
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": TICK_MS,
            "initLimit": 60,
            "syncLimit": 40,  # a server of the ensemble may get no processor for seconds
            "maxSessionTimeout": 600_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "metricsProvider.className": "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
            **{f"server.{member.number}": member.quorum for member in members},
        }
        (self._folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def start(self) -> None:
        """Starts the process; it serves once there is a quorum."""
        arguments = [*_JVM, "-cp", find_class_path(), _MAIN, str(self._folder / "zoo.cfg")]
        self._process = JavaProcess(f"ZooKeeper {self.number}", arguments, self._folder / "zookeeper.log")

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    @property
    def connect(self) -> str:
        """The value for `zookeeper.connect` of clients that use this server alone."""
        return f"{HOST}:{self.port}"

    @property
    def mode(self) -> str:
        """`leader` or `follower`; empty while it does not serve."""
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return answer.partition("Mode: ")[2].partition("\n")[0]


class ZooKeeperEnsemble:
    """A context manager that starts all members on entry and kills them on exit."""

    def __init__(self, folder: Path) -> None:
        self.members = [EnsembleMember(number, folder / str(number)) for number in range(1, SIZE + 1)]
        for member in self.members:
            member.configure(self.members)

    @property
    def connect(self) -> str:
        """The value for `zookeeper.connect`."""
        return ",".join(member.connect for member in self.members)

    @property
    def port(self) -> int:
        """The port of a member that serves."""
        return next(member.port for member in self.members if member.mode)

    def follower(self) -> EnsembleMember:
        """Returns a server that forwards writes to the leader."""
        leader = self.leader()
        return next(member for member in self.members if member is not leader)

    def leader(self) -> EnsembleMember:
        """Returns the leader, once there is one."""
        eventually(lambda: any(member.mode == "leader" for member in self.members), "a leader of the ensemble")
        return next(member for member in self.members if member.mode == "leader")

    def __enter__(self) -> Self:
        try:
            for member in self.members:
                member.start()
            eventually(lambda: all(member.mode for member in self.members), "the ensemble serves")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for member in self.members:
            member.kill()


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """An ensemble shared by all tests that kill none of it."""
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble
