"""The timeline of a run of the demo: counts over time, phases with durations, and marks. For the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


class MarkKind(StrEnum):
    """The kind of a mark; also a class of the style sheet."""

    KILL = "kill"
    REBALANCE = "rebalance"
    LOAD = "load"
    NEWS = "news"


@dataclass(frozen=True)
class TimelineMark:
    """An event at one moment. Seconds are counted from the beginning of the run."""

    at_s: float
    kind: MarkKind
    text: str


@dataclass(frozen=True)
class Phase:
    name: str
    from_s: float
    to_s: float

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


@dataclass(frozen=True)
class Sample:
    """The number of records counted up to that time."""

    at_s: float
    produced: int
    consumed: int
    loaded: int


class Timeline:
    """`clock_s`: the seconds since the run began. Any thread may add to it."""

    def __init__(self, clock_s: Callable[[], float], wall_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._wall_offset_s = wall_s() - clock_s()
        self._samples: list[Sample] = []
        self._marks: list[TimelineMark] = []
        self._phases: list[Phase] = []

    def sample(self, produced: int, consumed: int, loaded: int) -> None:
        self._samples.append(Sample(self._clock_s(), produced, consumed, loaded))

    def mark(self, kind: MarkKind, text: str, wall_s: float | None = None) -> None:
        """Adds a mark at the present time, or at an instant of the wall clock that another process has noted."""
        at_s = self._clock_s() if wall_s is None else self.seconds_of(wall_s)
        self._marks.append(TimelineMark(at_s, kind, text))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds a phase that lasts as long as the block; phases may overlap."""
        from_s = self._clock_s()
        try:
            yield
        finally:
            self.add_phase(name, from_s, self._clock_s())

    def add_phase(self, name: str, from_s: float, to_s: float) -> None:
        """Adds a phase that is known only after it has ended."""
        self._phases.append(Phase(name, from_s, to_s))

    def seconds_of(self, wall_s: float) -> float:
        """Returns the seconds of an instant of the wall clock."""
        return wall_s - self._wall_offset_s

    @property
    def samples(self) -> list[Sample]:
        return list(self._samples)

    @property
    def marks(self) -> list[TimelineMark]:
        return sorted(self._marks, key=lambda mark: mark.at_s)

    @property
    def phases(self) -> list[Phase]:
        return sorted(self._phases, key=lambda phase: (phase.from_s, phase.to_s))
