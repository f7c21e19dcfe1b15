"""The offset-store interface: stores the positions of groups; one store per cluster serves both group protocols (design
D6).

A store that raises refuses the commit or the fetch; the group continues from its last stored offset.

A store may also be a `PartitionedStore`, which stores offsets, and the members of classic groups, in the partitions of
`__consumer_offsets`: members then survive a restart or a change of their coordinator without a rebalance. Without it,
members rejoin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from ..records.codecs import CodecTable
from ..records.partition import TopicPartition
from .coordination import Check

__all__ = [
    "DEFAULT_REPLICAS",
    "CommittedOffset",
    "GroupStore",
    "LeaderLog",
    "LogSlice",
    "OffsetStore",
    "OffsetsTopicSettings",
    "OffsetsTopicStore",
    "PartitionStore",
    "PartitionedStore",
    "StoredGroup",
    "StoredMember",
]

DEFAULT_REPLICAS = 3
"""Replicas of `__consumer_offsets`, if there are as many live brokers when it is created."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`offset` is the next to read; a negative one, which a client may have stored, counts as no offset.
    `commit_timestamp_ms` since the epoch; `leader_epoch` -1 when unknown. `topic_id`: the offset is valid in this topic
    only, not in one of the same name that was created later (design D5a); None when unknown, as in offsets that older
    versions stored.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """One member of a classic group. `subscription` is its metadata for the group's protocol; both it and `assignment`
    are the clients' own bytes.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A classic group as it was when it last became stable, or empty (no members). `changed_ms` since the epoch, -1 if
    unknown.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: int = -1
    members: tuple[StoredMember, ...] = ()


class OffsetStore(Protocol):
    """Blocking and thread-safe. Made with the cluster's coordination."""

    needs_coordination: bool
    """True if nothing can be stored or read while the coordination is unavailable: callers then get the error at
    once.
    """

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        """Stores all offsets, or raises and stores none. `guards` (a registry member's owner paths) hold in the same
        transaction: raises `BadVersionError` or `NoNodeError` when the owner has changed.
        """
        ...

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns the stored offsets; `None` means every partition of the group. A partition without an offset is left
        out.
        """
        ...

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        """Deletes the offsets; `None`: the whole group, its members included. Missing offsets are not an
        error.

        `guards` as for a commit. `seen`: delete only those whose offset is still the one in it, since another may have
        been committed meanwhile; a group that keeps an offset is kept whole.
        """
        ...

    def groups(self) -> list[str]:
        """Returns the groups with a stored offset, sorted."""
        ...

    def close(self) -> None:
        """Closes the store's own connections; the coordination belongs to the caller."""
        ...


class GroupStore(Protocol):
    """The part of a `PartitionStore` that stores groups. Blocking and thread-safe."""

    def save_group(self, group: str, state: StoredGroup) -> None:
        """Stores the state, or raises: the group's members then join again."""
        ...

    def load_groups(self) -> dict[str, StoredGroup]:
        """Returns all groups that are stored in the partition. Called again if it raises
        `CoordinationUnavailableError`."""
        ...


class PartitionStore(OffsetStore, GroupStore, Protocol):
    """The groups of one partition of `__consumer_offsets`, at the broker that leads it, in one leader epoch."""


class LogSlice(NamedTuple):
    """Whole record batches, the first of which may begin before the requested offset, and the log's bounds. No data:
    the offset is outside of the log, or at the high watermark."""

    data: bytes
    high_watermark: int
    log_start_offset: int


class LeaderLog(Protocol):
    """The log of one partition, at the broker that leads it, in one leader epoch. Blocking and thread-safe, but not for
    the event loop. Every method raises `BrokerError` NOT_LEADER_OR_FOLLOWER once the epoch is over."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def codecs(self) -> CodecTable: ...

    def append(self, batch: bytearray) -> int:
        """Appends one batch under the leader epoch, waits until it is below the high watermark, and returns the offset
        after its last record.

        Raises `BrokerError` NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (nothing was appended),
        NOT_ENOUGH_REPLICAS_AFTER_APPEND or REQUEST_TIMED_OUT (the batch is in the log, and may become visible later),
        and the errors of the log.
        """
        ...

    def append_at(self, offset: int, batch: bytearray) -> int | None:
        """Appends as `append` does if the log ends at `offset`; else appends nothing and returns None."""
        ...

    def read(self, offset: int, max_bytes: int) -> LogSlice:
        """Reads batches up to the high watermark; at least one if there is any."""
        ...

    def read_uncommitted(self, offset: int, max_bytes: int) -> bytes:
        """Reads batches up to the log end, at least one if there is any: also those that are not below the high
        watermark yet, and may never be."""
        ...


@dataclass(frozen=True, slots=True)
class OffsetsTopicSettings:
    """How `__consumer_offsets` is created. `replication_factor` None: `DEFAULT_REPLICAS`, or as many as there are live
    brokers if these are fewer."""

    partitions: int = 12
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})


@runtime_checkable
class OffsetsTopicStore(Protocol):
    """An optional part of an `OffsetStore`: it says how `__consumer_offsets` is created."""

    @property
    def offsets_topic(self) -> OffsetsTopicSettings: ...


@runtime_checkable
class PartitionedStore(Protocol):
    """An optional part of an `OffsetStore`: it stores a group in the group's partition of `__consumer_offsets`. A
    coordinator uses the stores of the partitions that its broker leads, and not the store itself: their appends are
    fenced by the leader epoch, where a client's would land at the next leader."""

    def at_leader(self, log: LeaderLog) -> PartitionStore:
        """Returns the store of a partition that this broker leads."""
        ...
