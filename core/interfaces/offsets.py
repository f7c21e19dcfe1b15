"""The offset-store interface: stores the positions of groups; one store per cluster serves both group protocols (design
D6).

A store that raises refuses the commit or the fetch; the group continues from its last stored offset.

The members of classic groups are always records of `__consumer_offsets`, which their coordinator writes; a store keeps
offsets only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from uuid import UUID

from ..records.partition import TopicPartition
from .coordination import Check

__all__ = [
    "DEFAULT_REPLICAS",
    "CommittedOffset",
    "OffsetStore",
    "OffsetsTopicSettings",
    "OffsetsTopicStore",
]

DEFAULT_REPLICAS = 3
"""Replicas of `__consumer_offsets`, if there are as many live brokers when it is created."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """`offset` is the next to read; a negative one, which a client may have stored, counts as no offset.
    `commit_timestamp_ms` since the epoch; `leader_epoch` -1 when unknown. `topic_id`: the offset is valid in this
    topic only, not in a later one of the same name (design D5a); None when unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    topic_id: UUID | None = None


class OffsetStore(Protocol):
    """Blocking and thread-safe. Made with the cluster's coordination."""

    needs_coordination: bool
    """True if nothing can be stored or read while the coordination is unavailable: callers then get the error at
    once.
    """

    in_offsets_topic: bool
    """True if the offsets are records of `__consumer_offsets` in Kafka's format. The coordinator of a classic group
    then appends and reads them itself, under the leader epoch of the group's partition, and does not call the store.
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
        """Deletes the offsets; `None`: the whole group. Missing offsets are not an error.

        `guards` as for a commit. `seen`: deletes only offsets that still have these values, since others may have
        been committed meanwhile; a group that keeps an offset is kept whole.
        """
        ...

    def groups(self) -> list[str]:
        """Returns the groups with a stored offset, sorted."""
        ...

    def close(self) -> None:
        """Closes the store's own connections; the coordination belongs to the caller."""
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
    """An optional part of an `OffsetStore`: the settings with which `__consumer_offsets` is created."""

    @property
    def offsets_topic(self) -> OffsetsTopicSettings: ...
