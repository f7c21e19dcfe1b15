"""The audit seam: who counts what passed each tier, and tells it to the audit topic (design D10).

An auditor that raises is counted and passed over: records go on, and the missing counts show as incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from klamm.core.records.partition import TopicPartition
from klamm.core.records.record import Headers

Publish = Callable[[bytes, bytes], "Future[None]"]
"""Send one (key, value) to the audit topic with acks=all; the future is done when it is stored."""


@dataclass(frozen=True, slots=True)
class AuditIdentity:
    """Who counts: `tier` producer, broker, consumer, mirror or hadoop; `owner` the group or load (the producer's own
    id for producers); `host` and `application` as in the record headers."""

    tier: str
    owner: str
    host: str
    application: str


class ProducerAudit(Protocol):
    """Counts attempted and acknowledged apart, by topic and window of record time. Thread-safe."""

    def attempted(self, topic: str, timestamp_ms: int, size: int) -> None: ...

    def acknowledged(self, topic: str, timestamp_ms: int, size: int) -> None: ...

    def flush(self) -> None:
        """Publish all counts and wait until they are stored."""
        ...

    def close(self) -> None:
        """`flush`, then stop."""
        ...


class RangeAudit(Protocol):
    """Counts what an offset range [from, to) of a partition held; for the broker, consumer and hadoop tiers."""

    def start(self, partition: TopicPartition, committed: int) -> None:
        """`from` of the next event is the committed offset. A later `start` below it opens a replay."""
        ...

    def count(
        self, partition: TopicPartition, offsets: Sequence[int], timestamps_ms: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Records handed out, in order; sizes are key plus value in bytes."""
        ...

    def publish(self, to: Mapping[TopicPartition, int]) -> None:
        """Publish events for [from, to) and wait until stored; the caller commits `to` only after this returns."""
        ...

    def close(self) -> None: ...


class Audit(Protocol):
    """One audit system, as configured."""

    @property
    def topic(self) -> str:
        """The audit topic's name; it is itself not audited."""
        ...

    def audits(self, topic: str) -> bool: ...

    def headers(self) -> Headers:
        """What a producer adds to each record: host and application."""
        ...

    def producer(self, identity: AuditIdentity, publish: Publish) -> ProducerAudit: ...

    def ranges(self, identity: AuditIdentity, publish: Publish) -> RangeAudit: ...
