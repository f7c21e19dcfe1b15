"""Ports that belong to one process of tests for as long as it lives.

A port that is merely free now may be taken while its broker is down between a kill and a restart. Each port given here
is locked, as one byte of a file that all processes of tests on this machine share; the kernel drops the locks of a
process that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Final

PORTS: Final = range(20_000, 32_000)
"""Below those that systems give to outgoing connections."""


class Reservations:
    """Thread-safe. The file stays open: closing it would drop this process's locks."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = path.open("ab")
        self._mine: set[int] = set()
        self._next = (os.getpid() * 7919) % len(PORTS)

    def take(self) -> int:
        """A port of `PORTS` that no other process of tests has and that nobody listens on."""
        with self._lock:
            for _ in PORTS:
                self._next = (self._next + 1) % len(PORTS)
                if self._reserve(PORTS[self._next]):
                    return PORTS[self._next]
        raise RuntimeError("no port is free")

    def reserve(self, port: int) -> bool:
        """Whether `port` is this process's from now on."""
        with self._lock:
            return self._reserve(port)

    def _reserve(self, port: int) -> bool:
        if port in self._mine:
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            if _bindable(port):
                self._mine.add(port)
                return True
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)
        return False


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_reservations: Final = Reservations(Path(tempfile.gettempdir()) / f"klammtest-ports-{os.getuid()}")


def free_port() -> int:
    """A port for this process alone, also while nobody listens on it."""
    return _reservations.take()


def reserve(port: int) -> bool:
    """Takes this very port, if it is free and no other process of tests has it."""
    return _reservations.reserve(port)
