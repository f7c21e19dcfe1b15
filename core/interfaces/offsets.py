"""The offset-store interface: where groups store their positions; one store per cluster serves both group protocols
(design D6).

A store that raises refuses the commit or the fetch; the group goes on from its last stored offset.

A store may also be a `GroupStore`: it keeps who the members of classic groups are, so that they outlive their broker's
restart without a rebalance. Where it is none, members rejoin.
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
    """`offset` is the next to read; negative as a client may have stored it, and then as if nothing was stored.
    `commit_timestamp_ms` since the epoch; `leader_epoch` -1 when unknown. `topic_id`:
    the offset means something in this topic only, not in one of the same name that was created later (design D5a); None
    when unknown, as in offsets that were stored by older versions."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = -1
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class StoredMember:
    """One member of a classic group. `subscription` is its metadata for the group's protocol; both it and
    `assignment` are the clients' own bytes."""

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
    """A classic group as it was when it last became stable, or empty (no members). `changed_ms` since the epoch, -1
    unknown."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    changed_ms: int = -1
    members: tuple[StoredMember, ...] = ()


class OffsetStore(Protocol):
    """Blocking and thread-safe. Made with the cluster's coordination."""

    needs_coordination: bool
    """True if nothing can be stored or read while the coordination is away: callers then get the error at once."""

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, CommittedOffset], guards: Sequence[Check] = ()
    ) -> None:
        """Store all, or raise and store none. `guards` (a registry member's owner paths) hold in the same
        transaction: `BadVersionError` or `NoNodeError` when the owner has changed."""
        ...

    def fetch(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Those stored; `None` means every partition of the group. A partition without an offset is left out."""
        ...

    def delete(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        guards: Sequence[Check] = (),
        *,
        seen: Mapping[TopicPartition, CommittedOffset] | None = None,
    ) -> None:
        """Forget them; `None`: the whole group, and what a `GroupStore` keeps of it. What is not there is no
        error. `guards` as for a commit. `seen`: only those whose offset is still the one in it, for somebody may have
        committed since; a group that keeps an offset is kept whole."""
        ...

    def groups(self) -> list[str]:
        """Groups with a stored offset, sorted."""
        ...

    def close(self) -> None:
        """Close the store's own connections; the coordination belongs to the caller."""
        ...


@runtime_checkable
class GroupStore(Protocol):
    """What an `OffsetStore` may be besides. Blocking and thread-safe."""

    def save_group(self, group: str, state: StoredGroup) -> None:
        """Store it, or raise: the group's members then get COORDINATOR_NOT_AVAILABLE and join again."""
        ...

    def load_groups(self) -> dict[str, StoredGroup]:
        """All that are stored. A store that raises `CoordinationUnavailableError` is asked again until it answers."""
        ...


@runtime_checkable
class PartitionedStore(Protocol):
    """What an `OffsetStore` may be besides: it keeps all of a group in one partition of a topic. The leader of that
    partition coordinates the group, as in Kafka, so nobody else can store its offsets: a leader that was paused had no
    successor, or is refused as a leader."""

    @property
    def topic(self) -> str: ...

    def partition_of(self, group: str, partitions: int) -> int:
        """Of so many partitions, the group's."""
        ...
