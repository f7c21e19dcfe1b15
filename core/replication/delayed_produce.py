"""Produce requests with acks=all that wait for the high watermark (Kafka's `DelayedProduce` in its purgatory)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

W = TypeVar("W")


class DelayedProduces(Generic[W]):
    """Waiters of one partition in the order of the offsets that they wait for; waiters for the same offset keep the
    order in which they were added. Almost every new waiter is the last one; a retry may wait for an earlier offset."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._waiters: list[W] = []
        """`_waiters[n]` waits for `_ends[n]`, and `_ends` never decreases."""

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[W]:
        return iter(self._waiters)

    def add(self, end_offset: int, waiter: W) -> None:
        """Adds a waiter, which `take_committed` returns once the high watermark has reached `end_offset`."""
        ends = self._ends
        if not ends or ends[-1] <= end_offset:
            ends.append(end_offset)
            self._waiters.append(waiter)
        else:
            at = bisect_right(ends, end_offset)
            ends.insert(at, end_offset)
            self._waiters.insert(at, waiter)

    def take_committed(self, high_watermark: int) -> list[W]:
        """Removes and returns the waiters whose records are committed."""
        if not self._ends or self._ends[0] > high_watermark:
            return []
        count = bisect_right(self._ends, high_watermark)
        taken = self._waiters[:count]
        del self._ends[:count], self._waiters[:count]
        return taken

    def take_if(self, wanted: Callable[[W], bool]) -> list[W]:
        """Removes and returns the waiters for which `wanted` returns True, such as those that have timed out."""
        over = [wanted(waiter) for waiter in self._waiters]
        taken = [waiter for waiter, is_over in zip(self._waiters, over, strict=True) if is_over]
        if taken:
            left = [at for at, is_over in enumerate(over) if not is_over]
            self._ends = [self._ends[at] for at in left]
            self._waiters = [self._waiters[at] for at in left]
        return taken

    def take_all(self) -> list[W]:
        """Removes and returns all waiters, for instance when the replica stops leading."""
        taken, self._ends, self._waiters = self._waiters, [], []
        return taken
