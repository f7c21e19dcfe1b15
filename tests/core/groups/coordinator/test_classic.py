"""Every transition of the classic group's table, with a fake clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from klamm.core.errors import ErrorCode
from klamm.core.groups.coordinator.classic_group import ClassicGroup
from klamm.core.groups.coordinator.coordinator import GroupCoordinator
from klamm.core.groups.coordinator.requests import (
    GroupLimits,
    GroupState,
    JoinRequest,
    JoinResult,
    MemberIdentity,
    SyncRequest,
    SyncResult,
)
from klamm.core.groups.records.stored_group import StoredGroup
from klammtest.guarantees import guarantee

LIMITS = GroupLimits(initial_rebalance_delay_ms=3_000, empty_retention_ms=60_000, max_size=4)
RANGE = (("range", b"r"),)


@dataclass
class World:
    """A coordinator, its clock, and what became of each request."""

    limits: GroupLimits = LIMITS
    now: float = 100.0
    emptied: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    ids: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.groups = GroupCoordinator(
            self.limits, lambda: self.now, self._new_id, self.emptied.append, self.changed.append
        )

    def _new_id(self, prefix: str) -> str:
        self.ids[prefix] += 1
        return f"{prefix}-{self.ids[prefix]}"

    def pass_time(self, seconds: float) -> None:
        """In small steps, as the broker's ticks come."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(self.now + 0.1, end)
            self.groups.tick()

    def join(self, client: str, member_id: str = "", **more: object) -> list[JoinResult]:
        """The answers so far; grows when a parked request is answered."""
        answers: list[JoinResult] = []
        request = JoinRequest("g", member_id, "consumer", RANGE, 10_000, 30_000, client_id=client)
        values = {"member_id_required": False, **more}
        self.groups.join(replace(request, **values), answers.append)  # type: ignore[arg-type]
        return answers

    def sync(self, member_id: str, generation: int, *shares: tuple[str, bytes], **more: object) -> list[SyncResult]:
        answers: list[SyncResult] = []
        request = SyncRequest("g", member_id, generation, shares)
        self.groups.sync(replace(request, **more), answers.append)  # type: ignore[arg-type]
        return answers

    def beat(self, member_id: str, generation: int, instance: str | None = None) -> ErrorCode:
        return self.groups.heartbeat("g", member_id, generation, instance)

    @property
    def state(self) -> GroupState:
        return self.groups.describe("g").state

    def stable(self, *clients: str, **more: object) -> list[str]:
        """A stable group of generation 1 with these members; the first leads."""
        joins = [self.join(client, **more) for client in clients]
        self.pass_time(6.5)
        members = [answers[0].member_id for answers in joins]
        generation = joins[0][0].generation
        for member in members[1:]:
            self.sync(member, generation)
        self.sync(members[0], generation, *((m, m.encode()) for m in members))
        assert self.state is GroupState.STABLE
        return members


def only(answers: list[JoinResult] | list[SyncResult]) -> ErrorCode:
    assert len(answers) == 1
    return answers[0].error


def test_first_rebalance_waits_the_initial_delay_again_for_a_newcomer() -> None:
    world = World()
    first = world.join("a")
    world.pass_time(2)
    second = world.join("b")
    world.pass_time(2)
    assert not first
    assert world.state is GroupState.PREPARING_REBALANCE
    world.pass_time(2.1)
    assert world.state is GroupState.COMPLETING_REBALANCE
    assert first[0].members[1].member_id == "b-1"
    assert second[0] == JoinResult(ErrorCode.none, "b-1", 1, "consumer", "range", "a-1")


def test_initial_delay_never_exceeds_the_rebalance_time_out() -> None:
    world = World(replace(LIMITS, max_size=100))
    first = world.join("a", rebalance_timeout_ms=7_000)
    for i in range(7):
        world.pass_time(1)
        assert not first
        world.join(f"x{i}", rebalance_timeout_ms=7_000)
    world.pass_time(0.2)
    assert len(first[0].members) == 8


