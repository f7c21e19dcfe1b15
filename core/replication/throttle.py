"""Limits the bandwidth of replicas that catch up (KIP-73), so that a reassignment leaves room for clients.

A `ReplicationQuota` is one end's limit on one broker: as a leader (`leader.replication.throttled.rate`) or as a
follower (`follower.replication.throttled.rate`). Only throttled replicas that are not in sync count and wait: a limit
on an in-sync replica would push it out of the ISR (KAFKA-4313). No I/O; `now_ms` is monotonic. One thread.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = 2**63 - 1
_WINDOW_MS: Final = 1000
"""The quota that may be used at once after idle time: as much as of one second."""
_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """A topic's `leader.replication.throttled.replicas` or `follower…`: all of its replicas, or some (partition,
    broker).
    """

    everything: bool = False
    some: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def parse(cls, entries: Collection[str]) -> ThrottledReplicas:
        """Reads `*`, or entries `PARTITION:BROKER` that the configuration has validated."""
        if _ALL in entries:
            return cls(everything=True)
        pairs = (entry.partition(":") for entry in entries)
        return cls(some=frozenset((int(partition), int(broker)) for partition, _, broker in pairs))

    def covers(self, partition: int, broker_id: int) -> bool:
        return self.everything or (partition, broker_id) in self.some


class ReplicationQuota:
    """A token bucket of bytes. It may go below zero by one answer, since an answer's size is known afterwards; then all
    throttled replicas wait until it is filled again.
    """

    def __init__(self, bytes_per_second: int, now_ms: float) -> None:
        self._rate = bytes_per_second
        self._available = self._most
        self._updated_ms = now_ms

    @property
    def is_limited(self) -> bool:
        return self._rate < UNLIMITED

    def set_rate(self, bytes_per_second: int, now_ms: float) -> None:
        """Changes the rate; what was used above the earlier rate is waited for at the new one."""
        self._refill(now_ms)
        self._rate = bytes_per_second
        self._available = min(self._available, self._most)

    def used(self, size: int, now_ms: float) -> None:
        """Records bytes that were sent to, or received by, throttled replicas that are not in sync."""
        if self.is_limited:
            self._refill(now_ms)
            self._available -= size

    def is_exceeded(self, now_ms: float) -> bool:
        """Returns True if throttled replicas that are not in sync must wait."""
        return self.wait_ms(now_ms) > 0

    def wait_ms(self, now_ms: float) -> float:
        """Returns the time after which the quota is not exceeded any more, in ms; 0 if it is not now."""
        if not self.is_limited:
            return 0.0
        self._refill(now_ms)
        return 0.0 if self._available > 0 else max(1.0, -self._available * 1000 / self._rate)

    @property
    def _most(self) -> float:
        return self._rate * _WINDOW_MS / 1000

    def _refill(self, now_ms: float) -> None:
        passed = max(0.0, now_ms - self._updated_ms)
        self._updated_ms = max(now_ms, self._updated_ms)
        self._available = min(self._most, self._available + passed * self._rate / 1000)


def must_wait(quota: ReplicationQuota, *, throttled: bool, in_sync: bool, now_ms: float) -> bool:
    """Returns True if a replica's partition is left out of this Fetch."""
    return throttled and not in_sync and quota.is_exceeded(now_ms)
