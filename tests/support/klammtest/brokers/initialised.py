"""A broker as a new user starts it: `klamm init`, `klamm broker`, each as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from klammtest.ports import free_port, reserve

KLAMM = str(Path(sys.executable).parent / "klamm")
READY_TIMEOUT_S = 120


class InitialisedBroker:
    """Runs in `folder` with the file that `klamm init` wrote there. Only a port that is in use is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log_dir = folder / "data"
        self._port = 9092 if reserve(9092) else free_port()
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._stack = ExitStack()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> InitialisedBroker:
        with ExitStack() as stack:
            self.klamm("init")
            config = self.folder / "klamm.yaml"
            config.write_text(config.read_text().replace("9092", str(self._port)))
            self._start(stack, "broker")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def klamm(self, *arguments: str) -> str:
        """Runs one `klamm` command to its end and returns its output. Raises `RuntimeError` with its error line if it
        fails.
        """
        done = subprocess.run([KLAMM, *arguments], cwd=self.folder, env=self._env, text=True, capture_output=True,
                              timeout=READY_TIMEOUT_S, check=False)  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"klamm {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def create_topic(self, name: str, partitions: int = 1) -> None:
        self.klamm("topics", "create", name, "--partitions", str(partitions))

    def _start(self, stack: ExitStack, *arguments: str) -> None:
        """Starts a command that keeps running, and waits for its `ready` line. Its output goes into a file."""
        log = self.folder / f"{arguments[0]}.out"
        with log.open("wb") as out:
            process = subprocess.Popen([KLAMM, *arguments], cwd=self.folder, env=self._env, stdout=out,
                                       stderr=subprocess.STDOUT)  # fmt: skip
        stack.callback(_stop, process)
        for _ in range(READY_TIMEOUT_S * 10):
            if f"klamm {arguments[0]} ready" in log.read_text():
                return
            if process.poll() is not None:
                break
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise RuntimeError(f"klamm {' '.join(arguments)} was not ready in time:\n{log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(90)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(60)
