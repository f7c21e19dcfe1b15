"""Records Ctrl-C during a load, so that a load whose interrupt was swallowed publishes nothing.

The handler that a new Spark session installs calls the JVM in the middle of another call, and py4j prints every
KeyboardInterrupt, or swallows it: in a callback or a finalizer, an exception of a handler is lost. So this handler
raises `SystemExit(130)` *and* sets a flag, which the load checks before it publishes. A load may be interrupted
anywhere: its staging directory is never visible.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

EXIT_STATUS: Final = 130


class Interrupt:
    """SIGINT's handler between `install` and `remove`; off the main thread it does nothing. `children`: the ids of this
    process's child processes."""

    def __init__(self, children: Callable[[], set[int]] | None = None) -> None:
        self._told = False
        self._starting = False
        self._children = children or child_processes
        self._others: set[int] = set()
        self._started: set[int] = set()
        self._before: Any = None

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._tell)

    def remove(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    @contextmanager
    def starting_jvm(self) -> Iterator[None]:
        """For a block that starts a JVM, or Spark in it: Ctrl-C ends the block at once, and kills the child processes
        that this and earlier blocks have started. Otherwise a JVM that does not read its stdin yet would outlive this
        process for seconds. A handler that was installed inside is replaced."""
        if self._before is None:
            yield
            return
        self._others = self._children() - self._started
        self._starting = True
        try:
            yield
        except BaseException as error:
            if self._told or isinstance(error, KeyboardInterrupt):  # of the handler that Spark installs
                self._kill_started()
                raise SystemExit(EXIT_STATUS) from None
            raise
        finally:
            self._starting = False
            signal.signal(signal.SIGINT, self._tell)
        self.check()
        self._started |= self._children() - self._others

    def check(self) -> None:
        """Raises `SystemExit` with status 130 if Ctrl-C was pressed."""
        if self._told:
            raise SystemExit(EXIT_STATUS)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._told = True
        if self._starting:
            self._kill_started()
        raise SystemExit(EXIT_STATUS)

    def _kill_started(self) -> None:
        for pid in self._children() - self._others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def child_processes() -> set[int]:
    """Returns the ids of this process's children, from /proc; none where there is no /proc."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            # after the name, which is in parentheses and may contain any character: the state, and the parent
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found
