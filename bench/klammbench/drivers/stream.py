"""A stream of records through a cluster whose leaders are killed, stopped or paused: what Klamm's own clients see.

An idempotent producer (acks=all) sends a record every few milliseconds to one partition, and a consumer reads along.
A gap is the longest pause between two acknowledgements, or two records read, around what was done to the leader. At the
end every acknowledged record has to be read once and in order.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import klamm
from klamm import ClusterClient, NewTopic, TopicPartition
from klamm.errors import KlammError
from klammbench.systems.base import Cluster

TOPIC = "fail-over"
T0 = TopicPartition(TOPIC, 0)
PATIENCE_S = 120.0
AROUND_S = 10.0
"""Seconds after the kill within which the longest pause is looked for."""
EVERY_S = 0.005

How = Literal["kill", "stop", "pause"]
"""SIGKILL, a controlled shutdown, or SIGSTOP until another broker leads."""
_SETTLED_S = 1.0
_GOES_ON_S = 1.0


@dataclass(frozen=True, slots=True)
class Pauses:
    """The gaps of one stream in seconds, one for each leader that ended. `problems` says what was lost, read twice or
    out of order.
    """

    acknowledgements: Sequence[float]
    records: Sequence[float]
    acknowledged: int
    read: int
    failed: Sequence[str]
    """The errors of the sends that failed."""
    problems: Sequence[str]


def p99(gaps: Sequence[float]) -> float:
    ordered = sorted(gaps)
    return ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def median(gaps: Sequence[float]) -> float:
    return statistics.median(gaps)


def end_leaders(
    cluster: Cluster,
    how: How,
    rounds: int,
    every_s: float = EVERY_S,
    say: Callable[[str], None] = lambda _: None,
) -> Pauses:
    """Kills, stops or pauses the stream's leader and brings it back, `rounds` times. The cluster runs and has not had a
    stream yet, or one of this function. `say` is called at the end with a line for each round.
    """
    replicas = len(cluster.brokers)
    with ClusterClient(cluster.bootstrap, codecs=klamm.load_settings({}).codec_table()) as client:

        def in_sync() -> int:
            """0 while the broker that answers does not know the new topic yet."""
            partition = client.metadata([TOPIC]).topics[TOPIC].partitions.get(0)
            return len(partition.isr) if partition else 0

        wait(lambda: len(client.metadata([]).nodes) == replicas, "all brokers are there")
        client.create_topics({TOPIC: NewTopic(1, replicas, {"min.insync.replicas": "2"})}, timeout_s=30)
        wait(lambda: in_sync() == replicas, "all replicas are in sync")
        stream = Stream(cluster.bootstrap, every_s)
        ends: list[tuple[int, float, float]] = []
        try:
            for _ in range(rounds):
                time.sleep(_SETTLED_S)
                wait(lambda: in_sync() == replicas, "all replicas are in sync")
                leader = client.metadata([TOPIC]).topics[TOPIC].partitions[0].leader
                begin = time.monotonic()
                with _without(cluster, leader, how):
                    ended = time.monotonic()
                    wait(lambda: bool(stream.read) and stream.read[-1][0] > ended + _GOES_ON_S, "the stream goes on")  # noqa: B023
                    wait(lambda: bool(stream.acknowledged) and stream.acknowledged[-1][0] > ended, "a send succeeds")  # noqa: B023
                    ends.append((leader, begin, ended + AROUND_S))
        finally:
            problems = stream.finish()
        client.delete_topics([TOPIC], timeout_s=30)
    produced = [gap(stream.acknowledged, begin, end) for _, begin, end in ends]
    consumed = [gap(stream.read, begin, end) for _, begin, end in ends]
    for number, (leader, _, _) in enumerate(ends):
        say(f"{number + 1}: broker {leader}: {produced[number] * 1000:.0f} ms without an acknowledgement, "
            f"{consumed[number] * 1000:.0f} ms without a record")  # fmt: skip
    return Pauses(produced, consumed, len(stream.acknowledged), len(stream.read), stream.failed, problems)


@contextmanager
def _without(cluster: Cluster, broker: int, how: How) -> Iterator[None]:
    """Ends the broker or pauses it, and brings it back at the end of the context."""
    if how == "pause":
        pids = cluster.broker_pids(broker)
        _signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(pids, signal.SIGCONT)
        return
    (cluster.kill_broker if how == "kill" else cluster.stop_broker)(broker)
    yield
    cluster.start_broker(broker)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


class Stream:
    """A producer that sends without pause, and a consumer that reads along; both note when."""

    def __init__(self, bootstrap: str, every_s: float) -> None:
        self.acknowledged: list[tuple[float, int]] = []
        """(time, number) of each acknowledgement."""
        self.read: list[tuple[float, int]] = []
        self.failed: list[str] = []
        self._every_s = every_s
        self._stop = threading.Event()
        self._drained = threading.Event()
        clients = {"bootstrap.servers": bootstrap}
        self._producer = klamm.Producer({"producer": {**clients, "linger.ms": 0, "acks": "all"}})
        self._consumer = klamm.Consumer({"consumer": {**clients, "auto.offset.reset": "earliest"}})
        self._consumer.assign([T0])
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._poll)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        number = 0
        while not self._stop.is_set():
            future = self._producer.send(TOPIC, b"%d" % number, partition=0)
            future.add_done_callback(lambda done, number=number: self._sent(done, number))  # type: ignore[misc]
            number += 1
            self._stop.wait(self._every_s)
        self._producer.close(PATIENCE_S)

    def _sent(self, future: Any, number: int) -> None:
        error = future.exception()
        if error is None:
            self.acknowledged.append((time.monotonic(), number))
        else:
            self.failed.append(str(error))

    def _poll(self) -> None:
        while not self._drained.is_set():
            records = self._consumer.poll(0.1)
            now = time.monotonic()
            self.read += [(now, int(record.value)) for record in records]
        self._consumer.close()

    def finish(self) -> list[str]:
        """Ends the stream; returns what is wrong with what was read."""
        self._stop.set()
        self._threads[0].join()
        wanted = {number for _, number in self.acknowledged}
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not wanted <= {number for _, number in self.read}:
            time.sleep(0.1)
        self._drained.set()
        self._threads[1].join()
        numbers = [number for _, number in self.read]
        lost, seen = wanted - set(numbers), set(numbers)
        problems = [f"{len(lost)} acknowledged records were not read: {sorted(lost)[:10]}"] if lost else []
        if len(seen) < len(numbers):
            problems.append(f"{len(numbers) - len(seen)} records were read twice")
        if numbers != sorted(numbers):
            problems.append("records were read out of order")
        return problems


def gap(events: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    """Returns the longest pause between two events that lies in the time from `begin` to `end`, at least in part."""
    times = [at for at, _ in list(events)]
    first = max(bisect_left(times, begin) - 1, 0)
    last = bisect_left(times, end) + 1
    return max((later - earlier for earlier, later in pairwise(times[first:last])), default=float("inf"))


def wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except KlammError as error:
            what = f"{what} ({error})"
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:.0f} s: {what}")
        time.sleep(0.05)
