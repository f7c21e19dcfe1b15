"""The partitions that this broker leads, and the fetches that wait for them.

Everything here belongs to the event loop. A parked Fetch is woken by the append (or flush) that makes enough bytes
visible, by the loss of a partition, or by its own time-out; nothing polls.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator

from ..cluster.image import PartitionImage
from ..log.partition_log import AppendResult, PartitionLog
from ..records.partition import TopicPartition
from .metrics.counters import BrokerMetrics, TopicTraffic


class ParkedFetch:
    """A Fetch that waits until `missing` more bytes are visible in any of its partitions."""

    def __init__(self, missing: int) -> None:
        self._missing = missing
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_visible(self, count: int) -> None:
        self._missing -= count
        if self._missing <= 0:
            self.wake()

    def wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Waits; returns True if it was woken in time."""
        done, _ = await asyncio.wait([self._woken], timeout=timeout_s)
        return bool(done)


class LedPartition:
    """A partition that this broker leads. `in_sync` is the number of in-sync replicas, this one included."""

    def __init__(self, name: TopicPartition, log: PartitionLog, traffic: TopicTraffic) -> None:
        self.name = name
        self.log = log
        self.traffic = traffic
        self.leader_epoch = -1
        self.in_sync = 1
        self._loop = asyncio.get_running_loop()
        self._parked: set[ParkedFetch] = set()
        self._loop_thread = threading.get_ident()
        log.on_visible = self._shown

    def update(self, state: PartitionImage) -> None:
        """Takes over the cluster's state of the partition."""
        self.leader_epoch = state.leader_epoch
        self.in_sync = len(state.isr)
        if self.log.advance_high_watermark(self.log.log_end_offset):  # there are no followers to wait for
            self.wake_all()

    def appended(self, size: int, result: AppendResult) -> None:
        """Counts a batch of `size` bytes that a client produced, and notifies the parked fetches that now see it."""
        traffic = self.traffic
        traffic.produces += 1
        traffic.bytes_in += size
        traffic.messages_in += result[1] - result[0] + 1
        if self._parked and result.high_watermark_advanced:
            for fetch in tuple(self._parked):
                fetch.on_visible(size)

    def _shown(self, _: TopicPartition) -> None:
        """Called when the log makes more visible; on another thread that is a flush, which does not tell how much
        more.
        """
        if threading.get_ident() != self._loop_thread:
            self._loop.call_soon_threadsafe(self.wake_all)

    @property
    def parked(self) -> int:
        """The number of fetches that wait for more of its records."""
        return len(self._parked)

    def park(self, fetch: ParkedFetch) -> None:
        self._parked.add(fetch)

    def unpark(self, fetch: ParkedFetch) -> None:
        self._parked.discard(fetch)

    def wake_all(self) -> None:
        """Wakes all its fetches because its state has changed."""
        for fetch in tuple(self._parked):
            fetch.wake()


class Partitions:
    """The led partitions by name. A partition is added once its log is open, and removed before its log is closed."""

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._led: dict[tuple[str, int], LedPartition] = {}
        self._metrics = metrics
        self.closing = False

    def traffic(self, topic: str) -> TopicTraffic:
        """Returns the topic's counters, whichever the partition."""
        return self._metrics.traffic(topic)

    def __iter__(self) -> Iterator[LedPartition]:
        return iter(tuple(self._led.values()))

    def find(self, topic: str, partition: int) -> LedPartition | None:
        return self._led.get((topic, partition))

    def put(self, partition: LedPartition) -> None:
        self._led[partition.name] = partition

    def remove(self, names: Iterable[TopicPartition]) -> None:
        for name in names:
            partition = self._led.pop(name, None)
            if partition is not None:
                partition.wake_all()
        for topic in self._metrics.topics.keys() - {topic for topic, _ in self._led}:
            self._metrics.forget(topic)

    def close(self) -> None:
        """Wakes all parked fetches, which then answer with the records that there are, because the broker stops."""
        self.closing = True
        for partition in self:
            partition.wake_all()
