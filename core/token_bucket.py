"""Limits a rate: of connections, replication, background work and clients' requests."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Holds up to `burst_s` seconds' tokens, at least one, and fills at `rate` tokens a second; it starts full.

    `spend` may take more than there are, since the size of some work is known only afterwards: later callers wait
    until the debt is paid. With a `burst_s` of 0 no tokens are saved up. One thread. `clock` returns monotonic
    seconds.
    """

    __slots__ = ("_at", "_burst_s", "_clock", "_left", "rate")

    def __init__(self, rate: float, *, burst_s: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def change(self, rate: float) -> None:
        """Sets another rate, at which a debt is then paid."""
        self._refill()
        self.rate = rate
        self._left = min(self._left, self._most)

    def spend(self, tokens: float = 1.0) -> None:
        self._refill()
        self._left -= tokens

    def wait_s(self) -> float:
        """Returns the seconds until there is a token, or until a debt is paid if none is saved up; 0: now."""
        self._refill()
        return max(min(self._most, 1.0) - self._left, 0.0) / self.rate

    @property
    def _most(self) -> float:
        return max(self.rate * self._burst_s, 1.0) if self._burst_s else 0.0

    def _refill(self) -> None:
        now = self._clock()
        passed, self._at = max(now - self._at, 0.0), now
        self._left = min(self._left + passed * self.rate, self._most)
