"""What the campaigns against clusters of real brokers share, those of one cluster and those of a mirror: lives of a few
injections each, and the judgement at the end of a life.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cluster.coordinations import CoordinationSite
from harness import Result, Run, heard
from klamm.core.records.partition import TopicPartition
from klammtest.broker import RunningBroker
from klammtest.history import History, Verdict
from klammtest.replicated import senders
from klammtest.replicated.cluster import BrokerCluster
from klammtest.waiting import within

EVIDENCE = Path(__file__).parents[3] / "var" / "faults" / "cluster"
LIMIT_S = 180.0
"""Within which every partition is in sync again after a fault, and a mirror has what its source has."""
BROKER: Mapping[str, Any] = {"replica.lag.time.max.ms": 3_000, "log.flush.scheduler.interval.ms": 200}
MOST_PROBLEMS = 100
"""A campaign that has found more ends."""
_LOST = ("lost", "missing", "vanished")
_CORRUPT = ("polled", "inconsistent", "phantom", "offset", "not the source's", "differs")
_FIGURES = {"duplicated": "doubled", "reordered": "reordered"}


def polled(condition: Callable[[], object]) -> bool:
    """Returns True if the condition becomes true within `LIMIT_S`; it is asked ten times a second."""
    return within(lambda: condition() or time.sleep(0.1), LIMIT_S)


class LivesScene(ABC):
    """`cluster` is the one whose logs and consumers are judged; a subclass begins and ends a life of its topic."""

    partition_count: ClassVar[int]
    rate: ClassVar[float]
    """Records a second of each producer."""

    def __init__(self, cluster: BrokerCluster, total: Result, run: Run, coordination: CoordinationSite) -> None:
        self.cluster, self.total, self.run, self.coordination = cluster, total, run, coordination
        self.topic = ""
        self.history = History()
        self.senders: list[senders.Sender] = []
        self._senders_made = 0

    @property
    @abstractmethod
    def brokers(self) -> Mapping[str, RunningBroker]:
        """Those whose logs are read."""

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, n) for n in range(self.partition_count)]

    def leader_in(self, cluster: BrokerCluster, chance: random.Random) -> int:
        """Returns the leader of a random partition."""
        leaders = [s.leader for s in cluster.states(self.topic, self.partition_count).values() if s.leader >= 0]
        return chance.choice(leaders) if leaders else chance.choice(cluster.ids)

    def started(self, bootstrap: str, kinds: Mapping[str, Callable[[str], senders.Client]]) -> list[senders.Sender]:
        """Starts producers on the life's topic."""
        number = self._senders_made
        self._senders_made += len(kinds)
        return [
            senders.Sender(
                name, number + i, lambda make=make: make(bootstrap), self.topic, self.partition_count, self.history,
                self.rate,
            )
            for i, (name, make) in enumerate(kinds.items(), 1)
        ]  # fmt: skip

    def stop(self, at: int | str, stopped: Iterable[Any]) -> None:
        """Stops producers or consumers; counts a failure of theirs as wrong."""
        for one in stopped:
            try:
                one.stop()
            except RuntimeError as error:
                self.total.wrong(at, str(error))

    def await_equal_ends(
        self, at: str, watermarks: Callable[[], Mapping[TopicPartition, int]]
    ) -> dict[TopicPartition, int]:
        """Waits until each replica ends at the high watermark; returns the ends. `watermarks` returns none while they
        cannot be read."""
        ends: dict[TopicPartition, int] = {}

        def equal() -> bool:
            ends.clear()
            ends.update(watermarks())
            return bool(ends) and all(
                len(copies := self.cluster.replicas(tp)) == self.cluster.factor
                and all(copy.end == end for copy in copies)
                for tp, end in ends.items()
            )

        if not polled(equal):
            found = {str(tp): {copy.broker: copy.end for copy in self.cluster.replicas(tp)} for tp in self.partitions}
            self.total.wrong(at, f"replicas do not come to the same end: watermarks {text_of(ends)}, ends {found}")
        return ends

    def longest(self, figure: str, seconds: float) -> None:
        """Keeps the longest time of a figure."""
        self.total.figures[figure] = max(self.total.figures.get(figure, 0), round(seconds * 1000))

    # -- the judgement -----------------------------------------------------------------------------------------------

    def count(self, at: str, verdict: Verdict) -> None:
        self.total.acknowledged += verdict.acknowledged
        for figure in _FIGURES.values():
            self.total.count(figure, 0)
        for kind, tp, detail in verdict.anomalies:
            self.anomaly(at, kind, f"{tp}: {detail}")

    def anomaly(self, at: int | str, kind: str, what: str) -> None:
        if kind in _LOST:
            self.total.lose(at, f"{kind}: {what}")
        elif kind in _CORRUPT:
            self.total.corrupt(at, f"{kind}: {what}")
        else:
            self.total.count(_FIGURES.get(kind, kind))
            self.total.wrong(at, f"{kind}: {what}")

    def check_brokers(self, at: str) -> None:
        """Counts tracebacks in the brokers' logs as wrong."""
        for name, broker in self.brokers.items():
            text = broker.log()
            if "Traceback" in text:
                place = text.index("Traceback")
                self.total.wrong(at, f"a traceback in the log of {name}: {text[place : place + 1500]}")
                broker.output.write_text("")

    def evidence(self) -> Path:
        """Returns the folder of what the campaign keeps when it has found something."""
        folder = EVIDENCE / f"{self.run.name}-{self.run.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def keep_evidence(self, warnings: Sequence[str]) -> None:
        """Keeps the brokers' logs, and the warnings of clients, of a campaign that has found something."""
        if not self.total.problem_count or self.run.plant:
            return
        folder = self.evidence()
        (folder / "clients.out").write_text("".join(f"{line}\n" for line in warnings))
        for name, broker in self.brokers.items():
            (folder / f"{name}.out").write_text(broker.log())
        self.total.wrong("all", f"the logs are in {folder}")


