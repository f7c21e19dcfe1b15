"""Ports that belong to one test process for as long as it runs.

A port that is merely free may be taken while its broker is down between a kill and a restart. Each port returned here
is locked, as one byte of a file that all test processes of this machine share; the kernel drops the locks of a process
that ends.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import tempfile
import threading
from pathlib import Path
from typing import Final

from klamm.core.child_process import is_free

__all__ = ["PORTS", "Reservations", "free_port", "free_ports_in_a_row", "reserve"]

PORTS: Final = range(20_000, 32_000)
"""Ports below the range that the kernel uses for outgoing connections."""


class Reservations:
    """Thread-safe. The file stays open: closing it would drop this process's locks."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab")
        atexit.register(self._file.close)
        self._mine: set[int] = set()
        self._next = (os.getpid() * 7919) % len(PORTS)

    def take(self) -> int:
        """Returns a port of `PORTS` that no other test process has and on which no socket listens."""
        with self._lock:
            for _ in PORTS:
                self._next = (self._next + 1) % len(PORTS)
                if self._reserve(PORTS[self._next]):
                    return PORTS[self._next]
        raise RuntimeError("no port is free")

    def take_row(self, count: int) -> int:
        """Returns the first of `count` consecutive ports."""
        while True:
            first = self.take()
            if all(self.reserve(first + further) for further in range(1, count)):
                return first

    def reserve(self, port: int) -> bool:
        """Reserves `port`; returns True if this process has it now."""
        with self._lock:
            return self._reserve(port)

    def _reserve(self, port: int) -> bool:
        if port in self._mine:
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            if is_free(port):
                self._mine.add(port)
                return True
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)
        return False


_reservations: Final = Reservations(Path(tempfile.gettempdir()) / f"klamm-testing-ports-{os.getuid()}")


def free_port() -> int:
    """Returns a port for this process alone; it stays reserved while no socket listens on it."""
    return _reservations.take()


def reserve(port: int) -> bool:
    """Reserves this port if it is free; returns True if this process has it."""
    return _reservations.reserve(port)


def free_ports_in_a_row(count: int) -> int:
    """Returns the first of `count` consecutive ports, each as `free_port` gives it."""
    return _reservations.take_row(count)
