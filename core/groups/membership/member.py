"""The interface of a group member, for both group protocols."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition

__all__ = ["GroupMember", "LostOwnershipError", "MemberListener", "Owned"]


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition that this member owns.

    `stream`: the number of the member's stream that reads it. `epoch` grows with each change of owner: the creation id
    of the owner path, or the generation of a classic group. `topic_id`: the id of the topic when the partition was
    claimed, if known; a topic created later with the same name has another id.
    """

    partition: TopicPartition
    stream: int
    epoch: int
    topic_id: UUID | None = None


class LostOwnershipError(BrokerError):
    """A commit was refused because the member no longer owns the partition, or is no longer in the group. Nothing was
    stored; the new owner reads the records again."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.illegal_generation) -> None:
        super().__init__(code, message)


class MemberListener(Protocol):
    """Callbacks of a member; called on the member's own thread, one at a time."""

    def on_assigned(self, owned: Collection[Owned]) -> None:
        """The member owns these partitions from now on."""
        ...

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """The member releases these partitions as soon as this returns; commits are accepted until then."""
        ...

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """The member no longer owns these partitions and another may read them: commits are refused."""
        ...

    def on_error(self, error: KlammError) -> None:
        """The member cannot follow its group at present; it keeps trying."""
        ...


class GroupMember(Protocol):
    """A consumer's member of a group. Thread-safe; a thread of its own follows the group."""

    @property
    def group(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    def start(self) -> None:
        """Starts to join, and returns at once; raises if the member cannot be in the group at all."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Stores all offsets or none. Raises `LostOwnershipError` if the member no longer owns one of the partitions.

        Exception: offsets of a topic that was deleted in the meantime are not stored while the others are, and this
        raises `LostOwnershipError` with UNKNOWN_TOPIC_OR_PARTITION.
        """
        ...

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's stored offsets; leaves out partitions without one, and offsets of a deleted topic of the
        same name."""
        ...

    def close(self) -> None:
        """Revokes all partitions (`on_revoked`), leaves the group and ends the thread."""
        ...
