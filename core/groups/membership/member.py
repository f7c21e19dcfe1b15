"""The interface of a group member, for both group protocols."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition that this member owns. `stream`: the number of the member's stream that reads it. `epoch` grows with
    each change of owner: the creation id of the claim, or the generation of a classic group. `topic_id`: of the topic
    that was claimed, where the member knows it; a topic created later under the same name is another one."""

    partition: TopicPartition
    stream: int
    epoch: int
    topic_id: UUID | None = None


class LostOwnershipError(BrokerError):
    """A commit was refused, since the partition, or the whole membership, is this member's no more. Nothing was
    stored of it; who owns it now reads the records again."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.illegal_generation) -> None:
        super().__init__(code, message)


class MemberListener(Protocol):
    """Called on the member's own thread, one at a time."""

    def on_assigned(self, owned: Collection[Owned]) -> None:
        """These are ours from now on."""
        ...

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These will be released as soon as this returns; commits still count until then."""
        ...

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """These are gone already, and may be read by another: commits of them are refused."""
        ...

    def on_error(self, error: KlammError) -> None:
        """The member cannot do its work at present; it goes on trying."""
        ...


class GroupMember(Protocol):
    """Thread-safe; its own thread follows the group."""

    @property
    def group(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def generation(self) -> int:
        """Grows over the rebalances of a group; -1 outside of one."""
        ...

    def start(self) -> None:
        """Begin to join; returns at once unless the group cannot be entered at all, which raises."""
        ...

    def owned(self) -> dict[TopicPartition, Owned]: ...

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """All or none; `LostOwnershipError` when one is not this member's any more. Offsets of a topic that was deleted
        meanwhile are not stored, the others are, and then it raises too (UNKNOWN_TOPIC_OR_PARTITION)."""
        ...

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """The group's stored offsets; partitions without one are left out, and those whose offset is of a deleted topic
        of the same name."""
        ...

    def close(self) -> None:
        """Revoke everything (`on_revoked`), leave the group, end the thread."""
        ...
