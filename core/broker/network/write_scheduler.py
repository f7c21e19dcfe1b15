"""Large answers take turns: how much of them is read and goes out in one round of the event
loop, all connections together.

Both copy, on the event loop: 500 clients that ask for megabytes at the same moment kept all others waiting for 5
seconds. Rules: first come, first served; once `_BUDGET` bytes went out the loop sees to everything else before the
next; small answers do not ask, and neither do requests other than Fetch, nor those of
whoever has read little so far.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

_BUDGET: Final = 256 * 1024
_MOST_AT_ONCE: Final = 4 * 1024 * 1024  # what the system takes of one write at most


class Sender(Protocol):
    def have_turn(self) -> int:
        """Go on with what waits for it; how many bytes went out."""
        ...


class Turns:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Sender] = deque()
        self._left = _BUDGET
        self._renewing = False

    @property
    def over(self) -> bool:
        """Others have to be seen to first."""
        return self._left <= 0 or bool(self._waiting)

    def wait(self, sender: Sender) -> None:
        """It has its turn later."""
        self._waiting.append(sender)
        self._spend(0)

    def take(self, sender: Sender, size: int) -> bool:
        """Whether it may write `size` bytes at once; else it has its turn later."""
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
            self._spend(self._waiting.popleft().have_turn())
