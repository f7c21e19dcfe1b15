"""The outcomes of the runs of one kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from klammtest.audit_truth.judging import Verdict
from klammtest.audit_truth.kinds import FaultKind


@dataclass(frozen=True)
class Run:
    """`found`: the report named the planted fault, and no event that did not happen."""

    number: int
    events: Sequence[str]
    verdict: Verdict
    found: bool


@dataclass
class Score:
    kind: FaultKind
    runs: int = 0
    found: int = 0
    missed: int = 0
    alarms: int = 0
    events: Counter[str] = field(default_factory=Counter)
    """Number of runs by event."""
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return not self.missed and not self.alarms

    def line(self) -> str:
        return f"{self.kind.name} runs {self.runs} found {self.found} missed {self.missed} false-alarms {self.alarms}"

    def what(self) -> str:
        """Returns the number of runs for each fault that was planted or event that happened."""
        names = dict.fromkeys(plant.__name__ for plant in self.kind.plants) or self.events
        return ", ".join(f"{name.replace('_', ' ')} {self.events[name]}" for name in names)

    def add(self, run: Run) -> None:
        self.runs += 1
        self.found += run.found
        self.missed += bool(run.verdict.missed)
        self.alarms += bool(run.verdict.alarms)
        self.events.update(run.events)
        for what, texts in (("missed", run.verdict.missed), ("false alarm", run.verdict.alarms)):
            self.wrong += [f"run {run.number} ({', '.join(run.events)}): {what}: {text}" for text in texts[:3]]
