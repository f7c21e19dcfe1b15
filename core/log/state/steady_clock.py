"""The time by which records are deleted: the broker's clock, unless it was set ahead while the broker ran.

A clock that is suddenly a day later makes every record a day older. The time since the start is measured by a clock
that nobody can set as well; what the broker's clock gained over that in one leap does not count for deleting. It counts
from the next start on, when whoever set the clock right restarts the broker.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from .clock import Clock

TOLERATED_MS: Final = 60_000
"""What the two may differ by from one look to the next: clocks are corrected by seconds all the time."""

_log = logging.getLogger(__name__)


def elapsed_ms() -> int:
    """Since some moment, the system's sleep included; goes on evenly whatever the clock is set to."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class SteadyClock:
    """For one thread at a time."""

    def __init__(self, clock: Clock, elapsed: Clock = elapsed_ms) -> None:
        self._elapsed = elapsed
        self._offset = clock() - elapsed()
        self._ahead = False

    def for_deleting(self, now_ms: int) -> int:
        """`now_ms`, or what it would be had the clock not been set ahead. Set back, it is believed: nothing goes."""
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
