"""Apache Kafka's Java client as a sender and as a consumer, each a process of its own.

Maven brings its jars, once, into `var/faults/java`; `java` compiles the one source file at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from klamm.core.records.partition import TopicPartition
from klammtest.history import History, Poll

from .senders import DELIVERY_MS, Done
from .watchers import Watcher

TOOLS: Final = ("javac=openjdk-17-jdk-headless", "mvn=maven")
_HERE: Final = Path(__file__).parent / "java"
_CACHE: Final = Path(__file__).resolve().parents[4] / "var" / "faults" / "java"
_END_S: Final = DELIVERY_MS / 1000 + 30


_FETCHING: Final = threading.Lock()


def class_path(of: str = "") -> str:
    """Returns the jars of the client, or of the `tools`; Maven fetches them the first time. Thread-safe, also beside
    other processes."""
    pom = _HERE / of / "pom.xml"
    folder = _CACHE / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    with _FETCHING:
        if not folder.is_dir():
            _fetch(pom, folder)
    return f"{folder}/*"


def _fetch(pom: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        jars = Path(partial, "jars")
        goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}")
        subprocess.run(("mvn", "-q", "-B", "-f", str(pom), *goal), check=True, stdout=subprocess.DEVNULL)
        with contextlib.suppress(OSError):  # another process was faster
            jars.rename(folder)


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = (
        "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path(),
        str(_HERE / "KafkaClient.java"), *arguments,
    )  # fmt: skip
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


class JavaProducer:
    """A `senders.Client`."""

    def __init__(self, bootstrap: str) -> None:
        self._process = _start("produce", bootstrap, str(DELIVERY_MS))
        self._waiting: dict[str, Done] = {}
        self._reader = threading.Thread(target=self._read, name="java-producer", daemon=True)
        self._reader.start()

    def send(self, topic: str, partition: int, value: bytes, done: Done) -> None:
        text = value.decode()
        self._waiting[text] = done
        assert self._process.stdin is not None
        self._process.stdin.write(f"{topic} {partition} {text}\n")
        self._process.stdin.flush()

    def serve(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            value, became = line.split()
            is_offset = became.lstrip("-").isdecimal()
            self._waiting.pop(value)(None if is_offset else became, int(became) if is_offset else -1)
        for done in self._waiting.values():
            done("the process ended", -1)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(_END_S)
        self._reader.join(_END_S)


class JavaConsumer(Watcher):
    """Reads all partitions from their start; it may not lose its position."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, history: History) -> None:
        super().__init__("consumer java")
        self._arguments = (bootstrap, topic, str(partitions))
        self._topic, self._history = topic, history

    def open(self) -> None:
        self._process = _start("consume", *self._arguments)

    def step(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Java consumer ended with {self._process.wait()}")
        partition, offset, value = map(int, line.split())
        self._history.polled(TopicPartition(self._topic, partition), [Poll(self.name, offset, value)])

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.flush()
        self._process.wait(_END_S)
        self._stopping.set()
        self._thread.join(_END_S)
        if self.failure is not None and self._process.returncode:
            raise RuntimeError(f"{self.name} ended: {self.failure!r}") from self.failure
