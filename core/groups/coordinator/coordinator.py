"""The coordinator of classic groups: all groups that this broker coordinates, and their time-outs.

The rules of one group and its state table are in `classic_group`. This module decides which ids and session time-outs
are accepted, which groups exist, and when an empty group is forgotten. It does no I/O and has no threads: the broker
calls it from its event loop, passes callbacks that complete its futures, and calls `tick` at `next_deadline`. Every
request first applies the time-outs of its group that are due, so a late tick never leaves an expired member in the
group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

from ...errors import ErrorCode
from ..records.stored_group import StoredGroup
from .classic_group import CONSUMER, ClassicGroup
from .requests import (
    DescribedGroup,
    GroupLimits,
    GroupState,
    JoinDone,
    JoinRequest,
    JoinResult,
    ListedGroup,
    MemberIdentity,
    SyncDone,
    SyncRequest,
    SyncResult,
)

MAX_ID = 255
"""Maximum length of the client or instance id within a member id, in characters."""


def random_member_id(prefix: str) -> str:
    """Returns a member id as Kafka forms it: the client id or instance id, a dash, a random UUID."""
    return f"{prefix[:MAX_ID]}-{uuid4()}"


class GroupCoordinator:
    """All classic groups of one broker.

    `clock` returns seconds that never decrease. `on_empty(group_id)` is called when a group has lost its last member
    and pending member (the broker then releases the group's protocol lock). `on_changed(group_id)` is called when there
    is a new state to store: the group became Stable or Empty, or a static member rejoined. Callbacks must not call the
    coordinator.
    """

    def __init__(
        self,
        limits: GroupLimits,
        clock: Callable[[], float],
        new_member_id: Callable[[str], str] = random_member_id,
        on_empty: Callable[[str], None] = lambda _: None,
        on_changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._new_id = new_member_id
        self._on_empty = on_empty
        self._on_changed = on_changed
        self._groups: dict[str, ClassicGroup] = {}

    def join(self, request: JoinRequest, done: JoinDone) -> None:
        """Calls `done` once, now or later."""
        error = self._join_error(request)
        if error is not None:
            done(JoinResult(error, request.member_id))
            return
        now = self._clock()
        group = self._current(request.group_id)
        if group is None:
            group = ClassicGroup(request.group_id, self._limits, self._new_id, now)
            self._groups[request.group_id] = group
        with self._reporting_changes(group):
            group.join(request, now, done)

    def _join_error(self, request: JoinRequest) -> ErrorCode | None:
        limits = self._limits
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if not limits.min_session_timeout_ms <= request.session_timeout_ms <= limits.max_session_timeout_ms:
            return ErrorCode.invalid_session_timeout
        if request.group_id in self._groups:
            return None
        if request.member_id:
            return ErrorCode.unknown_member_id
        if len(self._groups) >= limits.max_groups:
            return ErrorCode.coordinator_not_available
        return None

    def sync(self, request: SyncRequest, done: SyncDone) -> None:
        """Calls `done` once, now or later."""
        group = self._current(request.group_id)
        if group is None:
            done(SyncResult(_missing(request.group_id)))
            return
        with self._reporting_changes(group):
            group.sync(request, self._clock(), done)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        group = self._current(group_id)
        if group is None:
            return _missing(group_id)
        return group.heartbeat(member_id, instance_id, generation, self._clock())

    def leave(self, group_id: str, members: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Returns one code for each member, in order."""
        group = self._current(group_id)
        if group is None:
            return [_missing(group_id)] * len(members)
        with self._reporting_changes(group):
            return group.leave(members, self._clock())

    def commit_error(self, group_id: str, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        """Returns `none` if offsets may be stored, else the error for every partition of the request."""
        group = self._current(group_id)
        if group is not None:
            return group.commit_error(member_id, instance_id, generation, self._clock())
        return ErrorCode.none if generation < 0 and not member_id else ErrorCode.illegal_generation

    def describe(self, group_id: str, *, has_offsets: bool = False) -> DescribedGroup:
        """Returns the group's description: Dead if it is unknown, Empty if it only has offsets."""
        group = self._groups.get(group_id)
        if group is not None:
            return group.described()
        return DescribedGroup(group_id, GroupState.EMPTY if has_offsets else GroupState.DEAD)

    def list_groups(self, states: Collection[str] = (), groups_with_offsets: Iterable[str] = ()) -> list[ListedGroup]:
        """Returns the groups sorted by id. `states` are Kafka's names, in upper or lower case; empty means all."""
        listed = {g.group_id: ListedGroup(g.group_id, g.protocol_type or "", g.state) for g in self._groups.values()}
        for group_id in groups_with_offsets:
            listed.setdefault(group_id, ListedGroup(group_id, "", GroupState.EMPTY))
        wanted = {state.lower() for state in states}
        return [row for _, row in sorted(listed.items()) if not wanted or row.state.value.lower() in wanted]

    def delete(self, group_id: str, *, has_offsets: bool = False) -> ErrorCode:
        """Deletes an empty group; if this returns `none` the caller deletes the group's offsets."""
        group = self._current(group_id)
        if group is None:
            return ErrorCode.none if has_offsets else ErrorCode.group_id_not_found
        if group.populated:
            return ErrorCode.non_empty_group
        del self._groups[group_id]
        group.close(ErrorCode.coordinator_not_available)
        return ErrorCode.none

    def delete_offsets_error(self, group_id: str, topic: str, *, has_offsets: bool = False) -> ErrorCode:
        """Returns `none` if the group's offsets in a topic may be deleted (KIP-496), which no member may subscribe
        to."""
        group = self._current(group_id)
        if group is None:
            return ErrorCode.none if has_offsets else ErrorCode.group_id_not_found
        if group.members and group.protocol_type != CONSUMER:
            return ErrorCode.non_empty_group
        return ErrorCode.group_subscribed_to_topic if group.subscribes(topic) else ErrorCode.none

    def evict(self, group_id: str, error: ErrorCode = ErrorCode.unknown_member_id) -> None:
        """Drops a group that another broker or protocol has taken over: its parked requests get `error`."""
        group = self._groups.pop(group_id, None)
        if group is not None:
            group.close(error)

    def group_ids(self) -> list[str]:
        return list(self._groups)

    # State that the offset store keeps

    def restore(self, stored: Mapping[str, StoredGroup]) -> None:
        """Adds groups as the previous coordinator stored them; groups that are known already stay as they are."""
        now = self._clock()
        for group_id, state in stored.items():
            if group_id not in self._groups and len(self._groups) < self._limits.max_groups:
                self._groups[group_id] = ClassicGroup.restored(group_id, state, self._limits, self._new_id, now)

    def state_to_store(self, group_id: str, now_ms: int) -> StoredGroup | None:
        """Returns the state to store; None for an unknown group."""
        group = self._groups.get(group_id)
        return group.stored(now_ms) if group is not None else None

    def store_failed(self, group_id: str, generation: int) -> None:
        """Rebalances a group whose state in this generation could not be stored."""
        group = self._groups.get(group_id)
        if group is not None and group.generation == generation:
            group.store_failed(self._clock())

    def populated(self, group_id: str) -> bool:
        """Returns whether the group has members or pending members. May be called from any thread."""
        group = self._groups.get(group_id)
        return group is not None and group.populated

    @property
    def group_count(self) -> int:
        """The number of groups in memory."""
        return len(self._groups)

    def next_deadline(self) -> float | None:
        """Returns when `tick` is due, in the clock's seconds; None if not before the next request."""
        times = [due for g in self._groups.values() if (due := self._deadline(g)) is not None]
        return min(times, default=None)

    def _deadline(self, group: ClassicGroup) -> float | None:
        if group.state is GroupState.EMPTY and not group.pending:
            return group.empty_since + self._limits.empty_retention_ms / 1000
        return group.deadline()

    def tick(self) -> None:
        """Expires members, ends rebalances, and forgets groups that were empty for `empty_retention_ms`."""
        now = self._clock()
        for group in list(self._groups.values()):
            self._apply_time_outs(now, group)

    def _current(self, group_id: str) -> ClassicGroup | None:
        """Returns the group after its due time-outs were applied; None if there is none."""
        group = self._groups.get(group_id)
        if group is not None:
            self._apply_time_outs(self._clock(), group)
        return self._groups.get(group_id)

    def _apply_time_outs(self, now: float, group: ClassicGroup) -> None:
        due = self._deadline(group)
        if due is None or due > now:
            return
        if not group.populated and group.state is GroupState.EMPTY:
            del self._groups[group.group_id]
            group.close(ErrorCode.coordinator_not_available)
            return
        with self._reporting_changes(group):
            group.tick(now)

    def close(self) -> None:
        """Answers every parked request: the broker shuts down."""
        for group in self._groups.values():
            group.close(ErrorCode.coordinator_not_available)
        self._groups.clear()

    @contextmanager
    def _reporting_changes(self, group: ClassicGroup) -> Iterator[None]:
        populated, mark = group.populated, group.mark()
        yield
        if group.state in (GroupState.STABLE, GroupState.EMPTY) and group.mark() != mark:
            self._on_changed(group.group_id)
        if populated and not group.populated:
            self._on_empty(group.group_id)


def _missing(group_id: str) -> ErrorCode:
    return ErrorCode.unknown_member_id if group_id else ErrorCode.invalid_group_id
