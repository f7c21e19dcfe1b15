"""Measures how long a number that should fall has not fallen."""

from __future__ import annotations


class StallTimer:
    """Called repeatedly with the remaining number of bytes or requests."""

    __slots__ = ("_left", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._left = 0

    def stalled_s(self, now: float, left: int) -> float:
        """Returns the seconds for which the number has not fallen, as seen by these calls; 0 at the first."""
        if self._since is None or left < self._left:
            self._since = now
        self._left = left
        return now - self._since

    def reset(self) -> None:
        self._since = None
