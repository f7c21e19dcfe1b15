"""Which replicas are throttled while they catch up (KIP-73)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

UNLIMITED: Final = 2**63 - 1
"""The rate, in bytes a second, of those that are not throttled."""
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
