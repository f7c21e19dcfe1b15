"""Time, as the log takes it through its constructors."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Now, in ms since the epoch."""


def system_clock() -> int:
    return time.time_ns() // 1_000_000