def text_of(by_partition: Mapping[TopicPartition, object]) -> str:
    return ", ".join(f"{tp.partition}: {what}" for tp, what in by_partition.items())


@dataclass(frozen=True)
class LivesCampaign(ABC):
    """`quick` and `full` are numbers of injections, `a_life` how many share a topic. `plant` changes what the checker
    sees of the last life.
    """

    asserted: ClassVar[str]

    name: str
    injects: str
    inject: Callable[[int, random.Random, Any], None]
    plants: str
    plant: Callable[[Any], None]
    quick: int = 2
    full: int = 20
    site: Any = None
    a_life: int = 5
    extra: str = ""

    @property
    def asserts(self) -> str:
        return f"{self.asserted}; {self.extra}" if self.extra else self.asserted

    @property
    def tools(self) -> tuple[str, ...]:
        tools: tuple[str, ...] = self.site.tools
        return tools

    @abstractmethod
    def scene(self, run: Run, total: Result) -> AbstractContextManager[Any]: ...

    @abstractmethod
    def life(
        self, scene: Any, number: int, at: str, tamper: Callable[[Any], None] | None
    ) -> AbstractContextManager[None]:
        """Runs clients on a new topic meanwhile; then checks. `tamper` changes what the checker sees, before that."""

    def run(self, run: Run) -> Result:
        total = Result(wanted=self.quick if run.quick else self.full)
        injections = list(run.injections(self.quick, self.full))
        with heard("klammtest") as warnings, self.scene(run, total) as scene:
            try:
                for number, first in enumerate(range(0, len(injections), self.a_life)):
                    life = injections[first : first + self.a_life]
                    last = first + self.a_life >= len(injections)
                    at = f"{life[0][0]}-{life[-1][0]}"
                    with self.life(scene, number, at, self.plant if run.plant and last else None):
                        for i, chance in life:
                            scene.undergo(i, chance, self.inject)
                    if total.problem_count > MOST_PROBLEMS:
                        break
            except Exception as error:
                total.wrong("all", f"the campaign ended: {error!r}")
                raise
            finally:
                scene.keep_evidence(warnings)
        return total
