"""Produce requests with acks=all that wait for the high watermark (Kafka's `DelayedProduce` in its purgatory)."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

W = TypeVar("W")


class DelayedProduces(Generic[W]):
    """Waiters of one partition, by the offset that they wait for. A retry may wait for an earlier offset than the last
    waiter.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, W]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, waiter: W) -> None:
        """Adds a waiter for the time when the high watermark reaches `end_offset`."""
        self._added += 1
        heappush(self._waiting, (end_offset, self._added, waiter))

    def take_committed(self, high_watermark: int) -> list[W]:
        """Removes and returns the waiters whose records are committed."""
        taken = []
        while self._waiting and self._waiting[0][0] <= high_watermark:
            taken.append(heappop(self._waiting)[2])
        return taken

    def take_all(self) -> list[W]:
        """Removes and returns all waiters, as when the replica stops leading."""
        taken = [waiter for _, _, waiter in sorted(self._waiting, key=lambda entry: entry[:2])]
        self._waiting.clear()
        return taken
