"""The audit interface: counts the records that pass each tier and publishes the counts to the audit topic (design D10).

An auditor that raises is counted and skipped: records are still processed, and the missing counts show as incomplete.

How the tiers call it:

- A producer asks `Audit.mark` for the headers of the first record of each batch, which identify the batch's sender.
  Before it takes a batch to send it, it calls `begin`; it then calls `attempted` for the batch, sends it, and calls
  `end`. It calls `acknowledged` for records that a broker has confirmed and `failed` for those whose futures raise.
  None of these calls is made record by record: an audit's cost is by batch.
- A consumer calls `start` for each partition that it is assigned, with the offset its group committed (or where it
  starts when there is none), the topic's id and the epoch of its ownership, and `begin` for all of them; `seek` when
  its user moves the position, `count` for the records that it returns, and around each commit `publish(offsets)`, then
  the commit, then `committed(offsets)` when that succeeded; `stop` for revoked partitions.
- A load, for which Spark counts, only calls `publish_ranges`, after it has published its data.
- The broker runs the service that `Audit.broker` makes; it follows the partitions that the broker leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from ..records.partition import TopicPartition
from ..records.record import Headers
from .service import BrokerContext, Service

__all__ = [
    "NO_WINDOW",
    "Audit",
    "AuditIdentity",
    "Counted",
    "LoadOrigin",
    "ProducerAudit",
    "Publish",
    "RangeAudit",
    "RangeCount",
    "WindowCount",
]

Publish = Callable[[bytes, bytes], "Future[None]"]
"""Sends one (key, value) to the audit topic with acks=all, partitioned by key; done when it is stored. It may be sent
only when a result is requested, together with those passed before.
"""

Counted = tuple[tuple[int, int, int], ...]
"""The counts of a batch, each window once: (a timestamp of the window, its records, the bytes of their keys and
values).
"""

NO_WINDOW = -1
"""The window of records without a timestamp (any below 0)."""


@dataclass(frozen=True, slots=True)
class AuditIdentity:
    """The counting party: `tier` is producer, broker, consumer or hadoop; `owner` is the group, the load job's name
    (not one load's number: ranges tile across loads), or the producer's own id; `host` and `application` as in the
    marks of batches."""

    tier: str
    owner: str
    host: str
    application: str


@dataclass(frozen=True, slots=True)
class WindowCount:
    """Records and bytes (key plus value) whose timestamp lies in [start_ms, start_ms + the audit's window)."""

    start_ms: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LoadOrigin:
    """The load that published a range: its `number` (0: none, the lake is only announced) and `job`, the id of its
    lake and the lake's topic `directory`. `replaces`: the ids of the lakes whose directory was moved to this one."""

    number: int
    job: str
    lake: str
    directory: str
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeCount:
    """The content of the offsets [from_offset, to_offset) of a partition. `topic_id`: the topic of these offsets; None
    when it is not known. `load`: the load that published them; None in other tiers.
    """

    partition: TopicPartition
    from_offset: int
    to_offset: int
    windows: tuple[WindowCount, ...]
    topic_id: UUID | None = None
    load: LoadOrigin | None = None


class ProducerAudit(Protocol):
    """Counts attempted and acknowledged records separately, by topic and window of record time. Thread-safe; does not
    wait, except in `flush` and `close`.
    """

    def begin(self, topic: str) -> bool:
        """Returns True if batches of the topic may be sent now. They may not, for some seconds at most, while the
        event is being stored which states that this producer sends again; `begin` is called again once an event is
        stored."""
        ...

    def end(self, topic: str) -> None:
        """Called after each `begin` that returned True, once `attempted` was called for the records sent, or none is
        sent.
        """
        ...

    def attempted(self, topic: str, timestamp_ms: int, size: int, count: int = 1) -> None:
        """Counts `count` records of one window, with `timestamp_ms` in it; `size` is key plus value in bytes of all of
        them, as serialized, without headers.
        """
        ...

    def acknowledged(self, topic: str, timestamp_ms: int, size: int, count: int = 1) -> None:
        """Counts acknowledged records. The timestamp is in the window that `attempted` got, or is the broker's if the
        broker sets timestamps. The sums over all calls are the same."""
        ...

    def failed(self, topic: str, count: int = 1) -> None:
        """Reports that this many attempted records are abandoned: they will not be acknowledged."""
        ...

    def flush(self) -> None:
        """Publishes all counts and waits until they are stored."""
        ...

    def close(self) -> None:
        """Publishes the rest as the last counts of this producer, then stops. Called when all records are settled."""
        ...


class RangeAudit(Protocol):
    """Counts the content of an offset range [from, to) of a partition; for the broker, consumer and hadoop tiers.

    Called from one thread at a time.
    """

    def start(
        self,
        partition: TopicPartition,
        committed: int,
        *,
        topic_id: UUID | None = None,
        epoch: int = -1,
        reset: bool = False,
    ) -> None:
        """Starts the owner's count of the partition: `from` of the next event is the committed offset. Uncommitted
        counts are dropped, since their records will be read again. `epoch` grows with each change of owner. `reset`:
        nothing is committed, and the group starts at `committed` all the same."""
        ...

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Publishes where the owner starts in these partitions, for which `start` was called, and waits until it is
        stored.

        Called for a group before it returns a record of them: earlier records are not expected of the group.
        """
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Records that the user moved the position. Records below those counted already are not counted again; below
        the last commit they lead to events marked as replay, which no sum includes."""
        ...

    def count(
        self, partition: TopicPartition, offsets: Sequence[int], timestamps_ms: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """Counts returned records, in order; sizes are key plus value in bytes."""
        ...

    def publish(self, to: Mapping[TopicPartition, int]) -> None:
        """Publishes events for [from, to) and waits until they are stored; the caller commits `to` only after this
        returns.
        """
        ...

    def committed(self, to: Mapping[TopicPartition, int]) -> None:
        """Records that the commit after `publish` succeeded: the next events start here."""
        ...

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Records that these partitions are no longer this owner's; uncommitted counts are dropped."""
        ...

    def publish_ranges(self, ranges: Iterable[RangeCount]) -> None:
        """Publishes counts that were made by another component, and waits until they are stored. Repeating it changes
        nothing: for one (tier, owner, topic, topic id, partition, from) one event wins.
        """
        ...

    def end(self, topics: Iterable[str], why: str) -> None:
        """Publishes that the owner's counts of these topics have ended, so that no further records are expected of
        it, and waits until that is stored."""
        ...

    def close(self) -> None: ...


class Audit(Protocol):
    """One audit system, as configured."""

    @property
    def topic(self) -> str:
        """The audit topic's name; it is itself not audited."""
        ...

    @property
    def window_ms(self) -> int:
        """The length of a window: a record with timestamp t ≥ 0 is in the one that starts at t - t % window_ms (UTC);
        one without a timestamp (t < 0) in `NO_WINDOW`."""
        ...

    def audits(self, topic: str) -> bool: ...

    def mark(self, identity: AuditIdentity, partition: TopicPartition, counted: Counted) -> Headers:
        """Returns the headers that a producer adds to the first record of each batch that it sends to a partition: its
        identity (the `owner` of its events), and the content of the batch. Other records get none, since a batch has
        one sender.
        """
        ...

    def producer(self, identity: AuditIdentity, publish: Publish) -> ProducerAudit: ...

    def ranges(self, identity: AuditIdentity, publish: Publish) -> RangeAudit: ...

    def broker(self, context: BrokerContext) -> Service:
        """Returns the broker tier of one broker, not started."""
        ...
