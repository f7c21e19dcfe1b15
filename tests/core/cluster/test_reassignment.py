"""A partition moves to other replicas: transitions, what each waits for, and what no transition may break."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.cluster.reassignment import (
    ReplicaAssignment,
    begin,
    cancelled,
    check_target,
    completed,
    effective_min_isr,
)
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.replication.partition_state import NO_LEADER, PartitionState
from klamm.core.replication.registrations import BrokerRegistration, Standing, standing

STABLE = ReplicaAssignment((1, 2, 3))


def registered(*brokers: int, leaving: tuple[int, ...] = ()) -> dict[int, BrokerRegistration]:
    return {b: BrokerRegistration(b, 100 + b, f"i{b}", (f"a{b}",), leaving=b in leaving) for b in brokers}


def state(leader: int, *isr: int, elr: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(leader, 5, 100 + leader, isr, elr, {m: f"a{m}" for m in isr + elr}, 1)


def test_a_partition_moves_to_another_broker() -> None:
    moving = begin(STABLE, (1, 2, 4))
    assert moving == ReplicaAssignment((1, 2, 4, 3), adding=(4,), removing=(3,))
    assert (moving.target, moving.origin) == ((1, 2, 4), (1, 2, 3))
    live = registered(1, 2, 3, 4)
    assert completed(moving, state(1, 1, 2, 3), live, 2) is None, "4 is not in sync yet"
    done = completed(moving, state(1, 1, 2, 3, 4), live, 2)
    assert done is not None
    assert done.assignment == ReplicaAssignment((1, 2, 4))
    assert done.state == replace(state(1, 1, 2, 4), leader_epoch=6), "the leader stays, in a new epoch: 3 has left"


def test_a_leader_that_is_removed_hands_over_in_the_same_change() -> None:
    moving = begin(STABLE, (4, 5, 2))
    done = completed(moving, state(1, 1, 2, 3, 4, 5), registered(1, 2, 3, 4, 5), 2)
    assert done is not None
    assert (done.state.leader, done.state.leader_epoch, done.state.leader_broker_epoch) == (4, 6, 104)
    assert set(done.state.isr) == {2, 4, 5}
    leaving = completed(moving, state(1, 1, 2, 3, 4, 5), registered(1, 2, 3, 4, 5, leaving=(4,)), 2)
    assert leaving is not None
    assert leaving.state.leader == 5, "a broker that is leaving leads only if no other can"


def test_another_order_is_complete_at_once() -> None:
    moved = begin(STABLE, (3, 1, 2))
    assert moved == ReplicaAssignment((3, 1, 2))
    assert not moved.is_reassigning


def test_a_smaller_factor_waits_until_one_that_stays_can_lead() -> None:
    moving = begin(STABLE, (3,))
    assert moving == ReplicaAssignment((3, 1, 2), removing=(1, 2))
    assert completed(moving, state(1, 1, 2), registered(1, 2, 3), 1) is None
    assert completed(moving, state(1, 1, 2, 3), registered(1, 2), 1) is None, "3 is in sync, but away"
    done = completed(moving, state(1, 1, 2, 3), registered(1, 2, 3), 2)
    assert done is not None
    assert (done.state.leader, done.state.isr, done.state.elr) == (3, (3,), ())


def test_it_waits_for_as_many_in_sync_as_acknowledged_records_have() -> None:
    moving = begin(STABLE, (1, 2, 4))
    live = registered(3, 4)
    assert completed(moving, state(3, 3, 4), live, 2) is None, "records of 3 and 4 would be left on 4 alone"
    done = completed(moving, state(3, 3, 4), live, 1)
    assert done is not None
    assert (done.state.leader, done.state.isr) == (4, (4,))


def test_members_with_other_data_lead_nothing() -> None:
    moving = begin(STABLE, (4,))
    live = registered(1, 2, 3) | {4: BrokerRegistration(4, 104, "i4", ("b4", "a4"))}
    assert completed(moving, state(1, 1, 2, 3, 4), live, 1) is None


def test_a_growing_factor_does_not_raise_the_minimum_before_its_end() -> None:
    moving = begin(ReplicaAssignment((1,)), (1, 2, 3))
    assert effective_min_isr(2, moving) == 1
    assert completed(moving, state(1, 1, 2), registered(1, 2, 3), 2) is None
    done = completed(moving, state(1, 1, 2, 3), registered(1, 2, 3), 2)
    assert done is not None
    assert effective_min_isr(2, done.assignment) == 2
    assert done.state.leader_epoch == 5, "no replica has left"


def test_a_reassignment_replaces_another_and_is_cancelled_to_where_the_first_began() -> None:
    second = begin(begin(STABLE, (1, 2, 4)), (1, 2, 5))
    assert second == ReplicaAssignment((1, 2, 5, 4, 3), adding=(5, 4), removing=(4, 3))
    done = completed(second, state(1, 1, 2, 3, 4, 5), registered(1, 2, 3, 4, 5), 2)
    assert done is not None
    assert done.assignment == ReplicaAssignment((1, 2, 5))
    back = cancelled(second, state(1, 1, 2, 3, 4), registered(1, 2, 3, 4, 5), 2)
    assert back.assignment.replicas == (1, 2, 3)
    assert back.state == replace(state(1, 1, 2, 3), leader_epoch=6)


def test_cancelling_moves_a_leader_that_was_added() -> None:
    moving = begin(STABLE, (4, 2, 3))
    back = cancelled(moving, state(4, 2, 4, elr=()), registered(2, 4), 1)
    assert (back.state.leader, back.state.leader_epoch, back.state.isr) == (2, 6, (2,))


@pytest.mark.parametrize("live", [(4,), (1, 4)])
def test_cancelling_never_drops_the_last_in_sync_replicas(live: tuple[int, ...]) -> None:
    moving = begin(STABLE, (4,))
    with pytest.raises(BrokerError, match=r"of its earlier replicas 1, 2, 3 none is live and in sync") as caught:
        cancelled(moving, state(4, 4), registered(*live), 1)
    assert caught.value.code is ErrorCode.invalid_replica_assignment


def test_cancelling_leaves_no_fewer_copies_than_acknowledged_records_must_have() -> None:
    """Of the earlier replicas 2 and 3 are dead: with one that was added gone, 1 alone would have what 1 and 4 have."""
    moving = begin(STABLE, (1, 2, 4, 5))
    with pytest.raises(
        BrokerError, match=r"cannot be cancelled yet: of its earlier replicas 1, 2, 3 only 1 has the ack"
    ):
        cancelled(moving, state(1, 1, 4), registered(1, 4), 2)
    below = cancelled(moving, state(1, 1, elr=(4,)), registered(1, 4), 1)
    assert below.state.isr == (1,), "one is enough"
    back = cancelled(moving, state(1, 1, elr=(2,)), registered(1, 4), 2)
    assert (back.state.isr, back.state.elr) == ((1,), (2,)), "as many as before have them"


def test_nothing_to_cancel_or_complete() -> None:
    with pytest.raises(BrokerError) as caught:
        cancelled(STABLE, state(1, 1, 2, 3), registered(1, 2, 3), 1)
    assert caught.value.code is ErrorCode.no_reassignment_in_progress
    assert completed(STABLE, state(1, 1, 2, 3), registered(1, 2, 3), 1) is None


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ((), "the list of replicas is empty"),
        ((1, 2, 1), "the list of replicas has broker 1 more than once"),
        ((1, 2, 9), "broker 9 cannot be added: not live (live brokers: 1, 2, 4)"),
        ((8, 9), "brokers 8, 9 cannot be added: not live (live brokers: 1, 2, 4)"),
        ((-1,), "broker -1 cannot be added"),
    ],
)
def test_targets_that_cannot_be(target: tuple[int, ...], words: str) -> None:
    with pytest.raises(BrokerError, match=re.escape(words)) as caught:
        check_target(STABLE, target, {1, 2, 4})
    assert caught.value.code is ErrorCode.invalid_replica_assignment


def test_a_replica_that_is_away_may_stay_and_the_factor_may_be_fixed() -> None:
    check_target(STABLE, (1, 3, 4), {1, 2, 4})
    with pytest.raises(BrokerError, match="would change from 3 to 2") as caught:
        check_target(STABLE, (1, 2), {1, 2}, may_change_factor=False)
    assert caught.value.code is ErrorCode.invalid_replication_factor


REPLICA_SETS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True).map(tuple)


@st.composite
def situations(draw: st.DrawFn) -> tuple[ReplicaAssignment, PartitionState, dict[int, BrokerRegistration], int]:
    assignment = ReplicaAssignment(draw(REPLICA_SETS))
    for target in draw(st.lists(REPLICA_SETS, max_size=3)):
        assignment = begin(assignment, target)
    members = draw(st.permutations(assignment.replicas))
    size = draw(st.integers(1, len(members)))
    isr = tuple(members[:size])
    elr = tuple(members[size : draw(st.integers(size, len(members)))])
    live = {
        broker: BrokerRegistration(
            broker,
            draw(st.sampled_from([broker + 100, broker + 200])),
            f"i{broker}",
            draw(st.sampled_from([(f"a{broker}",), (f"b{broker}", f"a{broker}"), (f"c{broker}",)])),
            leaving=draw(st.booleans()),
        )
        for broker in draw(st.sets(st.integers(0, 6)))
    }
    leader = draw(st.sampled_from([*isr, NO_LEADER]))
    broker_epoch = -1 if leader == NO_LEADER else leader + 100
    found = PartitionState(leader, 5, broker_epoch, isr, elr, {m: f"a{m}" for m in isr + elr}, 1)
    return assignment, found, live, draw(st.integers(1, 3))


@given(situations())
def test_no_transition_drops_what_holds_the_records(
    found: tuple[ReplicaAssignment, PartitionState, dict[int, BrokerRegistration], int],
) -> None:
    assignment, before, live, minimum = found
    results = [completed(assignment, before, live, minimum)]
    if assignment.is_reassigning:
        with suppress(BrokerError):
            results.append(cancelled(assignment, before, live, minimum))
    for result in results:
        if result is None:
            continue
        after = result.state
        assert not result.assignment.is_reassigning
        assert set(after.members) <= set(result.assignment.replicas)
        assert set(after.isr) <= set(before.isr), "only the leader adds members"
        assert set(after.elr) <= set(before.elr)
        assert not set(after.isr) & set(after.elr)
        assert set(after.data_ids) == set(after.members)
        assert after.leader in after.isr
        assert standing(live.get(after.leader), before.data_ids[after.leader]) is Standing.SOUND
        same = (after.leader, after.leader_broker_epoch) == (before.leader, before.leader_broker_epoch)
        same = same and set(assignment.replicas) == set(result.assignment.replicas)
        assert after.leader_epoch == before.leader_epoch + (not same)
    done = results[0]
    if done is not None:
        assert set(assignment.target) - set(assignment.origin) <= set(done.state.isr)
        assert done.assignment.replicas == assignment.target


@given(REPLICA_SETS, st.lists(REPLICA_SETS, min_size=1, max_size=4))
def test_reassignments_that_replace_each_other_keep_origin_and_target(
    replicas: tuple[int, ...], targets: list[tuple[int, ...]]
) -> None:
    assignment = ReplicaAssignment(replicas)
    for target in targets:
        before = assignment
        assignment = begin(assignment, target)
        assert assignment.target == target
        assert set(assignment.origin) == set(before.origin), "until it completes"
        assert set(before.replicas) <= set(assignment.replicas), "none is dropped before it completes"
