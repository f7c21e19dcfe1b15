"""Many connections, most of them hostile, beside one ordinary client of a real broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import psutil

from harness import Result, Run
from klammtest.broker import RunningBroker, running_broker
from klammtest.ports import free_port
from klammtest.requests import batch, produce
from klammtest.wire import WireClient
from peers.crowd import HALF_OPEN, IDLE, SLOW_LORIS, SLOW_READER, Crowd, all_descriptors, command
from peers.ordinary import Latencies, Ordinary, now_ms, quantile

MIB = 1 << 20
DEADLINE_S = 120.0
MOST_RATIO = 3.0
FLOOR_S = 0.002
"""A quiet p99 below this counts as this value: at shorter times, one scheduling of another process on a machine with
two cores decides.
"""
PER_CONNECTION = 16 * 1024
"""Bytes that a connection may cost on top of the limits."""
SPARE = 48 * MIB
"""Allowance in bytes for the allocator, threads, and data under way from the log to a connection."""
BATCH = 60_000
FETCH = 8 * MIB
_UNEXPECTED = re.compile(r" ERROR |Traceback|unexpected ")


@dataclass(frozen=True)
class Size:
    """Number of connections of each kind, and the duration of each phase."""

    idle: int
    half_open: int
    slow_readers: int
    slow_loris: int
    pairs: int
    frame_s: int
    response_bytes: int


FULL = Size(10_000, 1_000, 500, 200, pairs=1_500, frame_s=60, response_bytes=256 * MIB)
QUICK = Size(500, 50, 25, 10, pairs=60, frame_s=2, response_bytes=32 * MIB)
UNBOUNDED = 4_096 * MIB


class Connections:
    name = "connections"
    injects = (
        "connections from eight loopback addresses: 10,000 idle, 1,000 half-open (part of a frame, then their process "
        "is stopped), 500 slow readers (8 MiB asked for five times, 16 bytes a second read), 200 slow-loris senders "
        "(a byte a second); the last two come again when they are closed"
    )
    asserts = (
        f"one ordinary client's p99 stays within {MOST_RATIO:.0f} x of its quiet value or of {FLOOR_S * 1e3:.0f} ms "
        f"(full length only); all are let in; memory stays below {PER_CONNECTION >> 10} KiB a connection over its "
        "bounds; each half-open one is closed in its time; file descriptors come back; what the client wrote is there"
    )
    plants = "no bound on the memory of responses that are not read"
    tools = ()

    def run(self, run: Run) -> Result:
        all_descriptors()  # the broker inherits the limit
        size = QUICK if run.quick else FULL
        result = Result(wanted=size.idle + size.half_open + size.slow_readers + size.slow_loris)
        metrics_port = free_port()
        keys = {
            "metrics.port": metrics_port,
            "max.connections": result.wanted + 100,
            "socket.receive.timeout.ms": size.frame_s * 1_000,
            "queued.max.response.bytes": UNBOUNDED if run.plant else size.response_bytes,
        }
        topics = {"ordinary": {"partitions": 1}, "large": {"partitions": 1}}
        with (
            TemporaryDirectory(prefix="klamm-faults-") as folder,  # on a disk: files in memory are read differently
            running_broker(Path(folder) / "broker", topics=topics, broker=keys) as broker,
        ):
            _fill(broker)
            _Siege(broker, metrics_port, size, run, result).run()
        return result


class _Siege:
    def __init__(self, broker: RunningBroker, metrics_port: int, size: Size, run: Run, result: Result) -> None:
        self.broker, self.size, self.quick, self.result = broker, size, run.quick, result
        self._plant = run.plant
        self._process = psutil.Process(broker.pid)
        self._metrics = f"http://127.0.0.1:{metrics_port}/metrics"
        self._client = Ordinary(broker.bootstrap, "ordinary", 50, result)

    def run(self) -> None:
        self._client.go_on("warming up", lambda pairs: pairs >= 50)
        descriptors, resting = self._process.num_fds(), self._rss()
        self._forget_highest()
        quiet = self._measure("quiet")
        with ExitStack() as crowds:
            arriving = self._arrive(crowds, resting)
            crowded = self._measure("crowded")
            self._all_are_in()
            self._memory(resting)
            if self._plant:
                return
            self._half_open_ones_go()
        self._released(descriptors)
        quiet_again = self._measure("quiet again")
        self.result.figures["rss-after-mib"] = self._rss() // MIB
        self._client.read_all()
        self._client.close()
        self.result.acknowledged = len(self._client.values)
        self._judge(quiet, quiet_again, crowded, arriving)
        for line in [line for line in self.broker.log().splitlines() if _UNEXPECTED.search(line)][:5]:
            self.result.wrong("all", f"the broker said: {line}")

    # -- phases

    def _measure(self, phase: str) -> Latencies:
        return self._client.go_on(phase, lambda pairs: pairs >= self.size.pairs)

    def _arrive(self, crowds: ExitStack, resting: int) -> Latencies:
        """Starts all kinds of peers, one after the other, while the client continues."""
        size, found = self.size, Latencies()
        for kind, count in (
            (IDLE, size.idle), (HALF_OPEN, size.half_open), (SLOW_READER, size.slow_readers),
            (SLOW_LORIS, size.slow_loris),
        ):  # fmt: skip
            crowd = Crowd(kind, "127.0.0.1", self.broker.port, count, "large", FETCH)
            there = crowds.enter_context(_crowding(crowd, in_background=not self.quick))
            deadline = time.monotonic() + DEADLINE_S
            late = self._client.go_on(
                f"{kind} arrive", lambda _, there=there, by=deadline: there() or time.monotonic() > by
            )
            if not there():
                self.result.wrong(kind, f"not all {count} connections were accepted within {DEADLINE_S:.0f} s")
            self.result.injected += count
            found.requests += late.requests
            found.connects += late.connects
            if kind == IDLE:
                self.result.figures["idle-bytes-each"] = max(self._rss() - resting, 0) // count
        return found

    def _all_are_in(self) -> None:
        """Checks that the broker counts all connections; one that it closed for its slowness connects again within a
        second.
        """
        wanted = self.size.idle
        found = self._sample("server_socket_server_metrics_connection_count")
        self.result.figures["open"] = int(found)
        if found < wanted:
            self.result.wrong("crowded", f"{found:.0f} connections are open, but {wanted} idle ones connected")

    def _memory(self, resting: int) -> None:
        peak = self._highest()
        bound = resting + self.result.injected * PER_CONNECTION + self.size.response_bytes * 5 // 4 + SPARE
        # each reader may have 64 KiB that are not counted yet, and one more response of 64 KiB or one batch
        bound += self.size.slow_readers * 2 * 65_536
        self.result.figures |= {
            "rss-quiet-mib": resting // MIB, "rss-peak-mib": peak // MIB, "rss-bound-mib": bound // MIB,
            "unread-mib": int(self._sample("network_requestchannel_unreadresponsebytes")) // MIB,
        }  # fmt: skip
        if peak > bound:
            self.result.wrong("crowded", f"the broker held {peak // MIB} MiB, over the bound of {bound // MIB} MiB")

    def _half_open_ones_go(self) -> None:
        name = 'server_socket_server_metrics_connection_closed_total{reason="unfinished request"}'
        deadline = time.monotonic() + DEADLINE_S + self.size.frame_s
        while (gone := self._sample(name)) < self.size.half_open and time.monotonic() < deadline:
            self._client.go_on("half-open ones go", lambda pairs: pairs >= 25)
        self.result.figures["closed-unfinished"] = int(gone)
        if gone < self.size.half_open:
            self.result.wrong("half-open", f"{gone:.0f} of {self.size.half_open} unfinished requests were closed")

    def _released(self, descriptors: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while (left := self._process.num_fds() - descriptors) > 0 and time.monotonic() < deadline:
            self._client.go_on("release", lambda pairs: pairs >= 25)
        self.result.figures["descriptors-left"] = max(left, 0)
        if left > 0:
            self.result.wrong("release", f"{left} file descriptors are still open after all peers have disconnected")
        if (held := self._sample("network_requestchannel_unreadresponsebytes")) > 0:
            self.result.wrong("release", f"{held:.0f} bytes of responses are still counted, without a connection")
        if (held := self._sample("network_requestchannel_requestbytes")) > 0:
            self.result.wrong("release", f"{held:.0f} bytes of requests are still counted, without a connection")

    # -- judging

    def _judge(self, quiet: Latencies, again: Latencies, crowded: Latencies, arriving: Latencies) -> None:
        calm = max(quantile(quiet.requests, 0.99), quantile(again.requests, 0.99))
        late = quantile(crowded.requests, 0.99)
        for name, found in (("quiet", quiet), ("again", again), ("arriving", arriving), ("crowded", crowded)):
            self.result.figures[f"p50-{name}-us"] = int(quantile(found.requests, 0.5) * 1e6)
            self.result.figures[f"p99-{name}-us"] = int(quantile(found.requests, 0.99) * 1e6)
        self.result.figures["connect-worst-arriving-us"] = int(max(arriving.connects, default=0) * 1e6)
        self.result.figures["p99-ratio-percent"] = int(100 * late / max(calm, FLOOR_S))
        if not self.quick and late > MOST_RATIO * max(calm, FLOOR_S):
            self.result.wrong("crowded", f"p99 {late * 1e3:.1f} ms, quiet {calm * 1e3:.1f} ms")

    # -- measuring

    def _rss(self) -> int:
        return int(self._process.memory_info().rss)

    def _highest(self) -> int:
        """Returns the peak of the broker's memory since `_forget_highest`."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def _forget_highest(self) -> None:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def _sample(self, name: str) -> float:
        """Returns a metric's value; 0 if it does not exist yet."""
        with urllib.request.urlopen(self._metrics, timeout=DEADLINE_S) as answer:
            page = answer.read().decode()
        found = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"klamm_{name} ")]
        return float(found[0]) if found else 0.0


