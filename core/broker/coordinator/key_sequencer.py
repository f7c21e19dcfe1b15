"""Runs the calls of one key one after the other, in the order of their requests.

A started call runs to its end even if its requester has disconnected: its worker thread cannot be stopped, and the
next call must not overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class KeySequencer:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Task[Any]] = {}

    def begin(self, key: str, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `call` after the earlier calls of its key have ended. Await it through `asyncio.shield`."""
        task = asyncio.get_running_loop().create_task(_after(self._last.get(key), call))
        self._last[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        return task

    def last(self, key: str) -> asyncio.Task[Any] | None:
        """The last requested call, unless it has ended."""
        return self._last.get(key)

    async def stop(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` seconds for running calls, then cancels them."""
        tasks = list(self._last.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()

    def _ended(self, key: str, task: asyncio.Task[Any]) -> None:
        if self._last.get(key) is task:
            del self._last[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the requester may have disconnected


async def _after(former: asyncio.Task[Any] | None, call: Coroutine[Any, Any, T]) -> T:
    try:
        if former is not None:
            await asyncio.wait([former])
    except BaseException:
        call.close()
        raise
    return await call
