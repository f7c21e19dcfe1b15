"""Exponential back-off with jitter, for reconnecting and for retrying; and the shorter delays of a fail-over."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_MAX_DOUBLINGS = 30
"""Limits the exponent, so that 2**attempt stays small: above it the maximum delay is reached for any reasonable
initial delay."""


class Delays(Protocol):
    """The waits between the attempts of one operation."""

    def delay(self, failures: int) -> float:
        """Returns the seconds to wait after this number of consecutive failures (1 for the first)."""
        ...


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: `initial_s` doubled per failed attempt up to `maximum_s`, each varied by ± `jitter` of itself
    so that many clients do not retry at the same time (KIP-580). `randomness` returns numbers in [0, 1).
    """

    initial_s: float
    maximum_s: float
    jitter: float = 0.2
    randomness: Callable[[], float] = random.random

    def delay(self, failures: int) -> float:
        """Returns the seconds to wait after this number of consecutive failures (1 for the first)."""
        exact = min(self.initial_s * 2.0 ** min(max(failures - 1, 0), _MAX_DOUBLINGS), self.maximum_s)
        return exact * (1 + self.jitter * (2 * self.randomness() - 1))


RECONNECT = Backoff(0.05, 1.0)
"""`reconnect.backoff.ms` and `reconnect.backoff.max.ms` with the defaults of Kafka's clients."""

RETRY = Backoff(0.1, 1.0)
"""`retry.backoff.ms` and `retry.backoff.max.ms` with the defaults of Kafka's clients."""


@dataclass(frozen=True, slots=True)
class FailOver:
    """The delays while a partition's leader or a group's coordinator is moving: none before the first retry, then
    those of `quick`; after `patience` consecutive failures those of `slow`, since no broker is taking over."""

    quick: Backoff = Backoff(0.02, 0.1)
    slow: Backoff = Backoff(0.1, 1.0)
    patience: int = 100

    def delay(self, failures: int) -> float:
        if failures <= 1:
            return 0.0
        if failures <= self.patience:
            return self.quick.delay(failures - 1)
        return self.slow.delay(failures - self.patience)


FAIL_OVER = FailOver()


class Retries:
    """The attempts of one operation: `wait` sleeps before the next one, or raises the last error when the time is
    up.
    """

    def __init__(
        self, deadline: float, policy: Delays, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._deadline = deadline
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._failures = 0

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; may be negative."""
        return self._deadline - self._clock()

    def wait(self, problem: Exception, *, until: float | None = None) -> None:
        """Sleeps after a failed attempt. Raises `problem` if the time is up before or after the sleep: one more attempt
        without time would hide why the earlier ones failed. `until` is an earlier deadline for this problem.
        """
        self._failures += 1
        delay = self._policy.delay(self._failures)
        if self._clock() + delay >= (self._deadline if until is None else min(until, self._deadline)):
            raise problem
        self._sleep(delay)
        if self.left_s <= 0:
            raise problem
