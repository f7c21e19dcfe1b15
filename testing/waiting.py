"""Waits for a condition. A limit is a bound, not a measurement: code that exceeds it is broken, even on a slow
machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["PATIENCE_S", "eventually", "freeze", "until", "within"]

PATIENCE_S = 60.0
"""The limit if a test passes none."""
_POLL_S = 0.01


def within(condition: Callable[[], object], limit_s: float | None = None) -> bool:
    """Returns True if the condition becomes true within `limit_s` seconds, by default `PATIENCE_S`."""
    deadline = time.monotonic() + (PATIENCE_S if limit_s is None else limit_s)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def eventually(condition: Callable[[], object], what: str, limit_s: float | None = None) -> None:
    """Returns when the condition is true. If that takes too long, raises `AssertionError`, which names `what` was
    waited for.
    """
    limit_s = PATIENCE_S if limit_s is None else limit_s
    assert within(condition, limit_s), f"not within {limit_s:g} s: {what}"


async def until(condition: Callable[[], object]) -> None:
    """Waits like `eventually`, on an event loop that keeps running; raises `TimeoutError` if it takes too long."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(_POLL_S)


def freeze(pid: int) -> None:
    """Stops a process (SIGSTOP), and returns when all of its threads are stopped: on a busy machine some of them
    continue for a moment after the signal was sent."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    eventually(lambda: all(_state(one) == "T" for one in threads.iterdir()), f"process {pid} stops")


def _state(thread: Path) -> str:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # the thread has ended
        return ""
