"""A coordination's real server on this machine, as a child process: for `klamm zookeeper`, `klamm etcd`, the demo and
the tests.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from klamm.core.child_process import ChildProcess, check_port
from klamm.plugin import CoordinationError

_POLL_S = 0.02


class LocalServer(ABC):
    """A context manager that starts the server on entry and stops it on exit. It listens on 127.0.0.1 only.

    States: stopped → `start` → running → `stop` or `kill` → stopped; its data stays. `data_dir` is created if it does
    not exist.
    """

    product: ClassVar[str]
    """The server's name in messages."""

    def __init__(self, data_dir: Path, port: int, *, ends_with_parent: bool = False) -> None:
        """`ends_with_parent`: the server is killed when the thread that starts it ends in any way (on Linux), so start
        it from the main thread.
        """
        self.data_dir = data_dir
        self.port = port
        self.log = data_dir / f"{self.product.lower()}.log"
        self._ends_with_parent = ends_with_parent
        self._process: ChildProcess | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """The value for the plugin's configuration."""

    @abstractmethod
    def _find(self) -> str:
        """Returns the program, or other files that it needs; raises `ConfigError`, which says what to install."""

    @abstractmethod
    def _command(self, found: str) -> list[str]:
        """Returns the command that runs what `_find` has found; may write files to `data_dir`."""

    @abstractmethod
    def answers(self) -> bool:
        """Returns whether a server at the address serves requests."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = 120.0) -> None:
        """Starts the server and returns once it responds. Raises `ConfigError` if it is not installed, and
        `CoordinationError` with one line if the port is in use or the server does not start.
        """
        if self._process is not None:
            raise CoordinationError(f"{self._name} has been started already")
        found, product = self._find(), self.product
        article = "an" if product[0] in "aeiou" else "a"
        hint = f"stop the process that uses it ({article} {product}?) or give another --port"
        check_port(self.port, hint, CoordinationError)
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.log.touch()
            command = self._command(found)
        except OSError as error:
            where = error.filename or self.data_dir
            raise CoordinationError(f"cannot write {where}: {error.strerror}; give another --data-dir") from error
        try:
            self._process = ChildProcess(self._name, command, self.log, ends_with_parent=self._ends_with_parent)
        except OSError as error:
            raise CoordinationError(f"cannot run {command[0]}: {error.strerror}") from error
        try:
            self._await_answer(self._process, timeout_s)
        except BaseException:
            self.kill()
            raise

    def wait(self) -> int:
        """Waits until the server ends by itself; returns its exit status."""
        if self._process is None:
            raise CoordinationError(f"{self._name} has not been started")
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

    @property
    def _name(self) -> str:
        return f"{self.product} at {self.address}"

    def _await_answer(self, process: ChildProcess, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if process.status is not None:
                raise CoordinationError(f"{self.product} ended with status {process.status}; see {self.log}")
            if self.answers():
                return
            time.sleep(_POLL_S)
        raise CoordinationError(f"{self._name} did not answer within {timeout_s:g} s; see {self.log}")
