"""Requests to the coordinator of a classic group, and their results. Times are in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ...errors import ErrorCode


class GroupState(Enum):
    """Kafka's names, as ListGroups and DescribeGroups give them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The broker's group settings (`group.min.session.timeout.ms` and so on).

    `empty_retention_ms`: how long an empty group is kept in memory (its stored offsets are kept longer). `max_groups`
    bounds the memory of a coordinator.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647
    empty_retention_ms: int = 600_000
    max_groups: int = 100_000


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`member_id` is empty in the first join. `rebalance_timeout_ms` -1 (version 0) stands for the session time-out.
    `member_id_required`: the request's version (4 and up) supports MEMBER_ID_REQUIRED (KIP-394). `skips_assignment`:
    the request's version (9 and up) supports a leader that computes no assignment (KIP-814). `protocols`: name and
    metadata, in the order of preference."""

    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_id_required: bool = True
    skips_assignment: bool = False


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    """`members` is set for the leader only. `skip_assignment`: the leader is to compute no assignment."""

    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """`assignments`: the member id and assignment of each member, sent by the leader only. `protocol_type` and
    `protocol` are checked if they are set (version 5 and up)."""

    group_id: str
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The member that leaves: its member id, or its instance id with an empty member id."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    group_id: str
    state: GroupState
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: GroupState


JoinDone = Callable[[JoinResult], None]
SyncDone = Callable[[SyncResult], None]
