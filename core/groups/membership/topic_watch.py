"""Compares the topics from which the leader of a classic group made its assignment with those of the cluster.

As in Kafka only the leader watches, for all topics that any member subscribes to; if they differ it joins again, which
gives the whole group a new assignment. A topic differs if it was created or deleted, has other partitions, or was
deleted and created again with the same name (KIP-516). Topics are requested every `metadata.max.age.ms`, and after the
retry back-off while one of them does not exist or the request fails. The request never creates a topic.

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
"""Time-out of one request, in seconds: the member's thread cannot react to heartbeats meanwhile."""


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """A topic's partition numbers and id; `topic_id` is None if the brokers return none."""

    numbers: tuple[int, ...]
    topic_id: UUID | None = None

    def same(self, other: TopicPartitions | None) -> bool:
        """Returns whether an assignment made from one is valid for the other."""
        if other is None or self.numbers != other.numbers:
            return False
        return None in (self.topic_id, other.topic_id) or self.topic_id == other.topic_id


Topics = Mapping[str, TopicPartitions]
"""By name; topics that do not exist are left out."""
ReadTopics = Callable[[Collection[str], float | None], Topics]
"""Requests topics from the cluster with a time-out in seconds (None: the client's request time-out); raises
`KlammError`."""


class TopicWatch:
    """`retry_s` returns the wait after a number of consecutive requests that failed or missed a topic."""

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
        """Returns the partition numbers by topic for an assignment, and watches these topics from now on."""
        found = self._read(names, None)
        self._names, self._assigned = frozenset(names), found
        absent = sorted(self._names - found.keys())
        if absent:
            _log.warning("no partitions of %s are assigned: the topic does not exist", ", ".join(absent))
        self._plan(complete=not absent)
        return {topic: partitions.numbers for topic, partitions in found.items()}

    def stop(self) -> None:
        """Stops watching: this member joins again, or no longer leads."""
        self._assigned = None

    def wait_s(self, longest_s: float) -> float:
        """Returns the seconds until the next request is due, at most `longest_s`."""
        if self._assigned is None:
            return longest_s
        return min(longest_s, max(0.0, self._next_s - self._clock()))

    def changed(self) -> bool:
        """Requests the topics if that is due; returns True if they differ from those the assignment was made from."""
        if self._assigned is None or self._clock() < self._next_s:
            return False
        try:
            found = self._read(self._names, ATTEMPT_S)
        except KlammError as error:
            _log.warning("cannot check topics for new partitions, will retry: %s", error)
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
        """Sets the time of the next request: after the maximum age, but at least one back-off from now."""
        self._failures = 0 if complete else self._failures + 1
        wait_s = self._retry_s(max(self._failures, 1))
        if complete:
            wait_s = max(wait_s, self._max_age_s)
        self._next_s = self._clock() + wait_s
