"""The interface of a shape's module, as the harness uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from klammbench.metric import Metric
from klammbench.systems.base import System
from klammbench.table import AGAIN, Table
from klammbench.targets import Target

BROKERS: Sequence[str] = ("klamm", "kafka", "kafka-tuned", AGAIN)


class Cell(Protocol):
    """A frozen dataclass of the shape's own; `name` is unique in the shape."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class LimitedCell(Cell, Protocol):
    """A cell that takes long: it is measured on these `systems` (the A/A pair's second one is named too), and in the
    first `rounds`.
    """

    @property
    def systems(self) -> Sequence[str]: ...

    @property
    def rounds(self) -> int: ...


class Shape(Protocol):
    NAME: str
    """The shape's letter in the issue."""
    TITLE: str
    SYSTEMS: Sequence[str]
    """Names in `systems.SYSTEMS`, and `AGAIN`."""
    METRICS: Mapping[str, Metric]
    MANAGED: bool
    """True: the harness starts each system once and `run` finds it running; False: `run` starts and stops it."""

    def cells(self, quick: bool) -> Sequence[Cell]:
        """Returns the cells; called once in a run, before any system is started."""
        ...

    def warm(self, system: System) -> None:
        """Called on each system before the first round; only where MANAGED."""
        ...

    def run(self, cell: Any, system: System, number: int) -> Mapping[str, float]:
        """Runs one measurement; `number` is unique in the process (for topic names). Leaves no data behind."""
        ...

    def targets(self, table: Table) -> Sequence[Target]: ...
