"""Shows the progress of the demo: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from klamm.core.cli.output import say_on

STATUS_S = 5.0
COUNTS = ("produced", "consumed", "mirrored", "loaded")


class Show:
    """Lines with the seconds since the start, and a bar for each count between `__enter__` and `__exit__`."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._started = time.monotonic()
        self._told = 0.0
        columns = (TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __enter__(self) -> Self:
        self._bars.start()
        self._tasks = {name: self._bars.add_task(name, total=self._total) for name in COUNTS}
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Prints a step, above the bars."""
        say_on(self._console, f"{self.seconds:6.1f} s  {text}")

    def print(self, text: str) -> None:
        """Prints the text unchanged."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def counts(self, produced: int, consumed: int, mirrored: int, loaded: int) -> None:
        """Shows the progress."""
        now = dict(zip(COUNTS, (produced, consumed, mirrored, loaded), strict=True))
        for name, count in now.items():
            self._bars.update(self._tasks[name], completed=count)
        if not self._console.is_terminal and self.seconds - self._told >= STATUS_S:
            self._told = self.seconds
            self.say(", ".join(f"{name} {count:,}" for name, count in now.items()))
