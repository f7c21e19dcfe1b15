"""SIGINT and SIGTERM as a request to stop, which the command obeys between two steps."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
from types import FrameType, TracebackType
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """A context in the main thread. The first signal sets `received`; the second raises `KeyboardInterrupt`, for a
    command that waits for a broker or for the reader of its output.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._wake, self._written = socket.socketpair()

    def __enter__(self) -> Self:
        self._written.setblocking(False)
        self._fd_before = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        self._wake.close()
        self._written.close()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number

    @property
    def status(self) -> int:
        """The exit status after a signal, by the convention of shells."""
        return 128 + (self.received or 0)

    def wait_readable(self, fd: int, timeout_ms: int | None = None) -> bool:
        """Waits until `fd` can be read, or is at its end. Returns False after a signal or the time-out."""
        waiting = select.poll()
        waiting.register(self._wake, select.POLLIN)
        waiting.register(fd, select.POLLIN)
        while self.received is None:
            ready = {number for number, _ in waiting.poll(timeout_ms)}
            if fd in ready:
                return True
            if not ready:
                return False
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(64)  # another signal's byte
        return False
