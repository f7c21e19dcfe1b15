"""Step 2: two producer processes, each of which sends a month of flights per command."""

from __future__ import annotations

import sys
from pathlib import Path

from ..processes import Processes
from ..workspace import Workspace

PRODUCERS = 2
MONTHS = 12
END_S = 60.0


class LineCounter:
    """The lines of a file that grows; reads only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._lines = 0

    def count(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            self._read += len(new)
            self._lines += new.count(b"\n")
        return self._lines


class Producers:
    """The producer processes. `released` months of the year have been requested; the one after December is the late
    day.
    """

    def __init__(self, workspace: Workspace, processes: Processes, limit: int, plant: str) -> None:
        self._children = [
            processes.start(f"producer-{n}", _command(workspace, n, limit, plant)) for n in range(PRODUCERS)
        ]
        self._counters = [LineCounter(workspace.acknowledged(str(n))) for n in range(PRODUCERS)]
        self.released = 0
        self._finishing = False

    def release(self) -> None:
        """Lets both producers send their share of the next month."""
        self.released += 1
        for child in self._children:
            child.line()

    def acknowledged(self) -> int:
        """Returns how many flights the brokers have confirmed so far."""
        return sum(counter.count() for counter in self._counters)

    def check(self) -> None:
        """Raises `DemoError` if one has ended that should be running."""
        for child in self._children:
            if not self._finishing:
                child.check()

    def finish(self) -> None:
        """Lets the producers close, which publishes their last audit counts."""
        self._finishing = True
        for child in self._children:
            child.end_input()
        for child in self._children:
            child.succeed(END_S)


def _command(workspace: Workspace, number: int, limit: int, plant: str) -> list[str]:
    module = "klamm.plugins.demo.producing"
    values = (workspace.config, number, PRODUCERS, limit, plant, workspace.acknowledged(str(number)))
    return [sys.executable, "-m", module, *map(str, values)]
