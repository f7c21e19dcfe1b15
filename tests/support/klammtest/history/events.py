"""What a history consists of: operations of clients, with the times at which they began and ended, and observations.

Recorders append events as they happen; `check` reads the whole history afterwards. Times are seconds of one monotonic
clock. A start may be recorded too early and an end too late, never the other way round. A time-out, NOT_LEADER and
NOT_ENOUGH_REPLICAS_AFTER_APPEND are *unknown* outcomes, never failures: an unknown record may be stored or not, but at
most once with an idempotent producer. Values are small ints or strings, so that a million records need no million
objects.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final, NamedTuple

from klamm.core.records.partition import TopicPartition

REFUSED: Final = frozenset(
    {
        "MESSAGE_TOO_LARGE",
        "RECORD_LIST_TOO_LARGE",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "TOPIC_AUTHORIZATION_FAILED",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)
"""The errors of a Produce request after which a record is certainly not stored, by any try of its producer."""


class Outcome(Enum):
    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, error: str | None) -> Outcome:
        """Returns the outcome of a record by its error's name, None if it was acknowledged."""
        if error is None:
            return cls.OK
        return cls.FAIL if error.upper().lstrip("_") in REFUSED else cls.UNKNOWN


class Send(NamedTuple):
    """One record of one producer. `offset` is set when the outcome is OK, -1 if the acknowledgement had none.

    `producer` names the sender whose order counts. Without `idempotent` its retries may be stored twice, or out of
    order.
    """

    producer: str
    value: str | int
    outcome: Outcome
    offset: int = -1
    start: float = -inf
    end: float = inf
    idempotent: bool = True


class Poll(NamedTuple):
    """A record as a consumer received it. A name stands for one uninterrupted assignment: a consumer that seeks, or
    loses the partition to another, is another one afterwards.
    """

    consumer: str
    offset: int
    value: str | int


class Watermark(NamedTuple):
    """A high watermark (ListOffsets of the latest offset, or a Fetch) as one leader gave it in its epoch."""

    observer: str
    leader_epoch: int
    offset: int
    start: float = -inf
    end: float = inf


class Commit(NamedTuple):
    group: str
    offset: int
    outcome: Outcome
    generation: int = -1


class Ownership(NamedTuple):
    """A member owned the partition from `start` to `end` in a generation."""

    member: str
    generation: int
    start: float
    end: float


class Leadership(NamedTuple):
    """`observer`: the broker whose Metadata said so, or the coordination."""

    broker: int
    epoch: int
    observer: str = ""


@dataclass
class PartitionHistory:
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    leaderships: set[Leadership] = field(default_factory=set)
    watermarks: list[Watermark] = field(default_factory=list)


class History:
    """Thread-safe recorder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.partitions: dict[TopicPartition, PartitionHistory] = defaultdict(PartitionHistory)

    def send(self, partition: TopicPartition, event: Send) -> None:
        with self._lock:
            self.partitions[partition].sends.append(event)

    def polled(self, partition: TopicPartition, events: Iterable[Poll]) -> None:
        with self._lock:
            self.partitions[partition].polls.extend(events)

    def commit(self, partition: TopicPartition, event: Commit) -> None:
        with self._lock:
            self.partitions[partition].commits.append(event)

    def owned(self, partition: TopicPartition, event: Ownership) -> None:
        with self._lock:
            self.partitions[partition].ownerships.append(event)

    def led(self, partition: TopicPartition, event: Leadership) -> None:
        with self._lock:
            self.partitions[partition].leaderships.add(event)

    def watermark(self, partition: TopicPartition, event: Watermark) -> None:
        with self._lock:
            self.partitions[partition].watermarks.append(event)
