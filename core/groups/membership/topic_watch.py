"""The topics that the leader of a classic group made its assignment from, compared with the cluster's now and then.

As in Kafka the leader alone watches, for all topics that any member subscribes to, and joins again when they differ:
that gives the whole group a new assignment. A topic differs that is there now and was not, or is gone, or has other
partitions, or is another one of the same name (KIP-516). Topics are asked for every `metadata.max.age.ms`, and with the
retry back-off while one of them does not exist or the request fails. Asking never creates a topic.

Not thread-safe: it belongs to the member's own thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from ...errors import KlammError

_log = logging.getLogger(__name__)

ATTEMPT_S = 5.0
"""How long one look may take: the member's thread follows its heartbeats again after it."""


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """`topic_id` is None where the brokers give none."""

    numbers: tuple[int, ...]
    topic_id: UUID | None = None

    def same(self, other: TopicPartitions | None) -> bool:
        """Whether an assignment made from one is right for the other."""
        if other is None or self.numbers != other.numbers:
            return False
        return None in (self.topic_id, other.topic_id) or self.topic_id == other.topic_id


Topics = Mapping[str, TopicPartitions]
"""Topics that do not exist are left out."""
ReadTopics = Callable[[Collection[str], float | None], Topics]
"""Asks the cluster for topics within so many seconds, None: the client's request time-out; `KlammError` on failure."""


class TopicWatch:
    """`retry_s` gives the wait after so many looks in a row that failed or missed a topic."""

    def __init__(
        self,
        read: ReadTopics,
        max_age_s: float,
        retry_s: Callable[[int], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._max_age_s = max_age_s
        self._retry_s = retry_s
        self._clock = clock
        self._names: frozenset[str] = frozenset()
        self._assigned: Topics | None = None
        self._next_s = math.inf
        self._failures = 0

    def read(self, names: Collection[str]) -> dict[str, tuple[int, ...]]:
        """Returns the partition numbers by topic to make an assignment from, and watches these topics from now on."""
        found = self._read(names, None)
        self._names, self._assigned = frozenset(names), found
        absent = sorted(self._names - found.keys())
        if absent:
            _log.warning("no member is assigned partitions of %s: not in the cluster now", ", ".join(absent))
        self._plan(complete=not absent)
        return {topic: partitions.numbers for topic, partitions in found.items()}

    def stop(self) -> None:
        """This member leads no more, or joins again."""
        self._assigned = None

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next look is due, `longest_s` at most."""
        if self._assigned is None:
            return longest_s
        return min(longest_s, max(0.0, self._next_s - self._clock()))

    def changed(self) -> bool:
        """Looks if it is time to; True when the topics are not what the assignment was made from."""
        if self._assigned is None or self._clock() < self._next_s:
            return False
        try:
            found = self._read(self._names, ATTEMPT_S)
        except KlammError as error:
            _log.warning("whether topics have new partitions is not known, and asked again: %s", error)
            self._plan(complete=False)
            return False
        self._plan(complete=found.keys() == self._names)
        before = self._assigned
        different = sorted(
            name for name in found.keys() | before.keys() if name not in found or not found[name].same(before.get(name))
        )
        if different:
            _log.info("partitions have changed since they were assigned: %s", ", ".join(different))
        return bool(different)

    def _plan(self, *, complete: bool) -> None:
        """When to look next; one back-off apart at least, however short the maximum age is."""
        self._failures = 0 if complete else self._failures + 1
        wait_s = self._retry_s(max(self._failures, 1))
        if complete:
            wait_s = max(wait_s, self._max_age_s)
        self._next_s = self._clock() + wait_s
