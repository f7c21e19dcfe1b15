"""Bounds how many bytes of large responses are read from the logs and written in one turn of the event loop, over
all connections.

Reading and writing copy, on the event loop: 500 clients that requested megabytes at the same moment kept all others
waiting for 5 seconds. Rules: first come, first served; once `_BUDGET` bytes are written, the event loop does
everything else that is due before the next write. Small responses, requests other than Fetch, and clients that have
read little so far bypass the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

_BUDGET: Final = 256 * 1024
_MOST_AT_ONCE: Final = 4 * 1024 * 1024  # the most that the system accepts in one write


class ResponseSender(Protocol):
    def use_slot(self) -> int:
        """Writes the data that waits for a slot; returns the number of bytes written."""
        ...


class WriteScheduler:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[ResponseSender] = deque()
        self._left = _BUDGET
        self._renewing = False

    @property
    def over(self) -> bool:
        """True if the budget of this turn is spent, or others wait already."""
        return self._left <= 0 or bool(self._waiting)

    def wait(self, sender: ResponseSender) -> None:
        """Queues the sender: `use_slot` is called in a later turn."""
        self._waiting.append(sender)
        self._spend(0)

    def take(self, sender: ResponseSender, size: int) -> bool:
        """Returns whether `size` bytes may be written at once; if not, `use_slot` is called in a later turn."""
        if self.over:
            self.wait(sender)
            return False
        self._spend(size)
        return True

    def _spend(self, size: int) -> None:
        self._left -= min(size, _MOST_AT_ONCE)
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._left, self._renewing = _BUDGET, False
        while self._waiting and self._left > 0:
            self._spend(self._waiting.popleft().use_slot())
