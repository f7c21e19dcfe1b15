"""Round robin over the brokers and their racks."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from klamm.core.cluster.assignment import assign_replicas, checked_assignment
from klamm.core.errors import BrokerError, ErrorCode


def test_first_replicas_go_round_from_the_start() -> None:
    assigned = assign_replicas([2, 0, 1], 0, 7, 1, start=1)
    assert [replicas[0] for replicas in assigned.values()] == [1, 2, 0, 1, 2, 0, 1]


def test_kafkas_own_example() -> None:
    """From the comment of `assignReplicasToBrokers`: 10 partitions, 5 brokers, factor 3, start 0, shift 0."""
    assigned = assign_replicas(range(5), 0, 10, 3, start=0)
    assert assigned == {
        0: (0, 1, 2),
        1: (1, 2, 3),
        2: (2, 3, 4),
        3: (3, 4, 0),
        4: (4, 0, 1),
        5: (0, 2, 3),
        6: (1, 3, 4),
        7: (2, 4, 0),
        8: (3, 0, 1),
        9: (4, 1, 2),
    }


@pytest.mark.parametrize("brokers", [1, 2, 3, 5])
@pytest.mark.parametrize("start", [0, 3, 11])
def test_replicas_are_distinct_and_spread(brokers: int, start: int) -> None:
    for factor in range(1, brokers + 1):
        assigned = assign_replicas(range(brokers), 0, brokers * 4, factor, start)
        assert all(len(set(replicas)) == factor for replicas in assigned.values())
        assert set(Counter(replicas[0] for replicas in assigned.values()).values()) == {4}


def test_further_partitions_go_on_where_the_first_stopped() -> None:
    whole = assign_replicas(range(3), 0, 8, 2, start=2)
    assert assign_replicas(range(3), 5, 3, 2, start=2) == {number: whole[number] for number in (5, 6, 7)}


@pytest.mark.parametrize(("brokers", "factor"), [(1, 2), (0, 1), (3, 0), (3, -1)])
def test_factors_that_cannot_be(brokers: int, factor: int) -> None:
    with pytest.raises(BrokerError) as caught:
        assign_replicas(range(brokers), 0, 1, factor, start=0)
    assert caught.value.code is ErrorCode.invalid_replication_factor


def test_an_admins_assignment() -> None:
    assert checked_assignment({1, 2, 3}, [(1, [3, 1]), (0, [2, 3])]) == {1: (3, 1), 0: (2, 3)}
    assert checked_assignment({1}, [(4, [1]), (5, [1])], 4, 1) == {4: (1,), 5: (1,)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([(0, [1]), (0, [2])], "partition 0 is assigned more than once"),
        ([(0, [])], "partition 0 has no replicas"),
        ([(0, [7])], "partition 0 names broker 7, which is not registered"),
        ([(0, [1, 1])], "partition 0 names a broker more than once"),
        ([(0, [1]), (1, [1, 2])], "partition 1 has 2 replicas, others have 1"),
        ([(0, [1]), (2, [1])], "partitions [0, 2] are not numbered consecutively from 0"),
        ([(-1, [1])], "partitions [-1] are not numbered consecutively from 0"),
    ],
)
def test_an_admins_mistakes(given: list[tuple[int, list[int]]], words: str) -> None:
    with pytest.raises(BrokerError, match=re.escape(words)) as caught:
        checked_assignment({1, 2}, given)
    assert caught.value.code is ErrorCode.invalid_replica_assignment


@st.composite
def racks_of_brokers(draw: st.DrawFn) -> dict[int, str | None]:
    ids = draw(st.lists(st.integers(0, 50), min_size=1, max_size=12, unique=True))
    return {broker: draw(st.sampled_from(["a", "b", "c", "d", None])) for broker in ids}


@given(racks_of_brokers(), st.integers(1, 12), st.integers(1, 60), st.integers(0, 200), st.integers(0, 500))
def test_replicas_lie_in_as_many_racks_as_possible(
    racks: dict[int, str | None], factor: int, count: int, first: int, start: int
) -> None:
    assume(factor <= len(racks))
    assigned = assign_replicas(list(racks), first, count, factor, start, racks)
    assert list(assigned) == list(range(first, first + count))
    for replicas in assigned.values():
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
        used = Counter(racks[replica] for replica in replicas)
        sizes = Counter(racks.values())
        assert len(used) == min(factor, len(sizes))
        full = max(used.values())
        for rack, size in sizes.items():  # no rack has two more than another that still has a free broker
            assert used[rack] >= min(size, full - 1)


@given(racks_of_brokers(), st.integers(1, 12), st.integers(1, 5), st.integers(0, 500))
def test_each_broker_leads_equally_many(racks: dict[int, str | None], factor: int, rounds: int, start: int) -> None:
    assume(factor <= len(racks))
    assigned = assign_replicas(list(racks), 0, rounds * len(racks), factor, start, racks)
    assert Counter(replicas[0] for replicas in assigned.values()) == dict.fromkeys(racks, rounds)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 20), st.integers(1, 5), st.integers(0, 500))
def test_equal_racks_give_each_broker_equally_many_replicas(
    number_of_racks: int, rack_size: int, factor: int, rounds: int, start: int
) -> None:
    brokers = number_of_racks * rack_size
    assume(factor <= brokers)
    racks = {broker: f"rack {broker % number_of_racks}" for broker in range(brokers)}
    assigned = assign_replicas(range(brokers), 0, rounds * brokers, factor, start, racks)
    found = Counter(replica for replicas in assigned.values() for replica in replicas)
    assert found == dict.fromkeys(range(brokers), rounds * factor)


def test_one_rack_is_as_none() -> None:
    plain = assign_replicas(range(5), 0, 20, 3, start=2)
    assert assign_replicas(range(5), 0, 20, 3, 2, dict.fromkeys(range(5), "a")) == plain
    assert assign_replicas(range(5), 0, 20, 3, 2, dict.fromkeys(range(5), None)) == plain