def test_no_initial_delay_completes_at_once() -> None:
    world = World(replace(LIMITS, initial_rebalance_delay_ms=0))
    assert only(world.join("a")) is ErrorCode.none


def test_a_member_id_is_required_and_the_pending_member_joins_or_expires() -> None:
    world = World()
    pending = world.join("a", member_id_required=True)[0]
    assert pending.error is ErrorCode.member_id_required
    assert world.state is GroupState.EMPTY
    assert world.groups.populated("g")
    joined = world.join("a", pending.member_id, member_id_required=True)
    world.pass_time(3.1)
    assert joined[0].member_id == pending.member_id
    lost = World()
    late = lost.join("a", member_id_required=True)[0].member_id
    lost.pass_time(10.1)
    assert lost.emptied == ["g"]
    assert only(lost.join("a", late)) is ErrorCode.unknown_member_id


def test_a_rebalance_waits_for_a_pending_member_until_its_session_ends() -> None:
    world = World()
    (a,) = world.stable("a")
    pending = world.join("b", member_id_required=True)[0].member_id
    third = world.join("c")
    rejoined = world.join("a", a)
    assert not rejoined
    world.join("b", pending)
    assert {m.member_id for m in rejoined[0].members} == {a, pending, "c-1"}
    assert third[0].generation == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"member_id": "ghost"}, ErrorCode.unknown_member_id),
        ({"protocols": ()}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_type": ""}, ErrorCode.inconsistent_group_protocol),
    ],
)
def test_bad_joins_are_refused(change: dict[str, object], error: ErrorCode) -> None:
    assert only(World().join("a", **change)) is error


def test_protocols_must_have_one_in_common_and_votes_decide() -> None:
    world = World()
    first = world.join("a", protocols=(("range", b"1"), ("roundrobin", b"2"), ("own", b"3")))
    second = world.join("b", protocols=(("roundrobin", b"4"), ("range", b"5")))
    third = world.join("c", protocols=(("roundrobin", b"6"), ("range", b"7")))
    assert only(world.join("d", protocols=(("own", b""),))) is ErrorCode.inconsistent_group_protocol
    assert only(world.join("d", protocol_type="connect")) is ErrorCode.inconsistent_group_protocol
    world.pass_time(6.5)
    assert first[0].protocol == second[0].protocol == third[0].protocol == "roundrobin"
    assert [m.metadata for m in first[0].members] == [b"2", b"4", b"6"]


def test_group_has_a_greatest_size() -> None:
    world = World()
    members = world.stable("a", "b", "c", "d")
    assert only(world.join("e")) is ErrorCode.group_max_size_reached
    again = world.join("a", members[0])
    assert world.state is GroupState.PREPARING_REBALANCE
    for member in members[1:]:
        world.join("", member)
    assert only(again) is ErrorCode.none


def test_a_pending_member_that_is_refused_holds_up_nobody() -> None:
    """The others have all joined; nothing else would end the rebalance before its time-out."""
    world = World(replace(LIMITS, max_size=2))
    (a,) = world.stable("a")
    c, d = (world.join(client, member_id_required=True)[0].member_id for client in "cd")
    joined = world.join("c", c)
    rejoined = world.join("a", a)
    assert not joined
    assert only(world.join("d", d)) is ErrorCode.group_max_size_reached
    assert only(joined) is only(rejoined) is ErrorCode.none


def test_sync_parks_followers_until_the_leader_brings_the_assignment() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    world.pass_time(6.5)
    follower = world.sync(b[0].member_id, 1)
    assert not follower
    leader = world.sync(a[0].member_id, 1, ("a-1", b"A"), ("b-1", b"B"), protocol="range", protocol_type="consumer")
    assert (leader[0].assignment, follower[0].assignment) == (b"A", b"B")
    assert world.sync("b-1", 1)[0].assignment == b"B"


