"""`KlammBroker`: a real broker in a process of its own, for tests.

The process is `klamm.testing.process`; this side starts it, sends it commands as lines of JSON, and imports only the
standard library. The port belongs to this process until it ends, so that a broker restarts on the same port. The
process ends when its standard input is closed, so that no broker outlives the test run, even one that is killed.
Thread-safe.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from klamm.testing.ports import free_port

__all__ = ["BrokerControlError", "KlammBroker", "StoredRecord"]

READY_TIMEOUT_S: Final = 120.0
_ANSWER_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 90.0
_DUMP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.02
_TAIL: Final = 2000
"""Characters of the broker's log that an error shows."""

Text = bytes | str
Topic = int | Mapping[str, Any]
"""The number of partitions, or the topic's section of `klamm.yaml`: `partitions`, `config`, `schema`, …"""


class BrokerControlError(RuntimeError):
    """The broker did not start, is not running, or refused what the test asked of it."""


class StoredRecord(NamedTuple):
    """A record as the broker stores it. `timestamp_ms`: since the epoch."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class KlammBroker:
    """A broker on a free port of 127.0.0.1, with the embedded coordination. Start it by `with`, or by `start`.

    `topics` exist from the start and after each `reset`: the number of partitions, or the topic's section as in
    `klamm.yaml`. A `schema` there is a path, a schema's text, or a dict. `folder` holds the data; without one it is a
    temporary folder, which is deleted at the end. Further keyword arguments are sections of `klamm.yaml`
    (`broker={"message.max.bytes": 1000}`).
    """

    def __init__(
        self, *, topics: Mapping[str, Topic] | None = None, folder: Path | str | None = None, port: int | None = None,
        **sections: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._lock = threading.RLock()
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="klamm-") if folder is None else folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port() if port is None else port
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._unread = b""
        self._named = 0
        self._sections = sections
        self._declared = {name: self._section(name, topic) for name, topic in (topics or {}).items()}
        self._topics = dict(self._declared)

    # -- where it is

    @property
    def bootstrap_servers(self) -> str:
        """`host:port`, the same over `kill`, `stop` and `restart`."""
        return f"127.0.0.1:{self.port}"

    @property
    def config_path(self) -> Path:
        """The broker's `klamm.yaml`, with the topics that this object has created: for `klamm.Producer`,
        `klamm.Consumer` and the option `--config` of commands.
        """
        return self.folder / "klamm.yaml"

    @property
    def log_path(self) -> Path:
        return self.folder / "broker.log"

    def log(self) -> str:
        """Returns the broker's log since its first start."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def is_running(self) -> bool:
        """True between `start` and the end of the process, also while it is paused."""
        return self._process is not None and self._process.poll() is None

    # -- life

    def __enter__(self) -> KlammBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Starts the broker and returns when it serves. Raises `BrokerControlError` with the end of its log if it does
        not. Does nothing if it runs.
        """
        with self._lock:
            if self.is_running:
                return
            self._end()
            self._write_config()
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "klamm.testing.process"],
                    cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, bufsize=0,
                )  # fmt: skip
            try:
                self._send({"config": str(self.config_path), "path": [entry for entry in sys.path if entry]})
                self._answer(READY_TIMEOUT_S)
                self._call("create_topics", names=list(self._topics))
            except BaseException:
                self._end()
                raise

    def stop(self) -> None:
        """Stops the broker cleanly, as SIGTERM does; the data stays for the next `start`."""
        with self._lock:
            self.resume()
            if self._process is not None and self.is_running:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_STOP_TIMEOUT_S)
            self._end()

    def kill(self) -> None:
        """Ends the broker by SIGKILL: connections break, nothing is flushed. The data stays for the next `start`."""
        with self._lock:
            self._end()

    def restart(self) -> None:
        """Stops the broker cleanly if it runs, and starts it on the same port with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stops the process (SIGSTOP): connections stay open, and nothing is answered until `resume`."""
        with self._lock:
            process = self._needed()
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)  # returns when all of its threads stand still
            self._paused = True

    def resume(self) -> None:
        """Continues a paused broker; does nothing otherwise."""
        with self._lock:
            if self._paused and self._process is not None:
                self._process.send_signal(signal.SIGCONT)
            self._paused = False

    def close(self) -> None:
        """Ends the broker, and deletes its folder if that is a temporary one."""
        self.kill()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def reset(self) -> None:
        """Makes the broker as it was at its start, within some ten milliseconds: starts or resumes it, ends all faults,
        deletes topics, registered schemas, and groups without members, and creates the declared topics again.
        """
        with self._lock:
            self.resume()
            self.start()
            self._topics = dict(self._declared)
            self._write_config()
            self._call("reset", names=list(self._topics))

    # -- topics and records

    def create_topic(
        self, name: str | None = None, partitions: int = 1, *, config: Mapping[str, Any] | None = None,
        schema: Mapping[str, Any] | str | Path | None = None, **keys: Any,
    ) -> str:  # fmt: skip
        """Creates a topic and returns its name, which is a new one if none is given. `config`: Kafka's topic settings;
        `schema` as in `topics` of the constructor; `keys`: further keys of the topic's section (`envelope="linkedin"`).
        """
        with self._lock:
            if name is None:
                self._named += 1
                name = f"topic-{self._named}"
            given: dict[str, Any] = {"partitions": partitions, "config": dict(config or {}), "schema": schema, **keys}
            before = dict(self._topics)
            self._topics[name] = self._section(name, {key: value for key, value in given.items() if value})
            self._write_config()
            try:
                self._call("create_topics", names=[name], exists_ok=False)
            except BrokerControlError:
                self._topics = before
                self._write_config()
                raise
            return name

    def delete_topic(self, name: str) -> None:
        self._call("delete_topic", name=name)

    def topics(self) -> dict[str, int]:
        """Returns the number of partitions of each topic, without internal ones (`__consumer_offsets`, `_schemas`)."""
        found: dict[str, int] = self._call("topics")
        return found

    def send(
        self, topic: str, value: Text | None, *, key: Text | None = None, partition: int = 0,
        headers: Sequence[tuple[str, bytes | None]] = (), timestamp_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Stores one record as it is (text as UTF-8) and returns its offset. Typed values: use `klamm.Producer`."""
        offset: int = self._call(
            "send", topic=topic, partition=partition, key=_packed(key), value=_packed(value),
            headers=[(name, _packed(data)) for name, data in headers],
            timestamp_ms=round(time.time() * 1000) if timestamp_ms is None else timestamp_ms,
        )  # fmt: skip
        return offset

    def records(self, topic: str, *, at_least: int = 0, timeout_s: float = 30.0) -> list[StoredRecord]:
        """Returns all records of the topic, by partition and offset, once there are `at_least` so many. Raises
        `BrokerControlError` if there are fewer after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            found = [
                StoredRecord(p, o, t, _unpacked(k), _unpacked(v), tuple((name, _unpacked(d)) for name, d in headers))
                for p, o, t, k, v, headers in self._call("records", topic=topic)
            ]
            if len(found) >= at_least:
                return found
            if time.monotonic() > deadline:
                raise BrokerControlError(f"topic {topic}: {len(found)} records after {timeout_s:g} s, not {at_least}")
            time.sleep(_POLL_S)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the committed offsets of a consumer group, by topic and partition."""
        return {(topic, partition): offset for topic, partition, offset in self._call("committed", group=group)}

    # -- faults

    def fail_next(self, api: str, error: str, *, times: int | None = 1) -> None:
        """The next `times` requests of this kind (`Produce`, `Fetch`, …, as Kafka names them) are not carried out, and
        are answered with this error (`NOT_LEADER_OR_FOLLOWER`). `times=None`: until `clear_faults`.
        """
        self._call("fault", api=api, kind="fail", error=error, times=times)

    def delay_next(self, api: str, seconds: float, *, times: int | None = 1) -> None:
        """The next `times` requests of this kind are carried out after this time; those behind them on the same
        connection wait too.
        """
        self._call("fault", api=api, kind="delay", seconds=seconds, times=times)

    def disconnect_next(self, api: str, *, carried_out: bool = False, times: int | None = 1) -> None:
        """The connections of the next `times` requests of this kind are closed without an answer. With
        `carried_out`, the request takes effect first: the records of a Produce are stored."""
        self._call("fault", api=api, kind="disconnect", carried_out=carried_out, times=times)

    def faults(self) -> list[str]:
        """Returns a line for each fault that has not been used up: empty once all have happened."""
        found: list[str] = self._call("faults")
        return found

    def clear_faults(self) -> None:
        self._call("clear_faults")

    # -- the process

    def _section(self, name: str, topic: Topic) -> dict[str, Any]:
        """Returns the topic's section of the file; a schema that is no path is written beside the file."""
        section: dict[str, Any] = {"partitions": topic} if isinstance(topic, int) else dict(topic)
        schema = section.get("schema")
        if isinstance(schema, Mapping) or (isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"')):
            file = self.folder / f"{name}.avsc"
            file.write_text(schema if isinstance(schema, str) else json.dumps(schema), encoding="utf-8")
            section["schema"] = str(file)
        elif schema is not None:
            section["schema"] = str(Path(schema).absolute())
        return section

    def _write_config(self) -> None:
        """JSON, which is YAML too."""
        own: dict[str, dict[str, Any]] = {
            "broker": {
                "broker.id": 0,
                "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
                "log.dirs": "data",
                "group.initial.rebalance.delay.ms": 0,
            },
            "coordination": {"plugin": "embedded", "path": "coordination.db", "session.timeout.ms": 60_000},
            "topics": self._topics,
            "producer": {"bootstrap.servers": self.bootstrap_servers},
            "consumer": {"bootstrap.servers": self.bootstrap_servers, "auto.offset.reset": "earliest"},
        }
        for name, section in self._sections.items():
            own[name] = {**own.get(name, {}), **section}
        written = json.dumps(own, indent=1, default=str)
        replaced = self.config_path.with_suffix(".new")
        replaced.write_text(written, encoding="utf-8")
        replaced.replace(self.config_path)

    def _needed(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerControlError("the broker does not run: call `start` (or `reset`)")
        if self._paused:
            raise BrokerControlError("the broker is paused: call `resume`")
        return self._process

    def _call(self, command: str, **arguments: Any) -> Any:
        with self._lock:
            self._needed()
            self._send({"do": command, **arguments})
            return self._answer(_ANSWER_TIMEOUT_S)

    def _send(self, message: Mapping[str, Any]) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_answer` says why it has ended
            process.stdin.write(json.dumps(message).encode() + b"\n")

    def _answer(self, timeout_s: float) -> Any:
        """Returns the answer to the last command; raises `BrokerControlError` with the process's own line."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                before = len(self.log())
                process.send_signal(signal.SIGUSR1)  # it writes into its log where its threads are, and ends
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_DUMP_TIMEOUT_S)
                self._end()
                log = self.log()[max(before - _TAIL, 0) :]
                raise BrokerControlError(f"the broker did not answer within {timeout_s:g} s:\n{log}")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                raise BrokerControlError(f"the broker has ended:\n{self.log()[-_TAIL:]}")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise BrokerControlError(answer["error"])
        return answer["ok"]

    def _end(self) -> None:
        process, self._process = self._process, None
        self._paused, self._unread = False, b""
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _packed(data: Text | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
