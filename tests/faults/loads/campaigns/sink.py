"""The Spark sink with attempts that run at the same time: two drivers with one checkpoint, a worker that is thought
dead and goes on, and speculation. Each row must be stored once.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from harness import Result, Run
from klamm.core.client.cluster_client import LATEST
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.spark.cluster import edges
from klammtest.broker import ENVIRONMENT
from klammtest.clients.numbered import Topics, number_topics
from klammtest.waiting import eventually
from loads.spark_cluster import kill_family, spark_cluster

ROWS, PARTITIONS = 1000, 2
WRITTEN = 2 * ROWS
"""Rows of a `df.write` by two tasks, so that a task has as many as that of a query."""
FULL, QUICK = 20, 2
MESSAGE_BYTES = "700"
"""The topic's largest batch, so that a task sends more batches than a broker remembers."""
LIMIT_S = 300.0
_DRIVER = Path(__file__).parents[1] / "sink_driver.py"
_FAULTS = Path(__file__).parents[2]
_PLACES = (("row", 1), ("sink.claimed", 1), ("sink.produced", 1), ("sink.produced", 4), ("sink.produced", 9))
_SMALL = (
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
)
_LOST = (
    "spark.executor.heartbeatInterval=1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs=6s",
    "spark.network.timeoutInterval=1s",
)
_EAGER = (
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.quantile=0.5",
    "spark.speculation.minTaskRuntime=2s",
)
_ENVIRONMENT = {
    **ENVIRONMENT,
    "PYTHONPATH": os.pathsep.join((str(_FAULTS), ENVIRONMENT["PYTHONPATH"])),
    "PYSPARK_PYTHON": sys.executable,
}


class SinkDriver:
    """A process of `sink_driver.py`."""

    def __init__(self, log: Path, master: str, settings: Sequence[str]) -> None:
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(_DRIVER), master, *_SMALL, *settings],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
                env=_ENVIRONMENT,
            )  # fmt: skip
        self._pool = ThreadPoolExecutor(1)
        self._started = self._pool.submit(self._hear, "ready")

    def started(self) -> SinkDriver:
        self._started.result(LIMIT_S)
        return self

    def ask(self, what: dict[str, Any]) -> Future[Any]:
        """Begins a write or a query; the future has its error, or None."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return self._pool.submit(self._hear, "done")

    def _hear(self, what: str) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())[what]

    def close(self) -> None:
        kill_family(self.process)
        self._pool.shutdown()


class Stage:
    """What an injection uses: the broker's topics, a topic of its own, and a folder in which attempts wait."""

    def __init__(self, topics: Topics, folder: Path, plant: bool, at: int) -> None:
        self._topics = topics
        self._plant = plant
        self.folder = folder / f"at-{at}"
        self.folder.mkdir()
        self.topic = f"{folder.name}-{at}"
        self.rows = 0
        topics.create(self.topic, PARTITIONS, max_message_bytes=MESSAGE_BYTES)
        self._partitions = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]

    def options(self, hold: str | None, place: tuple[str, int] = ("row", 1), *, first: bool = False) -> dict[str, str]:
        """Returns the options of the sink, whose attempts wait in that folder."""
        given = {"kafka.bootstrap.servers": self._topics.bootstrap, "topic": self.topic}
        given["held.plant"] = str(self._plant).lower()
        if hold is not None:
            (self.folder / hold).mkdir(exist_ok=True)
            given |= {"held.folder": str(self.folder / hold), "held.at": place[0], "held.nth": str(place[1])}
            given["held.first"] = str(first).lower()
        return given

    def waiting(self, hold: str) -> list[int]:
        """Returns the processes of the attempts that have waited."""
        return [int(file.name.split("-")[1]) for file in (self.folder / hold).glob("waiting-*")]

    def has_again(self, hold: str) -> bool:
        """Returns whether a second attempt of the first task has begun."""
        return (self.folder / hold / "again").exists()

    def ended(self, hold: str, pid: int) -> bool:
        """Returns whether the attempt that has waited has ended by itself."""
        return (self.folder / hold / f"ended-{pid}").exists()

    def await_end(self, hold: str, pid: int) -> None:
        """Waits until the attempt that has waited is over."""
        eventually(lambda: self.ended(hold, pid) or not alive(pid), "the attempt that waited ends", LIMIT_S)

    def end(self) -> int:
        """Returns how many rows are stored."""
        return sum(edges(self._topics.client, self._partitions, LATEST).values())

    def go(self, hold: str) -> None:
        (self.folder / hold / "go").touch()

    def give(self) -> None:
        """Adds a file of rows for a query."""
        files = self.folder / "in"
        files.mkdir(exist_ok=True)
        lines = "".join(f"{number}\n" for number in range(self.rows, self.rows + ROWS))
        (files / f"{self.rows}.part").write_text(lines)
        (files / f"{self.rows}.part").rename(files / f"{self.rows}.txt")
        self.rows += ROWS

    def query(self, options: dict[str, str]) -> dict[str, Any]:
        checkpoint = str(self.folder / "checkpoint")
        return {"query": f"{self.folder}/in/*.txt", "checkpoint": checkpoint, "options": options}

    def check(self, at: int, total: Result) -> None:
        """Counts rows that are missing or stored more than once."""
        stored = Counter(self._topics.numbers(self.topic))
        missing = [number for number in range(self.rows) if not stored[number]]
        twice = [number for number, count in stored.items() if count > 1]
        total.acknowledged += self.rows
        total.injected += 1
        if missing:
            total.lose(at, f"{len(missing)} rows are missing: {missing[:5]}", len(missing))
        if twice:
            total.wrong(at, f"{len(twice)} rows are stored more than once: {twice[:5]}")