def test_sync_errors() -> None:
    world = World()
    (a,) = world.stable("a")
    assert only(world.sync("ghost", 1)) is ErrorCode.unknown_member_id
    assert only(world.sync(a, 2)) is ErrorCode.illegal_generation
    assert only(world.sync(a, 1, protocol="other")) is ErrorCode.inconsistent_group_protocol
    world.join("b")
    assert only(world.sync(a, 1)) is ErrorCode.rebalance_in_progress
    other: list[SyncResult] = []
    world.groups.sync(SyncRequest("none", a, 1), other.append)
    assert only(other) is ErrorCode.unknown_member_id


def test_a_newcomer_starts_a_rebalance_that_heartbeats_announce() -> None:
    world = World()
    (a,) = world.stable("a")
    assert world.beat(a, 1) is ErrorCode.none
    newcomer = world.join("b")
    assert world.beat(a, 1) is ErrorCode.rebalance_in_progress
    assert only(world.join("a", a)) is ErrorCode.none
    assert newcomer[0].generation == 2
    assert world.beat(a, 2) is ErrorCode.none
    assert world.beat(a, 1) is ErrorCode.illegal_generation
    assert world.beat("ghost", 2) is ErrorCode.unknown_member_id
    assert world.groups.heartbeat("", a, 1) is ErrorCode.invalid_group_id


def test_a_member_that_does_not_rejoin_is_dropped_at_the_rebalance_time_out() -> None:
    world = World()
    a, b = world.stable("a", "b")
    newcomer = world.join("c")
    world.join("a", a)
    for _ in range(6):
        world.pass_time(4.9)
        assert world.beat(b, 1) is ErrorCode.rebalance_in_progress
    world.pass_time(1)
    assert only(newcomer) is ErrorCode.none
    assert world.beat(b, 2) is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_expires_and_the_rest_rebalances() -> None:
    world = World()
    a, b = world.stable("a", "b")
    world.pass_time(9.8)
    world.beat(b, 1)
    world.pass_time(0.5)
    assert world.state is GroupState.PREPARING_REBALANCE
    rejoined = world.join("b", b)
    assert [m.member_id for m in rejoined[0].members] == [b]
    assert rejoined[0].leader == b
    assert world.beat(a, 1) is ErrorCode.unknown_member_id


def test_a_parked_member_does_not_expire_and_lives_a_session_from_the_answer() -> None:
    world = World()
    a, b = world.stable("a", "b")
    waiting = world.join("a", a)
    for _ in range(3):
        world.pass_time(9)
        world.beat(b, 1)
    assert not waiting
    world.join("b", b)
    assert only(waiting) is ErrorCode.none
    world.pass_time(9)
    assert world.beat(a, 2) is ErrorCode.none


def test_a_member_that_never_syncs_is_dropped() -> None:
    world = World()
    a, b = world.join("a"), world.join("b")
    world.pass_time(6.5)
    parked = world.sync("a-1", 1, ("a-1", b"A"))
    assert only(parked) is ErrorCode.none
    assert world.state is GroupState.STABLE
    assert only(a) is only(b) is ErrorCode.none
    silent = World()
    silent.join("a"), silent.join("b")
    silent.pass_time(6.5)
    follower = silent.sync("b-1", 1)
    for _ in range(4):
        silent.pass_time(7.4)
        silent.beat("a-1", 1)
    silent.pass_time(1)
    assert only(follower) is ErrorCode.rebalance_in_progress
    assert silent.beat("a-1", 1) is ErrorCode.unknown_member_id


def test_rejoin_in_completing_resends_or_rebalances() -> None:
    world = World()
    world.join("a"), world.join("b")
    world.pass_time(6.5)
    parked = world.sync("b-1", 1)
    again = world.join("a", "a-1")
    assert again[0].generation == 1
    assert len(again[0].members) == 2
    world.join("b", "b-1", protocols=(("range", b"changed"),))
    assert only(parked) is ErrorCode.rebalance_in_progress
    assert world.state is GroupState.PREPARING_REBALANCE


