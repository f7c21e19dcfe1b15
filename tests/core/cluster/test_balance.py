"""Plans for the load of the brokers: preferred leaders, moves of replicas, draining a broker."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.cluster.balance import (
    Move,
    PlacedPartition,
    plan_drain,
    plan_factor,
    plan_leaders,
    plan_moves,
    preferred_elections,
)
from klamm.core.cluster.reassignment import ReplicaAssignment, begin, completed
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.partition_state import PartitionState
from klamm.core.replication.registrations import BrokerRegistration


def placed(*replicas: tuple[int, ...], leaders: dict[int, int] | None = None) -> dict[TopicPartition, PlacedPartition]:
    return {
        TopicPartition("t", number): PlacedPartition((leaders or {}).get(number, found[0]), found, found)
        for number, found in enumerate(replicas)
    }


def carried_out(
    placement: dict[TopicPartition, PlacedPartition], moves: list[Move]
) -> dict[TopicPartition, PlacedPartition]:
    after = dict(placement)
    for move in moves:
        after[move.partition] = PlacedPartition(move.replicas[0], move.replicas, move.replicas)
    return after


def test_preferred_leaders_are_restored_where_too_many_lead_elsewhere() -> None:
    placement = placed(*[(1, 2)] * 10, *[(2, 1)] * 10, leaders={0: 2, 10: 1, 11: 1})
    assert preferred_elections(placement, {1, 2}, 10) == [TopicPartition("t", 10), TopicPartition("t", 11)]
    assert preferred_elections(placement, {1, 2}, 0) == [TopicPartition("t", n) for n in (0, 10, 11)]
    assert preferred_elections(placement, {1}, 0) == [TopicPartition("t", 0)], "2 is away"
    assert preferred_elections(placement, {1, 2}, 0, unable={2}) == [TopicPartition("t", 0)]


def test_a_preferred_leader_that_is_not_in_sync_is_left_out() -> None:
    tp = TopicPartition("t", 0)
    assert preferred_elections({tp: PlacedPartition(2, (1, 2), (2,))}, {1, 2}, 10) == []
    assert preferred_elections({tp: PlacedPartition(2, (1, 2), (1, 2), reassigning=True)}, {1, 2}, 10) == []
    assert preferred_elections({tp: PlacedPartition(2, (1, 2), (1, 2))}, {1, 2}, 10) == [tp]


def test_a_new_broker_gets_its_share_a_few_at_a_time() -> None:
    placement = placed(*[(1, 2)] * 6)
    racks = dict.fromkeys((1, 2, 3))
    first = plan_moves(placement, racks, 2)
    assert len(first) == 2
    assert {move.destination for move in first} == {3}
    for _ in range(10):
        placement = carried_out(placement, plan_moves(placement, racks, 2))
    assert Counter(r for p in placement.values() for r in p.replicas) == {1: 4, 2: 4, 3: 4}
    for _ in range(10):
        placement = carried_out(placement, plan_leaders(placement, racks))
    assert Counter(p.replicas[0] for p in placement.values()) == {1: 2, 2: 2, 3: 2}


def test_racks_come_before_counts() -> None:
    placement = placed((1, 2), (1, 2))
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    moves = plan_moves(placement, racks, 10)
    assert all({racks[r] for r in move.replicas} == {"a", "b"} for move in moves)
    assert [move.replicas for move in moves] == [(1, 3), (1, 4)]


def test_a_partition_that_is_being_reassigned_is_left_alone() -> None:
    placement = {tp: replace(found, reassigning=True) for tp, found in placed((1,), (1,), (1,)).items()}
    assert plan_moves(placement, dict.fromkeys((1, 2)), 5) == []
    assert plan_leaders(placement, (1, 2)) == []


def test_a_drained_broker_has_no_replica() -> None:
    placement = placed((1, 2), (2, 3), (3, 1))
    moves = plan_drain(placement, dict.fromkeys((1, 2, 3)), 3)
    assert [(move.partition.partition, move.replicas) for move in moves] == [(1, (2, 1)), (2, (2, 1))]


def test_a_broker_that_cannot_be_drained() -> None:
    words = (
        "broker 3 cannot be drained: t-0 has 3 replicas, and of the other live brokers (1, 2) each has one already; "
        "add a broker, or lower the topic's replication factor"
    )
    with pytest.raises(BrokerError, match=re.escape(words)) as caught:
        plan_drain(placed((1, 2, 3)), dict.fromkeys((1, 2, 3)), 3)
    assert caught.value.code is ErrorCode.invalid_replication_factor


def test_the_only_live_broker_cannot_be_drained() -> None:
    words = "broker 1 cannot be drained: t-0 has 1 replica, and there is no other live broker to move it to: add one"
    with pytest.raises(BrokerError, match=re.escape(words) + "$"):
        plan_drain(placed((1,)), {1: None}, 1)


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[TopicPartition, PlacedPartition], dict[int, str | None]]:
    racks = {id_: draw(st.sampled_from(["a", "b", None])) for id_ in draw(st.sets(st.integers(0, 6), min_size=1))}
    held = st.lists(st.sampled_from(sorted(racks)), min_size=1, max_size=3, unique=True).map(tuple)
    return placed(*draw(st.lists(held, max_size=12))), racks


def racks_used(placement: dict[TopicPartition, PlacedPartition], racks: dict[int, str | None]) -> dict[str, int]:
    return {str(tp): len({racks[r] or "" for r in found.replicas}) for tp, found in placement.items()}


@given(placements(), st.integers(1, 4))
def test_plans_end_in_balance_and_never_worsen_racks(
    found: tuple[dict[TopicPartition, PlacedPartition], dict[int, str | None]], most: int
) -> None:
    placement, racks = found
    factors = {tp: len(partition.replicas) for tp, partition in placement.items()}
    for _ in range(200):
        moves = plan_moves(placement, racks, most)
        assert len(moves) <= most
        assert len({move.partition for move in moves}) == len(moves)
        before = racks_used(placement, racks)
        placement = carried_out(placement, moves)
        assert all(used >= before[tp] for tp, used in racks_used(placement, racks).items())
        if not moves:
            break
    else:
        raise AssertionError("no end")
    assert {tp: len(set(partition.replicas)) for tp, partition in placement.items()} == factors
    if len({rack or "" for rack in racks.values()}) == 1:
        counts = Counter(dict.fromkeys(racks, 0))
        counts.update(r for p in placement.values() for r in p.replicas)
        assert max(counts.values()) - min(counts.values()) <= 1


@given(placements(), st.integers(0, 6))
def test_a_drain_keeps_factors_and_racks(
    found: tuple[dict[TopicPartition, PlacedPartition], dict[int, str | None]], broker: int
) -> None:
    placement, racks = found
    try:
        moves = plan_drain(placement, racks, broker)
    except BrokerError:
        others = len(racks.keys() - {broker})
        assert any(broker in p.replicas and len(p.replicas) > others for p in placement.values())
        return
    after = carried_out(placement, moves)
    for tp, partition in after.items():
        assert broker not in partition.replicas
        assert len(set(partition.replicas)) == len(placement[tp].replicas)


@given(placements(), st.integers(1, 7))
def test_a_changed_factor_keeps_the_preferred_leader_and_adds_racks_first(
    found: tuple[dict[TopicPartition, PlacedPartition], dict[int, str | None]], factor: int
) -> None:
    placement, racks = found
    if factor > len(racks):
        with pytest.raises(BrokerError, match="is larger than the number of live brokers"):
            plan_factor(placement, racks, placement, factor)
        return
    after = carried_out(placement, plan_factor(placement, racks, placement, factor))
    for tp, partition in after.items():
        before = placement[tp].replicas
        assert len(set(partition.replicas)) == len(partition.replicas) == factor
        assert partition.replicas[0] == before[0]
        assert set(before) <= set(partition.replicas) or factor < len(before)
        if factor > len(before):
            used, there = {racks[r] or "" for r in partition.replicas}, {racks[r] or "" for r in racks}
            assert len(used) >= min(len(there), len({racks[r] or "" for r in before}) + factor - len(before))


def test_replicas_out_of_sync_are_dropped_first() -> None:
    tp = TopicPartition("t", 0)
    (move,) = plan_factor({tp: PlacedPartition(1, (1, 2, 3), (1, 3))}, dict.fromkeys((1, 2, 3)), [tp], 2)
    assert move.replicas == (1, 3)


def test_a_dead_preferred_replica_is_dropped_and_the_move_ends() -> None:
    """Broker 1 died for good; as many replicas as `min.insync.replicas` are live and in sync."""
    tp = TopicPartition("t", 0)
    for isr in ((2, 3), (1, 2, 3)):  # evicted, or not yet
        (move,) = plan_factor({tp: PlacedPartition(2, (1, 2, 3), isr)}, dict.fromkeys((2, 3)), [tp], 2)
        assert move.replicas == (2, 3)
    moving = begin(ReplicaAssignment((1, 2, 3)), move.replicas)
    live = {broker: BrokerRegistration(broker, 100, f"i{broker}", (f"a{broker}",)) for broker in (2, 3)}
    done = completed(moving, PartitionState(2, 5, 100, (2, 3), (), {2: "a2", 3: "a3"}, 1), live, 2)
    assert done is not None
    assert done.assignment == ReplicaAssignment((2, 3))


@pytest.mark.parametrize(
    ("replicas", "isr", "live", "factor", "wanted"),
    [
        ((1, 2, 3), (2,), (2, 3, 4), 2, (2, 3)),  # dead before out of sync
        ((1, 2, 3), (3,), (1, 2, 3), 1, (3,)),  # the preferred one is out of sync
        ((1, 2, 3), (), (1, 2, 3), 1, (1,)),
        ((1, 2, 3), (1, 3), (1, 3), 2, (1, 3)),
        ((1, 2, 3), (1, 2, 3), (1, 2, 3), 1, (1,)),
        ((1, 2, 3, 4), (3,), (3, 4, 5), 3, (3, 4, 1)),  # a dead one stays, and a live one is the first
        ((1, 2, 3), (3,), (3, 4), 2, (3, 1)),
    ],
)
def test_which_replicas_a_smaller_factor_keeps(
    replicas: tuple[int, ...], isr: tuple[int, ...], live: tuple[int, ...], factor: int, wanted: tuple[int, ...]
) -> None:
    tp = TopicPartition("t", 0)
    (move,) = plan_factor(
        {tp: PlacedPartition(isr[0] if isr else -1, replicas, isr)}, dict.fromkeys(live), [tp], factor
    )
    assert move.replicas == wanted
