"""A real single-member etcd server: for `klamm etcd` and the tests.

It listens on 127.0.0.1 only. States: stopped → `start` → running → `stop` or `kill` → stopped; its data stays.
"""

from __future__ import annotations

import json
import shutil
import time
import urllib.request
from pathlib import Path
from typing import Self

from klamm.core.child_process import HOST, ChildProcess, check_port
from klamm.plugin import ConfigError, CoordinationError

_POLL_S = 0.02
_FLAGS = (
    "--max-txn-ops=8192",  # a change of 500 partitions is about 1,010 operations; the default is 128
    "--max-request-bytes=4194304",
    "--auto-compaction-mode=revision", "--auto-compaction-retention=1000",  # Klamm reads no history
    # A lease lives for at least one and a half election time-outs.
    "--heartbeat-interval=50", "--election-timeout=500",
    "--logger=zap", "--log-level=warn",
)  # fmt: skip


def find_etcd() -> str:
    """Returns the `etcd` of `PATH`; raises `ConfigError`, which says what to install."""
    found = shutil.which("etcd")
    if found is None:
        raise ConfigError(
            "no etcd found: install etcd 3.4 or newer (for example `apt-get install etcd-server`), or name the members "
            "of a running cluster in `etcd.endpoints`"
        )
    return found


class EtcdServer:
    """A context manager that starts the server on entry and stops it on exit. `data_dir` is created if it does not
    exist."""

    def __init__(
        self, data_dir: Path, port: int = 2379, *, flags: tuple[str, ...] = (), ends_with_parent: bool = False
    ) -> None:
        """`flags`: further flags of etcd, which override the server's own. `ends_with_parent`: the server is killed
        when the thread that starts it ends in any way (on Linux), so start it from the main thread."""
        self._data_dir = data_dir
        self.port = port
        self._flags = flags
        self._ends_with_parent = ends_with_parent
        self._process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """The value for `etcd.endpoints`."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the server and returns once it responds. Raises `ConfigError` without etcd, and `CoordinationError`
        with one line if the port is in use or the server does not start."""
        if self._process is not None:
            raise CoordinationError(f"etcd at {self.url} has been started already")
        program = find_etcd()
        check_port(self.port, "stop the process that uses it (an etcd?) or give another --port", CoordinationError)
        log = self._data_dir / "etcd.log"
        try:
            self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._process = ChildProcess(
                f"etcd at {self.url}", self._command(program), log, ends_with_parent=self._ends_with_parent
            )
        except OSError as error:
            raise CoordinationError(f"cannot write {log}: {error.strerror}; give another --data-dir") from error
        try:
            self._await_answer(timeout_s, log)
        except BaseException:
            self.kill()
            raise

    def wait(self) -> int:
        """Waits until the server ends by itself; returns its exit status."""
        if self._process is None:
            raise CoordinationError(f"etcd at {self.url} has not been started")
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

    def _command(self, program: str) -> list[str]:
        peer = f"http://{HOST}:0"  # no other member ever connects
        return [
            program, "--name=klamm", f"--data-dir={self._data_dir.resolve() / 'etcd'}",
            f"--listen-client-urls={self.url}", f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=klamm={peer}",
            *_FLAGS, *self._flags,
        ]  # fmt: skip

    def _await_answer(self, timeout_s: float, log: Path) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            status = None if self._process is None else self._process.status
            if status is not None:
                raise CoordinationError(f"etcd ended with status {status}; see {log}")
            if is_healthy(self.url):
                return
            time.sleep(_POLL_S)
        raise CoordinationError(f"etcd at {self.url} did not answer within {timeout_s:g} s; see {log}")


def is_healthy(url: str) -> bool:
    """Returns whether an etcd there has a leader and serves requests."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as response:
            return bool(json.load(response).get("health") == "true")
    except (OSError, ValueError):
        return False
