"""Runs one shape: all systems in each round, cell by cell, in an order that rotates.

A failed measurement is recorded, its system is restarted, and the run continues. A cell that failed twice on a system
is not measured there again. After the first round, a round is begun only if it will probably end within the shape's
time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from klammbench.paths import ROOT
from klammbench.pool import Pool
from klammbench.results import Store
from klammbench.shapes.base import Cell, LimitedCell, Shape
from klammbench.systems.base import System
from klammbench.table import real

TRIES = 2
SLOWER = "kafka"
"""The Kafka setting that a quick run leaves out: the other one is usually the faster."""
_NUMBERS = itertools.count(1)


class Runner:
    """Runs shapes; `say` is called with each line of progress."""

    def __init__(
        self, pool: Pool, store: Store, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = pool
        self._store = store
        self._say = say
        self._clock = clock

    def run(
        self, shape: Shape, *, quick: bool, rounds: int, about: Mapping[str, Any], seconds: float = math.inf
    ) -> None:
        """Runs all rounds, or as many as fit into `seconds`; failures are part of the results."""
        begin = self._clock()
        cells = shape.cells(quick)
        measured = [name for name in shape.SYSTEMS if not (quick and name == SLOWER)]
        systems = self._pool.take(map(real, measured), fresh=not shape.MANAGED)
        names = {name: f"{s.version()} · {s.settings()}" for name, s in systems.items()}
        self._store.begin(shape.NAME, {**about, "systems": names, "rounds": rounds})
        broken = self._start(shape, systems) if shape.MANAGED else {}
        try:
            rows = _Rounds(shape, measured, systems, self._store, self._say, self._clock, broken)
            rows.run(cells, rounds, begin + seconds)
        finally:
            if not shape.MANAGED:
                self._pool.take((), fresh=True)  # the next shape must not find data of this one
        self._store.finish(shape.NAME, self._clock() - begin)

    def _start(self, shape: Shape, systems: Mapping[str, System]) -> dict[str, str]:
        """Starts the systems. Returns, by name, why a system cannot be measured."""
        broken: dict[str, str] = {}
        for name, system in systems.items():
            begin = self._clock()
            for _ in range(TRIES):
                try:
                    if not system.pids():
                        system.start()
                    shape.warm(system)
                except Exception as error:
                    broken[name] = f"did not start or warm up: {_one_line(error)}"
                    self._say(f"{shape.NAME}  {name}: {broken[name]}")
                    system.stop()
                    system.wipe()
                else:
                    broken.pop(name, None)
                    self._say(f"{shape.NAME}  {name} is up and warm after {self._clock() - begin:.1f} s")
                    break
        return broken


class _Rounds:
    def __init__(
        self,
        shape: Shape,
        measured: Sequence[str],
        systems: Mapping[str, System],
        store: Store,
        say: Callable[[str], None],
        clock: Callable[[], float],
        broken: Mapping[str, str],
    ) -> None:
        self._shape = shape
        self._measured = measured
        self._systems = systems
        self._store = store
        self._say = say
        self._clock = clock
        self._broken = broken
        self._failed: Counter[tuple[str, str]] = Counter()

    def run(self, cells: Sequence[Cell], rounds: int, deadline: float) -> None:
        begin, longest = self._clock(), 0.0
        for number in range(1, rounds + 1):
            now = self._clock()
            longest, begin = (max(longest, now - begin) if number > 2 else now - begin), now
            if number > 1 and now + longest > deadline:
                self._say(f"{self._shape.NAME}  ends after {number - 1} of {rounds} rounds: its time is used up")
                return
            for place, cell in enumerate(cells):
                shift = (number + place) % len(self._measured)
                for name in (*self._measured[shift:], *self._measured[:shift]):
                    self._measure(cell, name, number)

    def _measure(self, cell: Cell, name: str, number: int) -> None:
        if isinstance(cell, LimitedCell) and (name not in cell.systems or number > cell.rounds):
            return
        system = self._systems[real(name)]
        row: dict[str, Any] = {"cell": cell.name, "system": name, "round": number}
        begin = self._clock()
        if system.name in self._broken:
            row["failed"] = self._broken[system.name]
        elif self._failed[cell.name, system.name] >= TRIES:
            row["failed"] = f"not tried again after {TRIES} failures"
        else:
            try:
                row["metrics"] = dict(self._shape.run(cell, system, next(_NUMBERS)))
            except Exception as error:
                row["failed"] = _one_line(error)
                self._failed[cell.name, system.name] += 1
                self._revive(system)
        row["seconds"] = round(self._clock() - begin, 2)
        if row.get("metrics") == {}:
            return  # this system does not support this cell
        self._store.add(self._shape.NAME, row)
        self._say(f"{self._shape.NAME}  round {number}  {cell.name:34} {name:18} {self._figures(row)}")

    def _figures(self, row: Mapping[str, Any]) -> str:
        if "failed" in row:
            return f"FAILED {row['failed']}"
        units = self._shape.METRICS
        return "  ".join(f"{value:,.{units[m].digits}f} {units[m].unit}" for m, value in row["metrics"].items())

    def _revive(self, system: System) -> None:
        """Restarts a system after a failure, which may have left it in any state."""
        try:
            system.stop()
            system.wipe()
            if self._shape.MANAGED:
                system.start()
                self._shape.warm(system)
        except Exception as error:
            self._say(f"{self._shape.NAME}  {system.name} did not restart: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    """Returns one line of the error: of a traceback the last line, which names the error; without this machine's
    folders.
    """
    lines = [line for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    said = lines[-1] if any(line.lstrip().startswith("File ") for line in lines) else " | ".join(lines)
    return said.strip().replace(f"{ROOT}/", "")[-300:]
