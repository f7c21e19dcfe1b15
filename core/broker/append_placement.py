"""Where appends run: on the event loop while the page cache takes them at once, on worker threads while it does not.

While too many pages are dirty, the kernel holds each writer up for 10 to 200 ms at a time, and a slow disk does so too.
On the event loop such a write stalls every connection; on a worker thread it stalls its own.

An append is held up if it took long and its thread slept in the kernel meanwhile: one that took long because others
used the processor would take as long on a worker thread. The pause is doubled each time that appends are held up within
2 s after it.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, Protocol

from ..state_table import StateTable

log = logging.getLogger(__name__)

ON_LOOP_BYTES: Final = 512 * 1024
"""A larger batch is always appended on a worker thread."""
LONG_NS: Final = 10_000_000
"""An append on the event loop that takes more ns took long."""
WATCH_S: Final = 2.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 16.0


class PlacementState(Enum):
    ON_LOOP = "on loop"
    WATCHED = "watched"
    ON_WORKERS = "on workers"


class PlacementEvent(Enum):
    TOOK_LONG = "took long"
    HELD_UP = "held up"
    QUIET = "none for 2 s"
    PAUSE_OVER = "pause over"


PLACEMENT_STATES: Final = StateTable(
    "append placement", PlacementState, PlacementEvent,
    """
    state       event         next state
    on loop     took long     watched
    watched     took long     watched
    watched     held up       on workers
    watched     none for 2 s  on loop
    on workers  took long     on workers
    on workers  pause over    watched
    """,
)  # fmt: skip


class CallLater(Protocol):
    """The signature of `asyncio.AbstractEventLoop.call_later`."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> object: ...


def thread_sleeps() -> int:
    """Returns how often this thread has slept in the kernel."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class AppendPlacement:
    """Belongs to the event loop."""

    __slots__ = ("_call_later", "_pause_s", "_sleeps", "_slept_before", "_state", "_watch", "held_up", "on_loop_bytes")

    def __init__(self, call_later: CallLater, sleeps: Callable[[], int] = thread_sleeps) -> None:
        self.on_loop_bytes = ON_LOOP_BYTES
        """Larger batches need a call of `needs_worker`. Read for every append."""
        self.held_up = 0
        """How often appends have been moved to worker threads."""
        self._call_later = call_later
        self._sleeps = sleeps
        self._slept_before = 0
        self._state = PLACEMENT_STATES.initial
        self._pause_s = FIRST_PAUSE_S
        self._watch = 0

    def needs_worker(self, size: int) -> bool:
        """Returns True if a batch of `size` bytes must be appended on a worker thread; else the caller appends it
        now."""
        if size > ON_LOOP_BYTES or self._state is PlacementState.ON_WORKERS:
            return True
        if self._state is PlacementState.WATCHED:
            self._slept_before = self._sleeps()
        return False

    def took_long(self) -> None:
        """Records an append on the event loop that took more than `LONG_NS`."""
        if self._state is PlacementState.WATCHED and self._sleeps() > self._slept_before:
            self._take(PlacementEvent.HELD_UP)
            self.held_up += 1
            if self._pause_s == FIRST_PAUSE_S:
                log.info("the disk blocks writers: appends run on worker threads until it no longer does")
            self._call_later(self._pause_s, self._end_pause)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            return
        was = self._state
        self._take(PlacementEvent.TOOK_LONG)
        if was is not self._state:
            self._begin_watch()

    def _take(self, event: PlacementEvent) -> None:
        self._state = PLACEMENT_STATES.next(self._state, event)

    def _begin_watch(self) -> None:
        self.on_loop_bytes = -1
        self._watch += 1
        self._call_later(WATCH_S, partial(self._end_watch, self._watch))

    def _end_watch(self, watch: int) -> None:
        if self._state is PlacementState.WATCHED and watch == self._watch:
            self._take(PlacementEvent.QUIET)
            self.on_loop_bytes = ON_LOOP_BYTES
            self._pause_s = FIRST_PAUSE_S

    def _end_pause(self) -> None:
        self._take(PlacementEvent.PAUSE_OVER)
        self._begin_watch()
