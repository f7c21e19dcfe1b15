"""Records Ctrl-C during a load, so that a load whose interrupt was swallowed publishes nothing.

The handler that a new Spark session installs calls the JVM in the middle of another call, and py4j prints every
KeyboardInterrupt, or swallows it: in a callback or a finalizer, an exception of a handler is lost. So this handler
raises `SystemExit(130)` *and* sets a flag, which the load checks before it publishes. A load may be interrupted
anywhere: its staging directory is never visible.
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
        """Delays the exception to the end of the block (otherwise a JVM that is starting would be orphaned); a second
        Ctrl-C does not wait. A handler that was installed inside is replaced."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
            if self._before is not None:
                signal.signal(signal.SIGINT, self._tell)
        self.check()

    def check(self) -> None:
        """Raises `SystemExit` with status 130 if Ctrl-C was pressed."""
        if self._told:
            raise SystemExit(EXIT_STATUS)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        again, self._told = self._told, True
        if again or not self._deferring:
            raise SystemExit(EXIT_STATUS)
