"""Limits the rate of background work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...token_bucket import TokenBucket

_WORTH_WAITING_S: Final = 0.01


class ThreadShutdownError(Exception):
    """The work must stop, because the process stops or the settings change."""


class Throttle:
    """Limits reads and writes to `bytes_per_s`. `wait` sleeps for so many seconds and returns True if the work must
    stop."""

    def __init__(self, bytes_per_s: float, wait: Callable[[float], bool]) -> None:
        self._bucket = TokenBucket(bytes_per_s, burst_s=0)
        self._wait = wait

    def passed(self, size: int) -> None:
        """Counts `size` bytes of finished work and waits as the rate requires; `ThreadShutdownError` if the work must
        stop."""
        self._bucket.spend(size)
        ahead = self._bucket.wait_s()
        if self._wait(ahead if ahead > _WORTH_WAITING_S else 0.0):
            raise ThreadShutdownError