def test_rejoin_of_a_follower_without_change_gives_the_current_generation() -> None:
    world = World()
    _, b = world.stable("a", "b")
    assert world.join("b", b)[0].generation == 1
    assert world.state is GroupState.STABLE
    world.join("b", b, protocols=(("range", b"other topics"),))
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_join_sent_twice_answers_the_first() -> None:
    world = World()
    a, _ = world.stable("a", "b")
    first = world.join("a", a)
    second = world.join("a", a)
    assert only(first) is ErrorCode.rebalance_in_progress
    assert not second


def test_leave_rebalances_the_rest_and_the_last_empties_the_group() -> None:
    world = World()
    a, b = world.stable("a", "b")
    ghosts = [MemberIdentity(b), MemberIdentity("ghost")]
    assert world.groups.leave("g", ghosts) == [ErrorCode.none, ErrorCode.unknown_member_id]
    assert world.join("a", a)[0].generation == 2
    assert world.groups.leave("g", [MemberIdentity(a)]) == [ErrorCode.none]
    assert world.state is GroupState.EMPTY
    assert world.emptied == ["g"]
    assert world.groups.leave("none", [MemberIdentity(a)]) == [ErrorCode.unknown_member_id]


def test_leave_answers_what_is_parked() -> None:
    world = World()
    a, _ = world.stable("a", "b")
    parked = world.join("a", a)
    world.groups.leave("g", [MemberIdentity(a)])
    assert only(parked) is ErrorCode.unknown_member_id


def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_former_id() -> None:
    world = World()
    old = world.join("a", instance_id="i")
    world.join("b")
    world.pass_time(6.5)
    world.sync("b-1", 1)
    world.sync("i-1", 1, ("i-1", b"I"), ("b-1", b"B"))
    new = world.join("a", instance_id="i")
    assert new[0].generation == old[0].generation == 1
    assert new[0].leader == "i-1"
    assert new[0].members == ()
    assert world.sync("i-2", 1, instance_id="i")[0].assignment == b"I"
    assert world.beat("i-1", 1, "i") is ErrorCode.fenced_instance_id
    assert only(world.join("a", "i-1", instance_id="i")) is ErrorCode.fenced_instance_id
    assert world.groups.commit_error("g", "i-1", 1, "i") is ErrorCode.fenced_instance_id
    assert world.groups.leave("g", [MemberIdentity("", "i")]) == [ErrorCode.none]
    assert world.state is GroupState.PREPARING_REBALANCE


def test_a_static_member_with_another_subscription_rebalances() -> None:
    world = World()
    world.stable("a", instance_id="i")
    again = world.join("a", instance_id="i", protocols=(("range", b"other"),))
    assert again[0].generation == 2


def test_a_static_member_that_is_away_keeps_its_place_through_a_rebalance() -> None:
    world = World()
    world.join("a", instance_id="i", session_timeout_ms=60_000)
    world.join("b")
    world.pass_time(6.5)
    world.sync("b-1", 1)
    world.sync("i-1", 1)
    rejoined = world.join("b", "b-1", protocols=(("range", b"other"),))
    world.pass_time(30.1)
    assert [m.instance_id for m in rejoined[0].members] == ["i", None]
    assert rejoined[0].leader == "b-1"


def test_only_absent_static_members_extend_the_rebalance() -> None:
    world = World()
    world.join("a", instance_id="i", session_timeout_ms=60_000)
    world.join("b")
    world.pass_time(6.5)
    world.sync("b-1", 1)
    world.sync("i-1", 1)
    world.groups.leave("g", [MemberIdentity("b-1")])
    world.pass_time(40)
    assert world.state is GroupState.PREPARING_REBALANCE
    world.pass_time(25)
    assert world.state is GroupState.EMPTY