@contextmanager
def drivers(run: Run, *of: tuple[str, Sequence[str]]) -> Iterator[list[SinkDriver]]:
    with ExitStack() as stack:
        made = [SinkDriver(run.folder / f"driver-{n}.log", *one) for n, one in enumerate(of)]
        for driver in made:
            stack.callback(driver.close)
        yield [driver.started() for driver in made]


def campaign(
    run: Run,
    one: Callable[[int, random.Random, Stage, list[SinkDriver], Result], None],
    *of: tuple[str, Sequence[str]],
) -> Result:
    total = Result(wanted=QUICK if run.quick else FULL)
    with number_topics(run.folder) as topics, drivers(run, *of) as made:
        for at, chance in run.injections(QUICK, FULL):
            stage = Stage(topics, run.folder, run.plant, at)
            one(at, chance, stage, made, total)
            stage.check(at, total)
    return total


class TwoDrivers:
    name = "sink-two-drivers"
    injects = (
        "a query is started by two drivers with one checkpoint; both wait before the first row, after the claim or "
        "between two batches, in the first micro-batch of the topic or in a later one, and go on together"
    )
    asserts = "each row is stored once, after both have ended and a third start has completed the query"
    plants = "each attempt of a task has a producer of its own"
    tools = ()

    def run(self, run: Run) -> Result:
        settings = ("local[2]", ())
        return campaign(run, two_drivers, settings, settings)


def two_drivers(at: int, chance: random.Random, stage: Stage, made: list[SinkDriver], total: Result) -> None:
    one, two = made
    if at % 2:
        stage.give()
        first = one.ask(stage.query(stage.options(None))).result(LIMIT_S)
        total.require(at, "micro-batches-before", first is None, str(first))
    stage.give()
    place = chance.choice(_PLACES)
    asked = []
    for name, driver in (("one", one), ("two", two)):
        asked.append(driver.ask(stage.query(stage.options(name, place if name == "one" else ("row", 1)))))
        eventually(lambda name=name, done=asked[-1]: stage.waiting(name) or done.done(), "an attempt waits", LIMIT_S)
    both = all(stage.waiting(name) for name in ("one", "two"))
    total.require(at, "both-begun", both, "one driver ended before the other one began")
    for name in chance.sample(("one", "two"), 2):
        stage.go(name)
    ends = [future.result(LIMIT_S) for future in asked]
    total.count("drivers-completed", sum(end is None for end in ends))
    last = one.ask(stage.query(stage.options(None))).result(LIMIT_S)
    total.require(at, "completed", last is None, f"{last}; before: {ends}")


