"""One classic consumer group: the coordinator's side of Kafka's group protocol, as a state machine without I/O.

Every change of state goes through `GROUP_STATES`.

Rules (Kafka's GroupCoordinator, KIP-62, KIP-345, KIP-394, KIP-559):

- A request is answered at once or parked; a parked request is answered by a later request or by `tick`.
- "Member joins" is a join that changes the group: of a new member, of the leader, or with other protocols. A rejoin of
  a Stable group that changes nothing, and a repeated join while CompletingRebalance, are answered with the current
  generation.
- A rebalance is complete when every member has sent its join and no pending member (one that was given a member id,
  KIP-394) is missing, or at the rebalance time-out, when members that have not joined are dropped (static members
  stay). The generation then grows by one, also when no member is left.
- The first rebalance of an empty group waits for the initial delay (`group.initial.rebalance.delay.ms`). Each new
  member extends it by the same delay, up to the rebalance time-out.
- "Member lost" is a member that leaves or whose session expires: one without a heartbeat for its session time-out,
  unless one of its requests is parked; and one that has joined but does not sync within the rebalance time-out.
- In PreparingRebalance heartbeats and syncs get REBALANCE_IN_PROGRESS, as do the syncs that are parked when
  CompletingRebalance ends without an assignment.
- A static member (`group.instance.id`) that rejoins replaces its former self without a rebalance; the member id it had
  is fenced (FENCED_INSTANCE_ID).
- The sessions of a restored group's members begin when it is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from ...errors import ErrorCode, ProtocolError
from ...state_table import StateTable
from ..membership.consumer_protocol import decode_subscription
from ..records.stored_group import StoredGroup
from .members import ClassicGroupMember, common_protocols, elect_protocol
from .requests import (
    DescribedGroup,
    GroupLimits,
    GroupState,
    JoinDone,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncDone,
    SyncRequest,
    SyncResult,
)

CONSUMER = "consumer"
"""The protocol type of consumers, whose subscriptions a coordinator can decode."""
ASSIGNING = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)
"""The states after a completed join: each member has the current generation."""


class GroupEvent(Enum):
    RESTORED = "restored with members"
    MEMBER_JOINS = "member joins"
    JOIN_COMPLETE = "join complete, members left"
    NO_MEMBERS = "join complete, no members left"
    LEADER_SYNCS = "leader syncs"
    MEMBER_LOST = "member lost"
    STORE_FAILED = "state could not be stored"
    CLOSED = "deleted, forgotten or coordinator moves"


GROUP_STATES: Final = StateTable(
    "group", GroupState, GroupEvent,
    """
    state                event                                    next state
    Empty                restored with members                    Stable
    Empty                member joins                             PreparingRebalance
    Empty                deleted, forgotten or coordinator moves  Dead
    PreparingRebalance   member joins                             PreparingRebalance
    PreparingRebalance   join complete, members left              CompletingRebalance
    PreparingRebalance   join complete, no members left           Empty
    PreparingRebalance   deleted, forgotten or coordinator moves  Dead
    CompletingRebalance  leader syncs                             Stable
    CompletingRebalance  member joins                             PreparingRebalance
    CompletingRebalance  member lost                              PreparingRebalance
    CompletingRebalance  deleted, forgotten or coordinator moves  Dead
    Stable               member joins                             PreparingRebalance
    Stable               member lost                              PreparingRebalance
    Stable               state could not be stored                PreparingRebalance
    Stable               deleted, forgotten or coordinator moves  Dead
    """,
)  # fmt: skip


class ClassicGroup:
    """Not thread-safe: one event loop drives it. `now` is in seconds and never decreases. Callbacks must not call the
    group."""

    def __init__(self, group_id: str, limits: GroupLimits, new_id: Callable[[str], str], now: float) -> None:
        self.group_id = group_id
        self.state: GroupState = GROUP_STATES.initial
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.static: dict[str, str] = {}
        self.pending: dict[str, float] = {}
        self.empty_since = now
        self._limits = limits
        self._new_id = new_id
        self._join_deadline = 0.0
        self._sync_deadline = 0.0
        self._unsynced: set[str] = set()
        # Seconds by which the initial delay may still be extended; None in later rebalances.
        self._initial_left: float | None = None
        self._extend_initial = False

    @classmethod
    def restored(
        cls, group_id: str, stored: StoredGroup, limits: GroupLimits, new_id: Callable[[str], str], now: float
    ) -> ClassicGroup:
        """Returns the group as it was stored: Stable if it had members, else Empty."""
        group = cls(group_id, limits, new_id, now)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        if stored.members:
            group._move(GroupEvent.RESTORED)
            group.protocol, group.leader = stored.protocol, stored.leader
            restored = [ClassicGroupMember.restored(member, stored.protocol or "", now) for member in stored.members]
            group.members = {member.member_id: member for member in restored}
            group.static = {m.instance_id: m.member_id for m in restored if m.instance_id is not None}
        return group

    def stored(self, now_ms: int) -> StoredGroup:
        """Returns the state to store. Call it only for a Stable or Empty group."""
        members = tuple(member.stored(self.protocol) for member in self.members.values())
        return StoredGroup(self.protocol_type or "", self.generation, self.protocol, self.leader, now_ms, members)

    def mark(self) -> tuple[GroupState, int, tuple[str, ...]]:
        """Returns a value that changes whenever there is a new state to store."""
        return self.state, self.generation, tuple(self.members)

    @property
    def populated(self) -> bool:
        """True if there are members, or pending ones that were given a member id and may join."""
        return bool(self.members or self.pending)

    def _move(self, event: GroupEvent) -> None:
        self.state = GROUP_STATES.next(self.state, event)

    # Joining

    def join(self, request: JoinRequest, now: float, done: JoinDone) -> None:
        """Calls `done` now, or when the rebalance ends."""
        error = self._join_error(request)
        if error is not None:
            was_pending = self.pending.pop(request.member_id, None) is not None
            done(JoinResult(error, request.member_id))
            if was_pending:
                self._complete_if_all_joined(now)
        elif not request.member_id:
            self._join_first(request, now, done)
        elif self.pending.pop(request.member_id, None) is not None:
            self._add(request.member_id, request, now, done)
        else:
            self._rejoin(self.members[request.member_id], request, now, done)

    def _join_error(self, request: JoinRequest) -> ErrorCode | None:
        if not self._speaks(request):
            return ErrorCode.inconsistent_group_protocol
        if request.member_id and request.member_id not in self.pending:
            identity = self._identity_error(request.member_id, request.instance_id)
            if identity is not None:
                return identity
        if not self._has_room(request):
            return ErrorCode.group_max_size_reached
        return None

    def _speaks(self, request: JoinRequest) -> bool:
        """Returns True if the request has the group's protocol type and a protocol in common with all other members."""
        if not request.protocol_type or not request.protocols:
            return False
        if not self.members:
            return True
        if request.protocol_type != self.protocol_type:
            return False
        names = {name for name, _ in request.protocols}
        replaced = {request.member_id, self.static.get(request.instance_id or "")}
        others = [m for m in self.members.values() if m.member_id not in replaced]
        return not others or bool(names & common_protocols(others))

    def _has_room(self, request: JoinRequest) -> bool:
        if request.member_id in self.members or (request.instance_id or "") in self.static:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            return sum(m.join_done is not None for m in self.members.values()) < self._limits.max_size
        return len(self.members) < self._limits.max_size

    def _join_first(self, request: JoinRequest, now: float, done: JoinDone) -> None:
        if request.instance_id is not None:
            member_id = self._new_id(request.instance_id)
            old = self.static.get(request.instance_id)
            if old is None:
                self._add(member_id, request, now, done)
            else:
                self._replace_static(self.members[old], member_id, request, now, done)
            return
        member_id = self._new_id(request.client_id)
        if request.member_id_required:
            self.pending[member_id] = now + request.session_timeout_ms / 1000
            done(JoinResult(ErrorCode.member_id_required, member_id))
        else:
            self._add(member_id, request, now, done)

    def _add(self, member_id: str, request: JoinRequest, now: float, done: JoinDone) -> None:
        member = ClassicGroupMember.of(member_id, request, now)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members[member_id] = member
        if request.instance_id is not None:
            self.static[request.instance_id] = member_id
        member.join_done = done
        self._extend_initial = True
        self._rebalance(GroupEvent.MEMBER_JOINS, now)

    def _rejoin(self, member: ClassicGroupMember, request: JoinRequest, now: float, done: JoinDone) -> None:
        same = member.protocols == request.protocols
        leads = member.member_id == self.leader
        resent = self.state is GroupState.COMPLETING_REBALANCE and same
        unchanged = self.state is GroupState.STABLE and same and not leads
        member.update(request, now)
        if resent or unchanged:
            done(self._joined(member))
            return
        if member.join_done is not None:
            # The client repeats its join on a new connection: the earlier request is answered so that it does not stay
            # parked.
            member.join_done(JoinResult(ErrorCode.rebalance_in_progress, member.member_id))
        member.join_done = done
        self._rebalance(GroupEvent.MEMBER_JOINS, now)

    def _replace_static(
        self, old: ClassicGroupMember, member_id: str, request: JoinRequest, now: float, done: JoinDone
    ) -> None:
        same = old.metadata(self.protocol) == next((d for n, d in request.protocols if n == self.protocol), None)
        former_leader = self.leader
        self._answer(old, ErrorCode.fenced_instance_id)
        member = ClassicGroupMember.of(member_id, request, now)
        member.assignment = old.assignment
        # At the position of the replaced member: assignors depend on the order of members.
        self.members = {member_id if k == old.member_id else k: m for k, m in self.members.items()}
        self.members[member_id] = member
        self.static[request.instance_id or ""] = member_id
        if old.member_id in self._unsynced:
            self._unsynced.discard(old.member_id)
            self._unsynced.add(member_id)
        if self.leader == old.member_id:
            self.leader = member_id
        if self.state is GroupState.STABLE and same and elect_protocol(self.members.values()) == self.protocol:
            if request.skips_assignment:
                done(replace(self._joined(member), skip_assignment=self.leader == member_id))
                return
            # Versions before 9 get the former leader's id, so that the rejoined leader computes no new assignment
            # (KIP-345).
            done(
                JoinResult(
                    ErrorCode.none,
                    member_id,
                    self.generation,
                    self.protocol_type,
                    self.protocol,
                    former_leader or "",
                )
            )
            return
        member.join_done = done
        self._rebalance(GroupEvent.MEMBER_JOINS, now)

    def _joined(self, member: ClassicGroupMember) -> JoinResult:
        leads = member.member_id == self.leader
        protocol = self.protocol or ""
        return JoinResult(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            protocol,
            self.leader or "",
            tuple(m.joined(protocol) for m in self.members.values()) if leads else (),
        )

    # Rebalancing

    def _rebalance(self, event: GroupEvent, now: float) -> None:
        """Enters PreparingRebalance, or completes it if no member is missing any more."""
        if self.state is GroupState.EMPTY:
            delay = self._limits.initial_rebalance_delay_ms / 1000
            self._initial_left = max(self._rebalance_timeout() - delay, 0.0) if delay > 0 else None
            self._join_deadline = now + (delay or self._rebalance_timeout())
            self._extend_initial = False
        elif self.state in ASSIGNING:
            self._reset_syncs()
            self._initial_left = None
            self._join_deadline = now + self._rebalance_timeout()
        self._move(event)
        self._complete_if_all_joined(now)

    def _reset_syncs(self) -> None:
        self._unsynced.clear()
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members.values():
                member.assignment = b""
                if member.sync_done is not None:
                    member.sync_done(SyncResult(ErrorCode.rebalance_in_progress))
                    member.sync_done = None

    def _rebalance_timeout(self) -> float:
        return max((m.rebalance_timeout_s for m in self.members.values()), default=0.0)

    def _complete_if_all_joined(self, now: float) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE or self.pending:
            return
        if self._initial_left is not None and self.members:
            return
        if all(m.join_done is not None for m in self.members.values()):
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        missing = [m for m in self.members.values() if m.join_done is None and m.instance_id is None]
        for member in missing:
            self._drop(member)
        present = [m for m in self.members.values() if m.join_done is not None]
        if self.members and not present:
            # Only static members that have not joined are left: they stay members until their sessions expire.
            self._join_deadline = now + self._rebalance_timeout()
            return
        self.generation += 1
        self._initial_left = None
        if not self.members:
            self._become_empty(now)
            return
        if self.leader not in [m.member_id for m in present]:
            self.leader = present[0].member_id
        self.protocol = elect_protocol(self.members.values())
        self._move(GroupEvent.JOIN_COMPLETE)
        self._sync_deadline = now + self._rebalance_timeout()
        self._unsynced = {m.member_id for m in present}
        for member in present:
            done, member.join_done = member.join_done, None
            member.renew_session(now)
            if done is not None:
                done(self._joined(member))

    def _become_empty(self, now: float) -> None:
        """Makes the group Empty. The protocol type stays, as in Kafka: it is the type of the group that the offsets
        belong to."""
        self._move(GroupEvent.NO_MEMBERS)
        self.protocol = self.leader = None
        self.empty_since = now

    def store_failed(self, now: float) -> None:
        """Rebalances a Stable group whose state could not be stored."""
        if self.state is GroupState.STABLE:
            self._rebalance(GroupEvent.STORE_FAILED, now)

    # Syncing, heartbeats, leaving, commits

    def sync(self, request: SyncRequest, now: float, done: SyncDone) -> None:
        """Calls `done` now, or when the leader has sent the assignment."""
        error = self._member_error(request.member_id, request.instance_id, request.generation)
        if error is None and not self._same_protocol(request):
            error = ErrorCode.inconsistent_group_protocol
        if error is None and self.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.rebalance_in_progress
        if error is not None:
            done(SyncResult(error))
            return
        member = self.members[request.member_id]
        member.renew_session(now)
        self._unsynced.discard(member.member_id)
        if self.state is GroupState.STABLE:
            done(self._synced(member))
            return
        if member.sync_done is not None:
            member.sync_done(SyncResult(ErrorCode.rebalance_in_progress))
        member.sync_done = done
        if member.member_id == self.leader:
            self._become_stable(dict(request.assignments), now)

    def _same_protocol(self, request: SyncRequest) -> bool:
        return request.protocol_type in (None, self.protocol_type) and request.protocol in (None, self.protocol)

    def _become_stable(self, assignments: dict[str, bytes], now: float) -> None:
        self._move(GroupEvent.LEADER_SYNCS)
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            done, member.sync_done = member.sync_done, None
            if done is not None:
                member.renew_session(now)
                done(self._synced(member))

    def _synced(self, member: ClassicGroupMember) -> SyncResult:
        return SyncResult(ErrorCode.none, member.assignment, self.protocol_type, self.protocol)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        error = self._member_error(member_id, instance_id, generation)
        if error is not None:
            return error
        self.members[member_id].renew_session(now)
        rebalancing = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none

    def leave(self, identities: Sequence[MemberIdentity], now: float) -> list[ErrorCode]:
        """Removes the members that can leave (KIP-345); returns one code for each, in order."""
        codes = []
        for identity in identities:
            codes.append(self._leave_one(identity))
        if any(code is ErrorCode.none for code in codes):
            self._after_loss(now)
        return codes

    def _leave_one(self, identity: MemberIdentity) -> ErrorCode:
        member_id = identity.member_id
        if not member_id and identity.instance_id is not None:
            member_id = self.static.get(identity.instance_id, "")
        if self.pending.pop(member_id, None) is not None:
            return ErrorCode.none
        error = self._identity_error(member_id, identity.instance_id)
        if error is not None:
            return error
        self._drop(self.members[member_id])
        return ErrorCode.none

    def commit_error(self, member_id: str, instance_id: str | None, generation: int, now: float) -> ErrorCode:
        """Returns `none` if this member may store offsets now, else the error. A consumer outside the group (generation
        -1, no member id) may while the group has no members."""
        simple = generation < 0 and not member_id and instance_id is None
        if simple:
            return ErrorCode.unknown_member_id if self.members else ErrorCode.none
        error = self._member_error(member_id, instance_id, generation)
        if error is not None:
            return error
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        self.members[member_id].renew_session(now)
        return ErrorCode.none

    def _identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode | None:
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return ErrorCode.unknown_member_id
            if known != member_id:
                return ErrorCode.fenced_instance_id
        return None if member_id in self.members else ErrorCode.unknown_member_id

    def _member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode | None:
        error = self._identity_error(member_id, instance_id)
        if error is None and generation != self.generation:
            error = ErrorCode.illegal_generation
        return error

    def subscribes(self, topic: str) -> bool:
        """Returns whether a member may read this topic. While a subscription cannot be decoded or the group has no
        protocol yet, that is so for every topic."""
        if not self.members or self.protocol_type != CONSUMER:
            return False
        if self.protocol is None:
            return True
        try:
            return any(topic in decode_subscription(m.metadata(self.protocol)) for m in self.members.values())
        except ProtocolError:
            return True

    # Lost members, time-outs

    def _drop(self, member: ClassicGroupMember) -> None:
        self._answer(member, ErrorCode.unknown_member_id)
        del self.members[member.member_id]
        self._unsynced.discard(member.member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _answer(self, member: ClassicGroupMember, error: ErrorCode) -> None:
        """Answers a member's parked requests with an error."""
        if member.join_done is not None:
            member.join_done(JoinResult(error, member.member_id))
        if member.sync_done is not None:
            member.sync_done(SyncResult(error))
        member.join_done = member.sync_done = None

    def _after_loss(self, now: float) -> None:
        if self.state in ASSIGNING:
            self._rebalance(GroupEvent.MEMBER_LOST, now)
        else:
            self._complete_if_all_joined(now)

    def deadline(self) -> float | None:
        """Returns when `tick` is due; None if not before the next request."""
        times = [m.alive_until for m in self.members.values() if not m.has_parked_request]
        times += self.pending.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            times.append(self._join_deadline)
        if self.state is GroupState.COMPLETING_REBALANCE and self._unsynced:
            times.append(self._sync_deadline)
        return min(times, default=None)

    def tick(self, now: float) -> None:
        """Expires pending and lost members, and ends rebalances, that are due at `now`."""
        due = self.deadline()
        if due is None or due > now:
            return
        expired_pending = [member_id for member_id, until in self.pending.items() if until <= now]
        for member_id in expired_pending:
            del self.pending[member_id]
        expired = [m for m in self.members.values() if not m.has_parked_request and m.alive_until <= now]
        if self.state is GroupState.COMPLETING_REBALANCE and self._sync_deadline <= now:
            expired += [m for m in self.members.values() if m.member_id in self._unsynced and m not in expired]
        for member in expired:
            self._drop(member)
        if expired_pending or expired:
            self._after_loss(now)
        if self.state is GroupState.PREPARING_REBALANCE and self._join_deadline <= now:
            self._join_time_out(now)

    def _join_time_out(self, now: float) -> None:
        if self._initial_left and self._extend_initial:
            delay = min(self._limits.initial_rebalance_delay_ms / 1000, self._initial_left)
            self._initial_left = max(self._initial_left - delay, 0.0)
            self._join_deadline, self._extend_initial = self._join_deadline + delay, False
            return
        self._complete_join(now)

    def close(self, error: ErrorCode) -> None:
        """Answers all parked requests with `error`; the group is Dead."""
        for member in self.members.values():
            self._answer(member, error)
        self.members.clear()
        self.static.clear()
        self.pending.clear()
        self._move(GroupEvent.CLOSED)

    def described(self) -> DescribedGroup:
        protocol = self.protocol if self.state is GroupState.STABLE else None
        members = tuple(m.described(protocol) for m in self.members.values())
        return DescribedGroup(self.group_id, self.state, self.protocol_type or "", protocol or "", members)
