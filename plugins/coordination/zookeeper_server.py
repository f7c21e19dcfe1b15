"""A real single-node ZooKeeper server, from PySpark's jars: for `klamm zookeeper`, the demo and the tests.

It listens on 127.0.0.1 only. States: stopped → `start` → running → `stop` or `kill` → stopped; its data stays.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Self

from klamm.core.java import HOST, JavaProcess, check_port
from klamm.plugin import CoordinationError

from .zookeeper_jars import find_class_path

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
_POLL_S = 0.02


class ZooKeeperServer:
    """A context manager that starts the server on entry and stops it on exit. `data_dir` is created if it does not
    exist."""

    def __init__(self, data_dir: Path, port: int = 2181, *, ends_with_parent: bool = False) -> None:
        """`ends_with_parent`: the server is killed when the thread that starts it ends in any way (on Linux), so start
        it from the main thread."""
        self._data_dir = data_dir
        self.port = port
        self._ends_with_parent = ends_with_parent
        self._process: JavaProcess | None = None

    @property
    def connect(self) -> str:
        """The value for `zookeeper.connect`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = 120.0) -> None:
        """Starts the server and returns once it responds. Raises `ConfigError` without Java or PySpark, and
        `CoordinationError` with one line if the port is in use or the server does not start."""
        if self._process is not None:
            raise CoordinationError(f"ZooKeeper at {self.connect} has been started already")
        class_path = find_class_path()
        check_port(self.port, "stop the process that uses it (a ZooKeeper?) or give another --port", CoordinationError)
        arguments = [*_JVM, *self._properties(), "-cp", class_path, _MAIN, str(self._write_config())]
        name, log = f"ZooKeeper at {self.connect}", self._data_dir / "zookeeper.log"
        self._process = JavaProcess(name, arguments, log, ends_with_parent=self._ends_with_parent)
        try:
            self._await_answer(timeout_s)
        except BaseException:
            self.kill()
            raise

    def wait(self) -> int:
        """Waits until the server ends by itself; returns its exit status."""
        if self._process is None:
            raise CoordinationError(f"ZooKeeper at {self.connect} has not been started")
        return self._process.wait()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stops the server with SIGTERM, with SIGKILL if it does not end in time. No error if it is not running."""
        process, self._process = self._process, None
        if process is not None:
            process.stop(timeout_s)

    def kill(self) -> None:
        """Kills the server with SIGKILL, as a crash does: everything it had acknowledged is on its disk."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def restart(self) -> None:
        """Stops the server and starts it with the same data and port."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _properties(self) -> list[str]:
        # By default 64 MB of each new log file are written at once. One thread is enough for a few connections.
        threads = ["-Dzookeeper.nio.numSelectorThreads=1", "-Dzookeeper.nio.numWorkerThreads=1"]
        return [*threads, "-Dzookeeper.preAllocSize=4096", "-Djava.net.preferIPv4Stack=true"]

    def _write_config(self) -> Path:
        # Tests use sessions of 1 s. ZooKeeper's own limits (2 and 20 ticks) would be 1 and 10 s.
        lines = {
            "dataDir": str(self._data_dir.resolve()).replace("\\", "/"),
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": TICK_MS,
            "maxSessionTimeout": 600_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            # Its metrics cannot be read: neither the admin server nor the command `mntr` is enabled.
            "metricsProvider.className": "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
        }
        path = self._data_dir / "zookeeper.cfg"
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        except OSError as error:
            raise CoordinationError(f"cannot write {path}: {error.strerror}; give another --data-dir") from error
        return path

    def _await_answer(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = "unknown" if self._process is None else self._process.status
            if status is not None:
                raise CoordinationError(f"ZooKeeper ended with status {status}; see {self._data_dir / 'zookeeper.log'}")
            if answers(HOST, self.port):
                return
            time.sleep(_POLL_S)
        raise CoordinationError(f"ZooKeeper at {self.connect} did not answer within {timeout_s:g} s")


def answers(host: str, port: int) -> bool:
    """Returns whether a ZooKeeper server there serves requests (with its command `srvr`)."""
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            return connection.recv(4096).startswith(b"Zookeeper version")
    except OSError:
        return False