def test_commits_are_checked() -> None:
    world = World()
    check = world.groups.commit_error
    assert check("g", "", -1) is ErrorCode.none
    assert check("g", "", 3) is ErrorCode.illegal_generation
    a, _ = world.stable("a", "b")
    assert check("g", a, 1) is ErrorCode.none
    assert check("g", a, 0) is ErrorCode.illegal_generation
    assert check("g", "ghost", 1) is ErrorCode.unknown_member_id
    assert check("g", "", -1) is ErrorCode.unknown_member_id
    newcomer = world.join("c")
    assert check("g", a, 1) is ErrorCode.none
    world.join("a", a)
    world.pass_time(10.5)
    assert only(newcomer) is ErrorCode.none
    assert check("g", a, 2) is ErrorCode.rebalance_in_progress


def test_list_describe_and_delete() -> None:
    world = World()
    a, _ = world.stable("a", "b")
    described = world.groups.describe("g")
    assert (described.protocol, described.protocol_type) == ("range", "consumer")
    assert next((m.member_id, m.metadata, m.assignment) for m in described.members) == (a, b"r", b"a-1")
    rows = world.groups.list_groups((), ["old", "g"])
    assert [(r.group_id, r.state) for r in rows] == [("g", GroupState.STABLE), ("old", GroupState.EMPTY)]
    assert [r.group_id for r in world.groups.list_groups(["empty"], ["old"])] == ["old"]
    assert world.groups.describe("none").state is GroupState.DEAD
    assert world.groups.describe("old", has_offsets=True).state is GroupState.EMPTY
    assert world.groups.delete("g") is ErrorCode.non_empty_group
    assert world.groups.delete("none") is ErrorCode.group_id_not_found
    assert world.groups.delete("old", has_offsets=True) is ErrorCode.none
    assert world.groups.delete("") is ErrorCode.group_id_not_found
    world.groups.leave("g", [MemberIdentity(m.member_id) for m in described.members])
    assert world.groups.delete("g") is ErrorCode.none
    assert world.state is GroupState.DEAD


def test_empty_groups_are_forgotten_and_their_number_is_bounded() -> None:
    world = World(replace(LIMITS, max_groups=1))
    (a,) = world.stable("a")
    assert only(world.join("x", group_id="other")) is ErrorCode.coordinator_not_available
    world.groups.leave("g", [MemberIdentity(a)])
    assert world.groups.next_deadline() == pytest.approx(world.now + 60)
    world.pass_time(60.1)
    assert world.state is GroupState.DEAD
    assert world.groups.next_deadline() is None


def test_close_answers_what_is_parked() -> None:
    world = World()
    parked = world.join("a")
    world.groups.close()
    assert only(parked) is ErrorCode.coordinator_not_available


def stored_by(world: World) -> StoredGroup:
    state = world.groups.state_to_store("g", 5)
    assert state is not None
    return state


def test_what_is_to_be_stored_is_told_once() -> None:
    world = World()
    a, b = world.stable("a", "b")
    assert world.changed == ["g"]
    world.beat(a, 1)
    world.join("a", a, protocols=RANGE, member_id_required=True)
    world.pass_time(1)
    state = stored_by(world)
    assert (state.protocol_type, state.generation, state.protocol, state.leader, state.changed_ms) == (
        "consumer", 1, "range", a, 5,
    )  # fmt: skip
    assert [(m.member_id, m.subscription, m.assignment) for m in state.members] == [
        (a, b"r", a.encode()),
        (b, b"r", b.encode()),
    ]


def test_an_empty_group_and_a_static_member_that_came_back_are_stored() -> None:
    world = World()
    (a,) = world.stable("a", instance_id="pod")
    again = world.join("a", instance_id="pod")[0].member_id
    assert world.changed == ["g", "g"]
    assert [m.member_id for m in stored_by(world).members] == [again] != [a]
    world.groups.leave("g", [MemberIdentity(again)])
    assert world.changed == ["g"] * 3
    assert stored_by(world) == StoredGroup("consumer", 2, None, None, 5)


