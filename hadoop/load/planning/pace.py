"""Limits the size of each load of a run, so that the run ends in its time (`max.duration.ms`).

A Spark job cannot be stopped half-way and keep the first half. So a run with a time limit publishes several loads of a
topic: a first one of a fixed size, and then loads that are likely to take half of the remaining time, by the speed of
the previous load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_LEAST: Final = 8
"""A further load is started only if an eighth of the first one's size fits: each load costs seconds, and creates
files."""


class Pace:
    """One topic's share of a run: until `until_s` on the clock. `first`: offsets of the first load."""

    def __init__(self, until_s: float, first: int, clock_s: Callable[[], float]) -> None:
        self._until_s = until_s
        self._first = first
        self._clock_s = clock_s
        self._speed: float | None = None

    def next(self) -> int | None:
        """Returns the most offsets of the next load, or None if no further load is started."""
        left_s = self._until_s - self._clock_s()
        if left_s <= 0:
            return None
        if self._speed is None:
            return self._first
        fits = int(self._speed * left_s / 2)
        return fits if fits * _LEAST >= self._first else None

    def took(self, offsets: int, seconds: float) -> None:
        self._speed = offsets / max(seconds, 0.001)
