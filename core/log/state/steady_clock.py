"""The time by which retention deletes records: the broker's clock, without jumps ahead while the broker runs.

A clock that jumps a day ahead makes every record a day older. A second clock, which nobody can set, also measures the
time since the start; a jump of the broker's clock relative to it does not count for deletion. The jump counts from the
next start on, so an operator who has corrected the clock restarts the broker.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from .clock import Clock

TOLERATED_MS: Final = 60_000
"""The largest difference between the two clocks, in ms, that does not count as a jump: clocks are often corrected by
seconds."""

_log = logging.getLogger(__name__)


def elapsed_ms() -> int:
    """Returns the milliseconds since a fixed moment, including the time in which the system was suspended. Setting the
    system's clock does not change it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class SteadyClock:
    """Compares the broker's clock with a monotonic one. Not thread-safe."""

    def __init__(self, clock: Clock, elapsed: Clock = elapsed_ms) -> None:
        self._elapsed = elapsed
        self._offset = clock() - elapsed()
        self._ahead = False

    def for_deleting(self, now_ms: int) -> int:
        """Returns `now_ms` without jumps ahead. A clock that was set back is used as it is, because that deletes
        nothing."""
        elapsed = self._elapsed()
        offset = now_ms - elapsed
        ahead = offset - self._offset
        if abs(ahead) <= TOLERATED_MS:
            self._offset = offset
        elif ahead > 0 and not self._ahead:
            _log.warning(
                "the clock was set ahead by %d s: until it is set back or the broker restarts, retention uses the "
                "elapsed time, not the clock", ahead // 1000,
            )  # fmt: skip
        self._ahead = ahead > TOLERATED_MS
        return elapsed + min(offset, self._offset)
