"""Ctrl-C during a load: remembered, so that a load whose interruption was swallowed on its way publishes nothing.

The handler that a new Spark session installs calls the JVM in the middle of a call, and py4j prints every
KeyboardInterrupt, or swallows it: a callback or a finalizer loses what a handler raises. So a handler of our own raises
`SystemExit(130)` *and* remembers, and the load asks before it publishes. A load may end anywhere: what it has staged is
never seen.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

EXIT_STATUS: Final = 130


class Interrupt:
    """SIGINT's handler between `install` and `remove`; off the main thread it does nothing."""

    def __init__(self) -> None:
        self._told = False
        self._deferring = False
        self._before: Any = None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._tell)

    def remove(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Nothing is raised inside (a JVM that is just starting would be left behind), but at its end; a second Ctrl-C
        does not wait. A handler that was installed inside is replaced."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
            if self._before is not None:
                signal.signal(signal.SIGINT, self._tell)
        self.check()

    def check(self) -> None:
        """`SystemExit` with status 130 when there was a Ctrl-C."""
        if self._told:
            raise SystemExit(EXIT_STATUS)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        again, self._told = self._told, True
        if again or not self._deferring:
            raise SystemExit(EXIT_STATUS)
