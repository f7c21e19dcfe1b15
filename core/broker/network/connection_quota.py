"""Limits how many connections per second are accepted: `max.connection.creation.rate` (KIP-612), over all listeners."""

from __future__ import annotations

from collections.abc import Callable


class CreationRate:
    """A token bucket of one second's connections that fills at `per_s`; it starts full."""

    def __init__(self, per_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._clock = clock
        self._left = per_s
        self._at = clock()

    def change(self, per_s: float) -> None:
        """Sets another rate."""
        self._refill()
        self._per_s = per_s
        self._left = min(self._left, per_s)

    def wait_s(self) -> float:
        """Returns the seconds until the next connection may be accepted; 0: now."""
        self._refill()
        return max(1.0 - self._left, 0.0) / self._per_s

    def spend(self) -> None:
        """A connection was accepted."""
        self._left -= 1.0

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self._per_s, max(self._per_s, 1.0))
        self._at = now
