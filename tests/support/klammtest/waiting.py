"""Waits for a condition. A limit is a bound, not a measurement: what takes longer is broken, on a slow machine too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""The limit where a test names none."""
_POLL_S = 0.01


def within(condition: Callable[[], object], limit_s: float | None = None) -> bool:
    """Whether the condition becomes true in `limit_s` seconds, `PATIENCE_S` unless given."""
    deadline = time.monotonic() + (PATIENCE_S if limit_s is None else limit_s)
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def eventually(condition: Callable[[], object], what: str, limit_s: float | None = None) -> None:
    """Returns when the condition is true; `AssertionError`, which says `what` was waited for, when it takes longer."""
    limit_s = PATIENCE_S if limit_s is None else limit_s
    assert within(condition, limit_s), f"not within {limit_s:g} s: {what}"


async def until(condition: Callable[[], object]) -> None:
    """`eventually` on an event loop, which does its work meanwhile; `TimeoutError` when it takes longer."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(_POLL_S)
