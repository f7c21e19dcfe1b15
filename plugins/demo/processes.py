"""The demo's processes: each in its own process group, each with a log, all ended at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from klamm.plugin import KlammError

KLAMM = (sys.executable, "-m", "klamm")
STOP_S = 15.0


class DemoError(KlammError):
    """A step of the demo failed; names the process and its last line."""


class Child:
    """One process, with its children (Spark's JVM) in one group: Ctrl-C reaches only the demo, which ends them."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=log.parent.parent,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def line(self) -> None:
        """Writes an empty line to the process's stdin."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: `check` says why
            self.process.stdin.write(b"\n")
            self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def signal(self, number: int) -> None:
        """Sends the signal to the process and its children; does nothing when they have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Waits for the process and returns its exit status; raises `DemoError` if it does not end in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} did not end within {timeout_s:g} s; see {self._log}") from None

    def succeed(self, timeout_s: float) -> None:
        """Waits for the process; raises `DemoError` if it does not end in time, or fails."""
        if self.wait(timeout_s) != 0:
            raise self.failed()

    def check(self) -> None:
        """Raises `DemoError` if the process has ended and should not have."""
        if not self.running:
            raise self.failed()

    def failed(self) -> DemoError:
        return DemoError(
            f"{self.name} ended with status {self.process.returncode}: {self.last_line()} (see {self._log})"
        )

    def last_line(self) -> str:
        """Returns the last line of its log."""
        lines = [line for line in self.output().splitlines() if line.strip()]
        return lines[-1] if lines else "nothing"

    def stop(self) -> None:
        """Ends the process with SIGTERM, or with SIGKILL if that takes too long."""
        self.end_input()
        self.signal(signal.SIGTERM)
        self.await_stop()

    def await_stop(self) -> None:
        """Waits for the end of a process to which SIGTERM was sent; kills it if that takes too long."""
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kills the process and its children with SIGKILL."""
        self.signal(signal.SIGKILL)
        self.process.wait()


class Processes:
    """All processes of a run. A context manager: leaving it ends those that still run, the last started first."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []
        self._lock = threading.Lock()
        self._closed = False

    def start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        with self._lock:
            if self._closed:
                raise DemoError(f"{name} is not started: the demo is ending")
            child = Child(name, arguments, self._logs / f"{name}.log", environment or {})
            self._children.append(child)
            return child

    def run(self, name: str, arguments: Sequence[str], timeout_s: float) -> None:
        """Starts a process and waits until it ends. Raises `DemoError` if it does not end in time, or fails."""
        child = self.start(name, arguments)
        child.end_input()
        child.succeed(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes; none starts after that."""
        with self._lock:
            self._closed = True
        for child in reversed(self._children):
            if child.running:
                child.stop()
            child.end_input()


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float, *watched: Child) -> None:
    """Waits until `condition()` is true; raises `DemoError` on time-out or when a watched process ends."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for child in watched:
            child.check()
        if time.monotonic() > deadline:
            raise DemoError(f"{what} did not come about within {timeout_s:g} s")
        time.sleep(0.05)
