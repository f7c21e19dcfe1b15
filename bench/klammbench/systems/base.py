"""The interface of a system under measurement, as the shapes use it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
WARM_S = 5.0
"""A JVM compiles for some seconds."""


class System(Protocol):
    """One server with all processes that it needs. States: stopped → `start` → running → `stop` or `kill` → stopped;
    data stay until `wipe`.
    """

    name: str
    """The name in `SYSTEMS`."""
    data_dir: Path
    """The folder of the messages; its size is the size on disk."""
    warm_s: float
    """How long each load of a warm-up lasts."""

    def version(self) -> str: ...

    def settings(self) -> str:
        """One line for the report: the settings that differ from the defaults."""
        ...

    @property
    def bootstrap(self) -> str:
        """HOST:PORT that clients connect to."""
        ...

    def start(self) -> None:
        """Returns once a client's request is answered; otherwise raises `RuntimeError` with the end of the system's
        output.
        """
        ...

    def stop(self) -> None:
        """Stops the system cleanly; does nothing if it is stopped."""
        ...

    def pids(self) -> list[int]:
        """Returns the ids of all its processes (ZooKeeper too), children included."""
        ...

    def wipe(self) -> None:
        """Removes all data. The system must be stopped."""
        ...


class Cluster(System, Protocol):
    """Three brokers on this host. A broker that is stopped or killed comes back on its ports and data."""

    @property
    def brokers(self) -> Mapping[int, str]:
        """HOST:PORT of each broker by its id."""
        ...

    def start_broker(self, node: int) -> None:
        """Returns once the broker serves."""
        ...

    def stop_broker(self, node: int) -> None:
        """Stops the broker by a controlled shutdown."""
        ...

    def kill_broker(self, node: int) -> None: ...

    def broker_pids(self, node: int) -> list[int]: ...


class Child:
    """A process in its own session, with its output in a file; it is ended by its id only."""

    def __init__(
        self, command: Sequence[str], output: Path, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        self.output = output
        with output.open("wb") as out:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=cwd,
                env={**os.environ, **(environment or {})}, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait_until(self, ready: Callable[[], bool], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.ended():
            if ready():
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)
        self.stop()
        said = self.output.read_text(errors="replace")[-500:]
        raise RuntimeError(f"{what} was not ready within {timeout_s:g} s; its output:\n{said}")

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        if not self.ended():
            self._process.kill()
        self._process.wait(10)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Sends SIGTERM, and SIGKILL if the process does not end in time."""
        if self.ended():
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()


def answers(port: int) -> bool:
    """Returns True if the local port accepts connections."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Returns a port below the range that the kernel gives to clients."""
    for port in range(21_000 + os.getpid() % 5_000 + time.monotonic_ns() // 1000 % 5_000, 32_000):
        if _is_free(port):
            return port
    raise RuntimeError("no port is free")


def free_ports(count: int) -> list[int]:
    """Returns that many ports, all different."""
    found: list[int] = []
    while len(found) < count:
        if (port := free_port()) not in found:
            found.append(port)
    return found


def free_ports_in_a_row(count: int) -> int:
    """Returns the first of that many consecutive ports."""
    first, found = free_port(), 1
    while found < count:
        if _is_free(first + found):
            found += 1
        else:
            first, found = free_port(), 1
    return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def remove(folder: Path) -> None:
    """Removes a folder and all in it; a folder that does not exist is no error."""
    shutil.rmtree(folder, ignore_errors=True)
