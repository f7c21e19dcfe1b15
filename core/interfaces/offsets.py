"""The offset-store interface: stores the positions of groups; one store per cluster serves both group protocols (design
D6).

A store that raises refuses the commit or the fetch; the group continues from its last stored offset.

A store may also be a `GroupStore`: it stores the members of classic groups, so that they survive their broker's restart
without a rebalance. Without it, members rejoin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from uuid import UUID

from ..records.partition import TopicPartition
from .coordination import Check

__all__ = ["CommittedOffset", "GroupStore", "OffsetStore", "PartitionedStore", "StoredGroup", "StoredMember"]


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
        """Deletes the offsets; `None`: the whole group, and what a `GroupStore` keeps of it. Missing offsets are not an
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


@runtime_checkable
class GroupStore(Protocol):
    """An optional part of an `OffsetStore`: it stores groups. Blocking and thread-safe."""

    def save_group(self, group: str, state: StoredGroup) -> None:
        """Stores the state, or raises: the group's members then get COORDINATOR_NOT_AVAILABLE and join again."""
        ...

    def load_groups(self) -> dict[str, StoredGroup]:
        """Returns all stored groups. A store that raises `CoordinationUnavailableError` is called again until it
        answers.
        """
        ...


@runtime_checkable
class PartitionedStore(Protocol):
    """An optional part of an `OffsetStore`: it keeps all of a group in one partition of a topic. The leader of that
    partition coordinates the group, as in Kafka, so no other broker can store its offsets: a leader that was paused had
    no successor, or is refused as a leader.
    """

    @property
    def topic(self) -> str: ...

    def partition_of(self, group: str, partitions: int) -> int:
        """Returns the group's partition among this number of partitions."""
        ...
