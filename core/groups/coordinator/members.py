"""The members of a classic group as its coordinator sees them: ids, protocols and sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..records.stored_group import StoredMember
from .requests import DescribedMember, JoinDone, JoinedMember, JoinRequest, SyncDone


@dataclass(slots=True)
class ClassicGroupMember:
    """One member; times are in seconds of the coordinator's clock. A member with a parked request (`join_done`,
    `sync_done`) cannot send heartbeats and does not expire."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: tuple[tuple[str, bytes], ...]
    alive_until: float
    assignment: bytes = b""
    join_done: JoinDone | None = None
    sync_done: SyncDone | None = None

    @classmethod
    def of(cls, member_id: str, request: JoinRequest, now: float) -> ClassicGroupMember:
        member = cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            0.0,
            0.0,
            (),
            now,
        )
        member.update(request, now)
        return member

    @classmethod
    def restored(cls, stored: StoredMember, protocol: str, now: float) -> ClassicGroupMember:
        """Returns the member with a session that starts now, as in Kafka: nothing received its heartbeats while the
        group had no coordinator."""
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.session_timeout_ms / 1000,
            stored.rebalance_timeout_ms / 1000,
            ((protocol, stored.subscription),),
            now + stored.session_timeout_ms / 1000,
            stored.assignment,
        )

    def stored(self, protocol: str | None) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            round(self.rebalance_timeout_s * 1000),
            round(self.session_timeout_s * 1000),
            self.metadata(protocol),
            self.assignment,
        )

    def update(self, request: JoinRequest, now: float) -> None:
        """Applies the time-outs, protocols and client of a join."""
        self.session_timeout_s = request.session_timeout_ms / 1000
        rebalance_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
        self.rebalance_timeout_s = rebalance_ms / 1000
        self.protocols = request.protocols
        self.client_id, self.client_host = request.client_id, request.client_host
        self.renew_session(now)

    def renew_session(self, now: float) -> None:
        self.alive_until = now + self.session_timeout_s

    @property
    def has_parked_request(self) -> bool:
        return self.join_done is not None or self.sync_done is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    def joined(self, protocol: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol))

    def described(self, protocol: str | None) -> DescribedMember:
        return DescribedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol) if protocol is not None else b"",
            self.assignment if protocol is not None else b"",
        )


def common_protocols(members: Iterable[ClassicGroupMember]) -> set[str]:
    """Returns the protocols that every member supports."""
    sets = [{name for name, _ in member.protocols} for member in members]
    return set.intersection(*sets) if sets else set()


def elect_protocol(members: Iterable[ClassicGroupMember]) -> str:
    """Returns the group's protocol: each member votes for the first of its protocols that all members support; the
    protocol with the most votes wins, of several the one whose name sorts first."""
    all_members = list(members)
    common = common_protocols(all_members)
    votes = Counter(next(name for name, _ in member.protocols if name in common) for member in all_members)
    return min(votes, key=lambda name: (-votes[name], name))