class ThoughtDead:
    name = "sink-worker-thought-dead"
    injects = (
        "an executor with its Python workers is stopped (SIGSTOP) before a task's first row, after its claim or "
        "between two batches, until Spark has lost it and another executor has written all; then the worker goes on "
        "(SIGCONT)"
    )
    asserts = "the write ends with success, and each row is stored once, also after the worker's attempt has ended"
    plants = TwoDrivers.plants
    tools = ()

    def run(self, run: Run) -> Result:
        with spark_cluster(run.folder, _ENVIRONMENT) as master:
            return campaign(run, thought_dead, (master, _LOST))


def thought_dead(at: int, chance: random.Random, stage: Stage, made: list[SinkDriver], total: Result) -> None:
    done, worker = held_write(chance.choice(_PLACES), stage, made[0], "dead")
    assert worker is not None, f"no attempt waits; the write: {done}"
    stopped = executor_of(worker)
    for process in stopped:
        process.suspend()
    try:
        end = done.result(LIMIT_S)
        total.require(at, "written", end is None, str(end))
        total.require(at, "second-attempts", stage.has_again("dead"), "no second attempt has begun")
        stage.go("dead")
        with suppress(psutil.NoSuchProcess):
            psutil.Process(worker).resume()
        stage.await_end("dead", worker)
        total.require(at, "went-on", stage.ended("dead", worker), "the worker was killed")
    finally:
        for process in reversed(stopped):
            with suppress(psutil.NoSuchProcess):
                process.resume()


def held_write(place: tuple[str, int], stage: Stage, driver: SinkDriver, hold: str) -> tuple[Future[Any], int | None]:
    """Begins a write; returns when the first attempt of the first task waits, with its process; None if a second one
    has written all before it came there."""
    stage.rows = WRITTEN
    done = driver.ask({"write": WRITTEN, "options": stage.options(hold, place, first=True)})
    eventually(lambda: stage.waiting(hold) or done.done(), "an attempt waits", LIMIT_S)
    waiting = stage.waiting(hold)
    assert len(waiting) == 1 or (stage.has_again(hold) and not waiting), f"{len(waiting)} attempts wait at {place}"
    return done, waiting[0] if waiting else None


def executor_of(worker: int) -> list[psutil.Process]:
    """Returns the executor's JVM with all its processes."""
    process = psutil.Process(worker)
    while "java" not in process.name():
        parent = process.parent()
        assert parent is not None
        process = parent
    return [process, *process.children(recursive=True)]


def alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


class Speculation:
    name = "sink-speculation"
    injects = (
        "a task waits before its first row, after its claim or between two batches, until Spark has started a second "
        "attempt (spark.speculation); it goes on when that begins, has written some rows, or all"
    )
    asserts = "the write ends with success, and each row is stored once"
    plants = TwoDrivers.plants
    tools = ()

    def run(self, run: Run) -> Result:
        with spark_cluster(run.folder, _ENVIRONMENT) as master:
            return campaign(run, speculation, (master, _EAGER))


def speculation(at: int, chance: random.Random, stage: Stage, made: list[SinkDriver], total: Result) -> None:
    done, worker = held_write(chance.choice(_PLACES), stage, made[0], "slow")
    eventually(lambda: done.done() or stage.has_again("slow"), "a second attempt begins", LIMIT_S)
    begun = stage.end()
    rows = chance.choice((0, begun + 1, WRITTEN))
    eventually(lambda: done.done() or stage.end() >= min(rows, WRITTEN), "the second attempt writes", LIMIT_S)
    stage.go("slow")
    end = done.result(LIMIT_S)
    total.require(at, "written", end is None, str(end))
    total.require(at, "second-attempts", stage.has_again("slow"), "no second attempt has begun")
    total.count("overtaken", worker is None)
    if worker is not None:
        stage.await_end("slow", worker)
        total.count("went-on", stage.ended("slow", worker))


CAMPAIGNS = [TwoDrivers(), ThoughtDead(), Speculation()]
