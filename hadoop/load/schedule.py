"""Makes runs one after another in one process: `klamm load --every 10m`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Schedule:
    """Makes a run now, and at each multiple of `every_s` from now.

    A run that is due while another is running begins when that ends, and missed runs are not repeated. After
    `max_failures` failed runs in a row the schedule ends.
    """

    def __init__(
        self,
        every_s: float,
        max_failures: int,
        stop: threading.Event,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        self._every_s = every_s
        self._max_failures = max_failures
        self._stop = stop
        self._clock_s = clock_s
        self._wait = stop.wait if wait is None else wait

    def follow(self, run: Callable[[], bool], failed: Callable[[float], None] = lambda _: None) -> bool:
        """Runs until `stop` is set and returns True; returns False after too many failed runs in a row. `run` returns
        whether it succeeded; `failed` is called with the seconds until the next run."""
        start, slot, failures = self._clock_s(), 0, 0
        while not self._stop.is_set():
            failures = 0 if run() else failures + 1
            if failures >= self._max_failures:
                return False
            passed = self._clock_s() - start
            slot = max(slot + 1, int(passed // self._every_s))
            left_s = max(slot * self._every_s - passed, 0.0)
            if failures and not self._stop.is_set():
                failed(left_s)
            self._wait(left_s)
        return True


@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Yields an event that SIGTERM sets inside the block; off the main thread nothing sets it."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
