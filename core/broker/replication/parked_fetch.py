"""Fetches that wait for more records: those of consumers, and those of followers."""

from __future__ import annotations

import asyncio

from ...protocol.replica_fetch import PartitionKey


class ParkedFetch:
    """A Fetch that waits until `missing` more bytes are visible in any of its partitions."""

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self._loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def on_visible(self, count: int) -> None:
        self._missing -= count
        if self._missing <= 0:
            self.wake()

    def wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Waits until it is woken, for that time at most."""
        timer = self._loop.call_later(timeout_s, self.wake)
        try:
            await self._woken
        finally:
            timer.cancel()


class FollowerWait:
    """What has changed for one follower since its last Fetch was answered, and that follower's parked Fetch.

    So a Fetch costs as much as has changed, whatever the number of partitions in its session. All appends of one
    turn of the event loop wake the Fetch once.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed: dict[PartitionKey, None] = {}
        self._parked: ParkedFetch | None = None
        self._scheduled = False

    def on_append(self, partition: PartitionKey) -> None:
        """Records that the partition has more records than the follower was sent."""
        self._changed[partition] = None
        if self._parked is not None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._wake)

    def on_bounds(self, partition: PartitionKey) -> None:
        """Records another high watermark or log start offset, which the next answer carries; no answer is sent for
        it alone."""
        self._changed[partition] = None

    def take_changed(self) -> list[PartitionKey]:
        """Removes and returns the partitions that have changed, the longest wait first."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def wake(self) -> None:
        """Wakes the parked Fetch, for instance when a partition is no longer led."""
        if self._parked is not None and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._scheduled = False
        if self._parked is not None:
            self._parked.wake()

    async def park(self, timeout_s: float) -> None:
        """Waits for an append, for that time at most."""
        parked = self._parked = ParkedFetch(1)
        try:
            await parked.wait(timeout_s)
        finally:
            if self._parked is parked:
                self._parked = None
