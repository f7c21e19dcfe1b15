"""A real single-node ZooKeeper server, for `klamm zookeeper`, the demo and the tests."""

from __future__ import annotations

import socket
from pathlib import Path

from klamm.core.java import HOST, find_java

from ..local_server import LocalServer
from .jars import find_class_path

TICK_MS = 500
_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JVM = (
    # The heap starts small and shrinks again; it may still grow to its limit.
    "-Xmx256m", "-Xms4m", "-Xmn1m", "-XX:+UseSerialGC", "-XX:MinHeapFreeRatio=10", "-XX:MaxHeapFreeRatio=20",
    # Only methods that run often are compiled: compilation costs memory for each method, 6 MB in all.
    "-XX:TieredStopAtLevel=1", "-XX:Tier3InvocationThreshold=2000", "-XX:Tier3MinInvocationThreshold=1000",
    "-XX:Tier3CompileThreshold=4000", "-XX:ReservedCodeCacheSize=16m", "-XX:CICompilerCount=1",
    # The JDK's class archive is mapped at its own address: relocated, 6 MB of it become private to this process.
    "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0",
    "-Xss256k", "-XX:StringTableSize=4096", "-XX:-UsePerfData", "-Dslf4j.internal.verbosity=ERROR",
)  # fmt: skip


class ZooKeeperServer(LocalServer):
    """One server, at `connect`."""

    product = "ZooKeeper"

    def __init__(self, data_dir: Path, port: int = 2181, *, ends_with_parent: bool = False) -> None:
        super().__init__(data_dir, port, ends_with_parent=ends_with_parent)

    @property
    def connect(self) -> str:
        """The value for `zookeeper.connect`."""
        return f"{HOST}:{self.port}"

    @property
    def address(self) -> str:
        return self.connect

    def answers(self) -> bool:
        return answers(HOST, self.port)

    def _find(self) -> str:
        return find_class_path()

    def _command(self, found: str) -> list[str]:
        return [find_java(), *_JVM, *self._properties(), "-cp", found, _MAIN, str(self._write_config())]

    def _properties(self) -> list[str]:
        # By default 64 MB of each new log file are written at once. One thread is enough for a few connections.
        threads = ["-Dzookeeper.nio.numSelectorThreads=1", "-Dzookeeper.nio.numWorkerThreads=1"]
        return [*threads, "-Dzookeeper.preAllocSize=4096", "-Djava.net.preferIPv4Stack=true"]

    def _write_config(self) -> Path:
        # Tests use sessions of 1 s. ZooKeeper's own limits (2 and 20 ticks) would be 1 and 10 s.
        lines = {
            "dataDir": str(self.data_dir.resolve()).replace("\\", "/"),
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": TICK_MS,
            "maxSessionTimeout": 600_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            # Its metrics cannot be read: neither the admin server nor the command `mntr` is enabled.
            "metricsProvider.className": "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
        }
        path = self.data_dir / "zookeeper.cfg"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return path


def answers(host: str, port: int) -> bool:
    """Returns whether a ZooKeeper server there serves requests (with its command `srvr`)."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            return connection.recv(4096).startswith(b"Zookeeper version")
    except OSError:
        return False
