"""A classic group as the records of `__consumer_offsets` store it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StoredGroup", "StoredMember"]


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
