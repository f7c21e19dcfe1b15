"""One schedule: drivers run the micro-batches of a query in tasks, whose attempts fail, are killed, or live on.

What must hold, for rows that are all different: no row is ever stored twice; a driver that finds each task of a
micro-batch successful finds each row stored; when the faults end, a last driver completes the query.

Kinds of schedules: `CONCURRENT` (zombies, speculation, two drivers at once, each attempt with its rows in one order),
`REORDERED` (attempts one after the other, each with another order), `REPARTITIONED` (a driver starts with another
number of tasks; with one of these numbers the query can be completed), `UNORDERED` (concurrent, each with another
order, where a row may be stored twice, but no success is reported of it).

In a third of the schedules brokers forget the producers of tasks that no attempt runs, and retention removes the claims
while no driver lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from random import Random
from typing import Final

from klamm.hadoop.spark.attempt import Attempt, Digest
from klamm.hadoop.spark.claims import TaskIdentity

from .actor import Actor, Rows
from .cluster import Cluster, Partition

LAST_STEPS: Final = 20_000
UNORDERED_STEPS: Final = 2_000
"""The last steps of a schedule that need not come to an end."""
MOST_TASKS: Final = 4
PATIENCE: Final = 60
PAUSES: Final = 0.03
ATTEMPTS: Final = 4
"""Failures of a task that end its driver, as `spark.task.maxFailures`."""

MakeAttempt = Callable[..., Attempt[Rows]]
MakeActor = Callable[..., Actor]


class Kind(Enum):
    CONCURRENT = "concurrent"
    REORDERED = "reordered"
    REPARTITIONED = "repartitioned"
    UNORDERED = "unordered"


class ViolationError(AssertionError):
    """A schedule broke a rule."""


class Running:
    """An attempt that runs, and pauses now and then. Its driver may have given it up: it is a zombie then."""

    def __init__(self, actor: Actor, random: Random) -> None:
        self.actor = actor
        self._random = random
        self._pause = 0
        self._steps: Iterator[None] = actor.steps()
        self.is_over = False

    def step(self) -> None:
        if self._pause:
            self._pause -= 1
            return
        if self._random.random() < PAUSES:
            self._pause = self._random.randint(5, 100)
        if next(self._steps, self) is self:
            self.is_over = True


class Driver:
    """Runs the micro-batches from the checkpoint on. Dead if it has failed or was killed."""

    def __init__(self, world: World, run: str, tasks: int) -> None:
        self._world = world
        self.run = run
        self._tasks = tasks
        self.is_dead = False
        self._batch = world.committed
        self._begin()

    def _begin(self) -> None:
        self._attempts: dict[int, list[Running]] = {task: [] for task in range(self._tasks)}
        self._failures: Counter[int] = Counter()
        self._successful: set[int] = set()

    def step(self) -> None:
        world = self._world
        for task in range(self._tasks):
            for running in [one for one in self._attempts[task] if one.is_over]:
                self._attempts[task].remove(running)
                if running.actor.done:
                    self._successful.add(task)
                else:
                    self._failures[task] += 1
                    if self._failures[task] >= ATTEMPTS:
                        self.is_dead = True
                        return
            speculative = world.concurrent and world.faults and world.random.random() < 0.02
            if task not in self._successful and (not self._attempts[task] or speculative):
                self._attempts[task].append(world.launch(self.run, self._batch, task, self._tasks))
            if self._attempts[task] and world.faults and world.random.random() < 0.02:
                lost = self._attempts[task].pop()  # thought dead
                if not world.concurrent or world.random.random() < 0.5:
                    world.kill(lost)
        if len(self._successful) == self._tasks:
            world.check_stored(self._batch, self.run)
            if world.committed != self._batch:
                self.is_dead = True  # another driver has committed it: Spark ends the query
                return
            world.committed += 1
            self._batch += 1
            if self._batch < world.batches:
                self._begin()

    def kill(self) -> None:
        """Its tasks end with it, or are zombies."""
        self.is_dead = True
        for running in (one for attempts in self._attempts.values() for one in attempts):
            if not self._world.concurrent or self._world.random.random() < 0.5:
                self._world.kill(running)


class World:
    """See the module."""

    def __init__(self, seed: int, make: MakeAttempt = Attempt, actor: MakeActor = Actor) -> None:
        self.random = random = Random(seed)
        self.kind = random.choices(list(Kind), [5, 2, 3, 1])[0]
        self.concurrent = self.kind in (Kind.CONCURRENT, Kind.UNORDERED)
        self.faults = True
        self.committed = 0
        self.batches = random.randint(1, 3)
        self._make, self._make_actor = make, actor
        topic = [Partition("t", number) for number in range(random.randint(1, 3))]
        self.cluster = Cluster(random, topic, Partition("claims", 0), lost=random.choice((0.0, 0.1, 0.3)))
        self._tasks = random.randint(1, 3)
        self._rows = [
            [b"%d:%d" % (batch, n) for n in range(random.choice((1, 8, 30)))] for batch in range(self.batches)
        ]
        self._running: list[Running] = []
        self._drivers: list[Driver] = []
        self._attempts = self._runs = 0
        self._expires = random.random() < 0.3
        self.log: list[str] = []

    def launch(self, run: str, batch: int, task: int, tasks: int) -> Running:
        self._attempts += 1
        rows = self.rows_of(batch, task, tasks)
        if self.kind in (Kind.REORDERED, Kind.UNORDERED):
            self.random.shuffle(rows)
        identity = TaskIdentity("q", batch, task, run)
        name = f"{run}/{batch}/{task}/{self._attempts}"
        attempt = self._make(name, task, batch, run, name, patience=PATIENCE)
        running = Running(self._make_actor(self.cluster, identity, name, rows, attempt, self.random), self.random)
        self._running.append(running)
        return running

    def rows_of(self, batch: int, task: int, tasks: int) -> list[Digest]:
        rows = self._rows[batch]
        return rows[task * len(rows) // tasks : (task + 1) * len(rows) // tasks]

    def kill(self, running: Running) -> None:
        if running in self._running:
            self._running.remove(running)

    def run(self) -> None:
        """Runs the schedule. Raises `ViolationError`."""
        random = self.random
        for _ in range(random.randint(20, 600)):
            self._step()
            if random.random() < 0.01:
                self._fault()
        self._end()

    def _step(self) -> None:
        random = self.random
        self._drivers = [driver for driver in self._drivers if not driver.is_dead]
        if self.committed < self.batches and not self._drivers:
            self._start_driver()
        for log in self.cluster.logs():
            if log.high_watermark < log.end and (not self.faults or random.random() < 0.3):
                log.replicate()
        if self._drivers and self.committed < self.batches:
            random.choice(self._drivers).step()
        if self._running:
            for _ in range(random.randint(1, 4)):
                running = random.choice(self._running)
                running.step()
                if running.is_over:
                    self._running.remove(running)
                    break
                if not self._running:
                    break

    def _start_driver(self) -> None:
        self._runs += 1
        if not self.concurrent:
            self._running.clear()
        if self._expires and not self._running and not self._drivers and self.faults and self.random.random() < 0.5:
            self._forget_producers()
            if self.random.random() < 0.5:
                self.cluster.claims.start = self.cluster.claims.end  # retention
        tasks = self._tasks
        if self.kind is Kind.REPARTITIONED and self._runs > 1:
            tasks = self.random.randint(1, MOST_TASKS) if self.faults else self._runs % MOST_TASKS + 1
        self._drivers.append(Driver(self, f"run-{self._runs}", tasks))

    def _forget_producers(self) -> None:
        """Brokers forget the producers of tasks that no attempt runs."""
        running = {one.actor.producer.producer_id for one in self._running}
        for log in self.cluster.logs():
            log.replicate()
            log.forget_producers(lambda producer_id: producer_id not in running)

    def _fault(self) -> None:
        random = self.random
        what = random.choice(("leader", "kill driver", "second driver", "kill attempt", "partition", "expiration"))
        if what == "leader":
            random.choice(self.cluster.logs()).change_leader(random)
        elif what == "kill driver" and self._drivers:
            random.choice(self._drivers).kill()
        elif what == "second driver" and self.concurrent and self.committed < self.batches:
            self._start_driver()
        elif what == "kill attempt" and self._running:
            self.kill(random.choice(self._running))
        elif what == "expiration" and self._expires:
            self._forget_producers()
        elif what == "partition" and len(self.cluster.topic) < 4:
            self.cluster.topic.append(Partition("t", len(self.cluster.topic)))

    def _end(self) -> None:
        """The faults end: the query is completed. Zombies go on."""
        self.faults = self.cluster.faults = False
        for driver in self._drivers:
            driver.kill()
        self._drivers = []
        for _ in range(UNORDERED_STEPS if self.kind is Kind.UNORDERED else LAST_STEPS):
            if self.committed == self.batches and not self._running:
                break
            self._step()
        else:
            if self.kind is not Kind.UNORDERED:
                raise ViolationError(f"the query stands still in batch {self.committed}: {self._reasons()}")
        if self.kind is not Kind.UNORDERED:
            self._check_doubles()

    def _reasons(self) -> str:
        return "; ".join(sorted({one.actor.attempt.state.value for one in self._running}) or ["attempts are refused"])

    def check_stored(self, batch: int, run: str) -> None:
        """All tasks of a micro-batch have succeeded."""
        stored = self._stored(batch)
        for row in self._rows[batch]:
            if stored[row] != 1:
                raise ViolationError(f"{run} reports batch {batch} written: row {row!r} is stored {stored[row]} times")
        if self.kind is not Kind.UNORDERED:
            self._check_doubles()

    def _stored(self, batch: int) -> Counter[Digest]:
        prefix = b"%d:" % batch
        rows = (row for log in self.cluster.topic for one in log.visible() for row in one.content)
        return Counter(row for row in rows if isinstance(row, bytes) and row.startswith(prefix))

    def _check_doubles(self) -> None:
        for batch in range(self.batches):
            twice = [row for row, count in self._stored(batch).items() if count > 1]
            if twice:
                raise ViolationError(f"rows of batch {batch} are stored twice: {twice[:3]}")
