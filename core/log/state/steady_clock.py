"""The time by which records are deleted: the broker's clock, unless it was set ahead while the broker ran.

A clock that jumps a day ahead makes every record a day older. A second clock, which nobody can set, measures the time
since the start as well; a jump of the broker's clock against it does not count for deletion. The jump counts from the
next start on: an operator who corrected the clock restarts the broker.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from .clock import Clock

TOLERATED_MS: Final = 60_000
"""The most that the two clocks may drift apart between two calls, in ms: clocks are often corrected by seconds."""

_log = logging.getLogger(__name__)


def elapsed_ms() -> int:
    """Milliseconds since a fixed moment, including the system's sleep. Setting the system's clock does not change
    it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class SteadyClock:
    """Not thread-safe."""

    def __init__(self, clock: Clock, elapsed: Clock = elapsed_ms) -> None:
        self._elapsed = elapsed
        self._offset = clock() - elapsed()
        self._ahead = False

    def for_deleting(self, now_ms: int) -> int:
        """Returns `now_ms` without any jump ahead. A clock that was set back is used as it is: that deletes nothing."""
        elapsed = self._elapsed()
        offset = now_ms - elapsed
        ahead = offset - self._offset
        if abs(ahead) <= TOLERATED_MS:
            self._offset = offset
        elif ahead > 0 and not self._ahead:
            _log.warning(
                "the clock was set ahead by %d s: until it is set back, or the broker is started again, records are "
                "deleted by the time that has passed, not by the clock", ahead // 1000,
            )  # fmt: skip
        self._ahead = ahead > TOLERATED_MS
        return elapsed + min(offset, self._offset)
