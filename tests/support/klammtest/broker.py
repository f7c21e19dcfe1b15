"""A real broker for tests: `klamm broker` as a process of its own, so that kill -9 and restarts are real.

It is forked from a process that has imported Klamm, where that makes no difference (`klammtest.forking`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from klamm.core.cluster.tree import paths
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Coordination
from klamm.core.protocol.apis import ApiKey
from klamm.plugins.coordination.embedded.lock_holder import write_lock_holder
from klammtest.forking import ForkedProcess, fork_server
from klammtest.ports import free_port
from klammtest.waiting import freeze, within
from klammtest.wire import WireClient, part

KLAMM = str(Path(sys.executable).parent / "klamm")
READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 90.0
SUPPORT = Path(__file__).resolve().parents[1]
SPAWNED = str(SUPPORT / "spawned")
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join((SPAWNED, str(SUPPORT)))}
"""Environment of the broker's process, which can import plugins from `klammtest`."""


class RunningBroker:
    """A broker's process; `bootstrap` stays the same over `kill`, `stop` and `restart`."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        port: int,
        environment: Mapping[str, str] | None = None,
        *,
        host: str = "127.0.0.1",
        inside: Sequence[str] = (),
        command: str = KLAMM,
    ) -> None:
        """`inside`: a command that runs the broker's command in another place, as `nsenter` does. `command`: a `klamm`,
        of this environment or another.
        """
        self.folder = folder
        self.port = port
        self.bootstrap = f"{host}:{port}"
        self.config_path = folder / "klamm.yaml"
        self.log_dir = folder / "data"
        self.output = folder / "broker.out"
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._command = [*inside, command]
        self.environment = dict(environment or {})  # for the next start, on top of `ENVIRONMENT`
        self.config_path.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        coordination = config.get("coordination") or {}
        embedded = coordination.get("plugin") == "embedded" and "path" in coordination
        self._coordination = Path(coordination["path"]) if embedded else None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *arguments: str) -> None:
        """Starts the broker and returns when it is ready; `arguments` are further ones of this start. Raises
        `RuntimeError` with its output if it is not ready in time.
        """
        with self.output.open("ab") as out:
            begin = out.tell()
            self._process = self._started(
                [*self._command, "broker", "--config", str(self.config_path), *arguments], out.fileno()
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            said = self.output.read_bytes()[begin:]
            if b"klamm broker ready" in said:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        self.kill()
        raise RuntimeError(f"the broker was not ready in time:\n{self.output.read_bytes()[begin:].decode()}")

    def _started(self, command: list[str], out: int) -> subprocess.Popen[bytes] | ForkedProcess:
        """Forks the process if it is this environment's `klamm` without variables of its own, which is quicker."""
        environment = {**ENVIRONMENT, **self.environment}
        if self._command == [KLAMM] and not self.environment:
            server = fork_server(environment)
            if server.environment == environment:
                return server.start(command, self.folder, out)
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=out, stderr=subprocess.STDOUT)

    def died(self, within_s: float = 0.0) -> bool:
        """Returns True if the process has ended by itself within that time."""
        if self._process is None:
            return True
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Sends SIGTERM (or another signal), waits, and returns the exit status."""
        return self._end(how)

    def restart(self) -> None:
        """Stops the broker if it runs, and starts it again on the same port and files."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stops the process (SIGSTOP): it is alive, but silent. It then does not hold the write lock of an embedded
        coordination, without which no other broker could write.
        """
        for _ in range(100):
            freeze(self.pid)
            if self._coordination is None or f"by process {self.pid} " not in write_lock_holder(self._coordination):
                return
            self.resume()
            time.sleep(0.01)
        raise RuntimeError(f"process {self.pid} always holds the lock of {self._coordination}")

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """Returns all output of the process so far."""
        return self.output.read_text(errors="replace")

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(how)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)
            raise RuntimeError(f"the broker did not end after {how.name}:\n{self.log()}") from None

    def create_topics(self, topics: Mapping[str, Mapping[str, Any]]) -> None:
        """Creates the missing topics of the file's `topics` section, as it describes them."""
        version = 7
        wanted = tuple(
            part(
                ApiKey.CREATE_TOPICS, version, "CreatableTopic",
                name=name,
                num_partitions=said.get("partitions", -1),
                replication_factor=said.get("replication.factor", -1),
                assignments=(),
                configs=tuple(
                    part(ApiKey.CREATE_TOPICS, version, "CreatableTopicConfig", name=key, value=str(value))
                    for key, value in said.get("config", {}).items()
                ),
            )
            for name, said in topics.items()
        )  # fmt: skip
        with WireClient(self.bootstrap) as client:
            answer = client.call(ApiKey.CREATE_TOPICS, version, topics=wanted, timeout=timedelta(seconds=20))
        for topic in answer.topics:
            if topic.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                raise RuntimeError(f"topic {topic.name}: {topic.error_code.name}: {topic.error_message}")


@contextmanager
def running_broker(
    folder: Path,
    *,
    port: int | None = None,
    topics: Mapping[str, Mapping[str, Any]] | None = None,
    broker: Mapping[str, Any] | None = None,
    coordination: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    command: str = KLAMM,
    **sections: Any,
) -> Iterator[RunningBroker]:
    """Runs a broker in `folder`, on a free port and with the embedded coordination unless others are given.

    `topics` (as in the file) are created; `broker` holds further broker keys; other sections go into the file as they
    are; `environment` is added to the process's own. `command`: a `klamm` of this environment or another. The broker is
    killed at the end, if it still runs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    config = {
        "broker": {
            "broker.id": 0,
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": "./data",
            "group.initial.rebalance.delay.ms": 0,
            **(broker or {}),
        },
        "coordination": coordination or {"plugin": "embedded", "path": "./coordination.db"},
        **({"topics": dict(topics)} if topics else {}),
        **sections,
    }
    running = RunningBroker(folder, config, port, environment, command=command)
    running.start()
    try:
        if topics:
            running.create_topics(topics)
        yield running
    finally:
        running.kill()


def pause_past_session(broker: RunningBroker, broker_id: int, tree: Coordination) -> None:
    """Stops the process (SIGSTOP) until its session has ended; `resume` continues it.

    A process that is stopped while it holds the lock of an embedded coordination keeps sessions from ending: it is
    continued for a moment and stopped again.
    """
    for _ in range(10):
        broker.pause()
        if within(lambda: tree.exists(paths.broker(broker_id)) is None, 10.0):
            return
        broker.resume()
        time.sleep(0.05)
    raise RuntimeError(f"the session of broker {broker_id} did not expire")