@contextmanager
def _crowding(crowd: Crowd, *, in_background: bool) -> Iterator[Callable[[], bool]]:
    """Runs the crowd's process; yields a function that returns True once all are connected. A crowd that is to vanish
    is stopped at that moment.

    `in_background`: the process gets only idle processor time, so that it takes none from the client whose latency is
    judged; on a busy machine it would get none.
    """
    background = ["chrt", "--idle", "0"] if in_background else []
    process = subprocess.Popen([*background, *command(crowd)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    said = False

    def there(out: IO[str] = process.stdout) -> bool:
        nonlocal said
        if process.poll() is not None:
            raise RuntimeError(f"the crowd of {crowd.kind} ended with {process.returncode}")
        if not said and out.readline().startswith("there"):
            said = True
            if crowd.kind == HALF_OPEN:
                process.send_signal(signal.SIGSTOP)
        return said

    try:
        yield there
    finally:
        process.kill()
        process.wait()


def _fill(broker: RunningBroker) -> None:
    """Writes more data than a slow reader requests."""
    with WireClient(broker.bootstrap) as wire:
        for _ in range(5 * FETCH // 4 // BATCH):
            outcome = produce(wire, "large", batch(b"." * BATCH, timestamp_ms=now_ms()), acks=1)
            assert outcome.error_code == 0, outcome


CAMPAIGNS = [Connections()]
