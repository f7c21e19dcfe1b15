"""What a shape's module offers to the harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from klammbench.metric import Metric
from klammbench.systems.base import System
from klammbench.table import AGAIN, Table
from klammbench.targets import Target

BROKERS: Sequence[str] = ("klamm", "kafka", "kafka-tuned", AGAIN)


class Cell(Protocol):
    """A frozen dataclass of the shape's own; `name` is unique in the shape."""

    @property
    def name(self) -> str: ...


class Shape(Protocol):
    NAME: str
    """The letter of the issue."""
    TITLE: str
    SYSTEMS: Sequence[str]
    """Names in `systems.SYSTEMS`, and `AGAIN`."""
    METRICS: Mapping[str, Metric]
    MANAGED: bool
    """True: the harness starts each system once and `run` finds it running; False: `run` starts and stops it."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Asked once in a run, before any system is started."""
        ...

    def warm(self, system: System) -> None:
        """Before the first round, on each system; only where MANAGED."""
        ...

    def run(self, cell: Any, system: System, number: int) -> Mapping[str, float]:
        """One measurement; `number` is unique in the process (for topic names). Leaves no data behind."""
        ...

    def targets(self, table: Table) -> Sequence[Target]: ...
