"""The clock that the constructors of the log take."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns the current time in ms since the Unix epoch."""


def system_clock() -> int:
    """Returns the time of the system's clock in ms since the Unix epoch."""
    return time.time_ns() // 1_000_000
