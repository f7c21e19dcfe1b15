"""The job of a client program, and its result."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from klammbench.paths import PYTHON, ROOT

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """`batch_records` bounds a batch by its number of records instead of `batch_bytes` (the Kafka paper's batches)."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    value_bytes: int
    acks: int = 1
    batch_bytes: int = 65_536
    batch_records: int = 0
    linger_ms: int = 5
    fetch_bytes: int = 1_048_576
    """Most bytes of one partition in one Fetch response."""
    poll_records: int = 1000
    queued_records: int = 100_000
    """Records that librdkafka fetches ahead."""
    group: str = ""
    """The consumer's group, whose offsets it commits; without a group nothing is stored."""
    audit: bool = False
    """True if Klamm's own clients send their counts to the audit."""

    @property
    def value(self) -> bytes:
        return b"x" * self.value_bytes


@dataclass(frozen=True, slots=True)
class Took:
    """The result of a job: `records` in `seconds`, with `cpu_s` used by the client's process.

    `calls_s` is the time that a producer spent in its send calls; the rest of `seconds` was waiting for
    acknowledgements. `began` is CLOCK_MONOTONIC, which all processes share, in seconds.
    """

    records: int
    seconds: float
    cpu_s: float
    calls_s: float = 0.0
    began: float = 0.0

    @property
    def rate(self) -> float:
        return self.records / self.seconds

    @property
    def per_cpu_second(self) -> float:
        return self.records / self.cpu_s


Program = Callable[[Job], Took]


class Stopwatch:
    def __init__(self) -> None:
        self._begin, self._cpu = time.perf_counter(), time.process_time()
        self._calls_s, self._began = 0.0, time.monotonic()

    def called(self) -> None:
        """Records the time spent in send calls. Call it after the last `send`."""
        self._calls_s = time.perf_counter() - self._begin

    def took(self, records: int) -> Took:
        seconds, cpu_s = time.perf_counter() - self._begin, time.process_time() - self._cpu
        return Took(records, seconds, cpu_s, self._calls_s, self._began)


def count_received(receive: Callable[[], int], records: int) -> Took:
    """Calls `receive`, which returns a number of records, until `records` were received. The first result starts the
    clock and is not counted: joining, connecting and the first fetch lie before it."""
    first = 0
    deadline = time.monotonic() + TIMEOUT_S
    while not first and time.monotonic() < deadline:
        first = receive()
    watch, received = Stopwatch(), first
    while received < records:
        got = receive()
        received += got
        if not got and time.monotonic() > deadline:
            raise RuntimeError(f"{received} of {records} records arrived within {TIMEOUT_S:g} s")
    return watch.took(received - first)


def run_client(client: str, what: str, job: Job, then: Callable[[], None] | None = None) -> Took:
    """Runs the client in a new process. Raises `RuntimeError` with the end of its output if it fails. `then` is called
    as soon as the process prints its result, before it ends."""
    command = [str(PYTHON), "-m", "klammbench.clients", client, what, json.dumps(asdict(job))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench"), "PYTHONWARNINGS": "ignore"}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=ROOT
        ) as process,
    ):
        alarm = threading.Timer(TIMEOUT_S + 30, process.kill)
        alarm.start()
        try:
            line = process.stdout.readline() if process.stdout else ""
            if line and then:
                then()
            if process.wait() == 0 and line:
                return Took(**json.loads(line))
        except BaseException:
            process.kill()
            raise
        finally:
            alarm.cancel()
        errors.seek(0)
        raise RuntimeError(f"{client} {what}: {errors.read().strip()[-400:] or 'ended or took too long'}")