def test_a_restored_group_goes_on_and_its_sessions_begin_anew() -> None:
    before = World()
    a, b = before.stable("a", "b", instance_id=None)
    world = World(now=9_000.0)
    world.groups.restore({"g": stored_by(before)})
    assert world.state is GroupState.STABLE
    assert world.changed == []
    world.pass_time(9)
    assert world.beat(a, 1) is ErrorCode.none
    assert world.beat(a, 0) is ErrorCode.illegal_generation
    assert only(world.sync(a, 1)) is ErrorCode.none
    world.pass_time(2)
    assert world.beat(b, 1) is ErrorCode.unknown_member_id
    assert world.beat(a, 1) is ErrorCode.rebalance_in_progress
    rejoined = world.join("a", a)
    assert (rejoined[0].generation, rejoined[0].leader) == (2, a)


def test_a_restored_static_member_is_fenced_as_before() -> None:
    before = World()
    (a,) = before.stable("a", instance_id="pod")
    world = World()
    world.groups.restore({"g": stored_by(before)})
    assert world.beat("other", 1, "pod") is ErrorCode.fenced_instance_id
    assert world.beat(a, 1, "pod") is ErrorCode.none


def test_a_group_that_is_there_is_not_restored_over() -> None:
    world = World()
    (a,) = world.stable("a")
    world.groups.restore({"g": StoredGroup("consumer", 9, "range", "x")})
    assert world.beat(a, 1) is ErrorCode.none


def test_what_could_not_be_stored_is_agreed_on_again() -> None:
    world = World()
    (a,) = world.stable("a")
    world.groups.store_failed("g", 0)
    world.groups.store_failed("other", 1)
    assert world.state is GroupState.STABLE
    world.groups.store_failed("g", 1)
    assert world.beat(a, 1) is ErrorCode.rebalance_in_progress
    assert world.join("a", a)[0].generation == 2


def forget_the_type(patch: pytest.MonkeyPatch) -> None:
    def become_empty(group: ClassicGroup, now: float) -> None:
        kept(group, now)
        group.protocol_type = None

    kept = ClassicGroup._become_empty
    patch.setattr(ClassicGroup, "_become_empty", become_empty)


@guarantee("E24", "an empty group keeps its protocol type", plant=forget_the_type)
def test_an_empty_group_keeps_its_protocol_type() -> None:
    world = World()
    (a,) = world.stable("a")
    world.groups.leave("g", [MemberIdentity(a)])
    described = world.groups.describe("g")
    assert (described.state, described.protocol_type) == (GroupState.EMPTY, "consumer")
    assert [row.protocol_type for row in world.groups.list_groups()] == ["consumer"]
    stored = world.groups.state_to_store("g", 7)
    assert stored is not None
    after = World()
    after.groups.restore({"g": stored})
    assert after.groups.describe("g").protocol_type == "consumer"


def look_only_at_ticks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupCoordinator, "_current", lambda groups, group_id: groups._groups.get(group_id))


@guarantee("E31", "a member whose session is over is gone before the next tick", plant=look_only_at_ticks)
@pytest.mark.parametrize("request_of", ["heartbeat", "commit", "sync"])
def test_a_request_meets_no_member_whose_session_is_over(request_of: str) -> None:
    world = World()
    (a,) = world.stable("a")
    assert world.beat(a, 1) is ErrorCode.none
    world.now += 10.0
    answers = {
        "heartbeat": lambda: world.beat(a, 1),
        "commit": lambda: world.groups.commit_error("g", a, 1),
        "sync": lambda: world.sync(a, 1)[0].error,
    }
    assert answers[request_of]() is ErrorCode.unknown_member_id


def test_a_static_member_of_an_expired_session_joins_as_a_newcomer() -> None:
    world = World()
    (a,) = world.stable("a", instance_id="pod")
    world.now += 10.0
    assert world.join("a", instance_id="pod") == []
    world.pass_time(6.5)
    assert world.groups.describe("g").members[0].member_id != a
