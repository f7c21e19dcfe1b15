"""Who leads when brokers come and go, configurations change, or logs go offline."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.cluster.brokers.reports import Reports
from klamm.core.cluster.control.leadership import (
    Terms,
    count_elections,
    elections,
    first_elections,
    is_led_elsewhere,
    min_insync_replicas,
    new_state,
    preferred_election,
    unclean_election,
    without_elr_at,
)
from klamm.core.cluster.image import BrokerNode, ClusterImage, PartitionImage, TopicImage
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import CoordinationError, ErrorCode
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.elections import RecoveredEnd, elect
from klamm.core.replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState
from klammtest.clusters.images import broker_node, partition_image

T0 = TopicPartition("t", 0)
TERMS = Terms(4, 0, TopicConfig())
REPLICAS = (0, 1, 2)


def image(nodes: list[BrokerNode], partition: PartitionImage, configs: dict[str, str] | None = None) -> ClusterImage:
    topic = TopicImage("t", UUID(int=1), {0: partition}, configs or {})
    return ClusterImage("c", 0, {node.id: node for node in nodes}, {"t": topic})


def elected(found: ClusterImage, reports: Reports | None = None, terms: Terms = TERMS) -> PartitionState | None:
    return dict(elections(found, found.registrations, reports or Reports(), terms)).get(T0)


@pytest.mark.parametrize(
    ("live", "before", "after"),
    [
        pytest.param({0, 1}, (0, 5, (0, 1)), None, id="a live leader stays"),
        pytest.param({1}, (0, 5, (0, 1)), (1, 6, (1,)), id="the next in sync takes over"),
        pytest.param({1, 2}, (0, 5, (0, 2)), (2, 6, (2,)), id="one out of sync does not"),
        pytest.param({1}, (0, 5, (0, 2)), (NO_LEADER, 6, (0, 2)), id="nobody in sync is live"),
        pytest.param({1}, (NO_LEADER, 6, (0, 2)), None, id="still nobody"),
        pytest.param({0, 1}, (NO_LEADER, 6, (0, 2)), (0, 7, (0,)), id="one in sync comes back"),
        pytest.param(set(), (0, 5, (0,)), (NO_LEADER, 6, (0,)), id="nobody at all"),
        pytest.param({0}, (0, 5, (0, 1)), (0, 5, (0,)), id="a follower leaves"),
    ],
)
def test_elections(
    live: set[int], before: tuple[int, int, tuple[int, ...]], after: tuple[int, int, tuple[int, ...]] | None
) -> None:
    leader, epoch, isr = before
    found = elected(image([broker_node(number) for number in live], partition_image(leader, epoch, REPLICAS, isr)))
    if after is None:
        assert found is None
    else:
        assert found == replace(partition_image(after[0], after[1], REPLICAS, after[2]).state, controller_epoch=4)


def test_a_restarted_leader_gets_a_new_leader_epoch_above_the_clocks_floor() -> None:
    again = image([broker_node(0, epoch=9), broker_node(1)], partition_image(0, 5, REPLICAS, (0, 1)))
    found = elected(again)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.leader_broker_epoch, found.isr) == (0, 6, 9, (0, 1))
    found = elected(again, terms=Terms(4, 1000, TopicConfig()))
    assert found is not None
    assert found.leader_epoch == 1000


def test_a_change_without_a_new_leader_keeps_its_epoch() -> None:
    found = elected(
        image([broker_node(0)], partition_image(0, 5, REPLICAS, (0, 1))), terms=Terms(4, 1000, TopicConfig())
    )
    assert found is not None
    assert (found.leader_epoch, found.isr) == (5, (0,))


def test_who_leaves_below_the_topics_minimum_stays_eligible() -> None:
    """At most the replication factor counts (KIP-966)."""
    partition = partition_image(0, 5, (0, 1), (0, 1))
    found = elected(image([broker_node(0)], partition, {"min.insync.replicas": "7"}))
    assert found is not None
    assert (found.isr, found.elr, dict(found.data_ids)) == ((0,), (1,), {0: "data-0", 1: "data-1"})
    found = elected(image([broker_node(0)], partition), terms=Terms(4, 0, TopicConfig(min_insync_replicas=2)))
    assert found is not None
    assert found.elr == (1,)


def test_only_the_topics_setting_allows_an_unclean_election() -> None:
    lost = partition_image(0, 5, REPLICAS, (0,))
    nodes = [broker_node(0, epoch=2, data_ids=("another disk",)), broker_node(1)]
    for setting in ({}, {"unclean.leader.election.enable": "false"}):
        found = elected(image(nodes, lost, setting))
        assert found is not None
        assert found.leader == NO_LEADER
    allowed = {"unclean.leader.election.enable": "true"}
    found = elected(image(nodes, lost, allowed))
    assert found is not None
    assert (found.leader, found.leader_epoch) == (NO_LEADER, 6), "the replicas report first where their logs end"
    headless = image(nodes, PartitionImage(found, REPLICAS), allowed)
    ends = {0: RecoveredEnd(6, "another disk", NO_EPOCH, 0), 1: RecoveredEnd(6, "data-1", 5, 7)}
    found = elected(headless, Reports({T0: ends}))
    assert found is not None
    assert (found.leader, found.isr, dict(found.data_ids)) == (1, (1,), {1: "data-1"})


def test_doubtful_members_are_judged_by_the_ends_that_they_report() -> None:
    """R7: first no leader, then the one with the most records."""
    nodes = [
        broker_node(0, epoch=2, data_ids=("new-0", "data-0")),
        broker_node(1, epoch=2, data_ids=("new-1", "data-1")),
    ]
    first = elected(image(nodes, partition_image(0, 5, REPLICAS, (0, 1))))
    assert first is not None
    assert (first.leader, first.leader_epoch, first.isr) == (NO_LEADER, 6, (0, 1))
    without = image(nodes, PartitionImage(first, REPLICAS))
    ends = {0: RecoveredEnd(6, "new-0", 5, 70)}
    assert elected(without, Reports({T0: ends})) is None, "one is not enough"
    ends[1] = RecoveredEnd(6, "new-1", 5, 80)
    second = elected(without, Reports({T0: ends}))
    assert second is not None
    assert (second.leader, second.leader_epoch, second.isr) == (1, 7, (1,))
    assert elected(without, Reports({T0: {**ends, 0: RecoveredEnd(5, "new-0", 5, 90)}})) is None, "of another epoch"


def test_a_broker_that_leaves_hands_over() -> None:
    nodes = [broker_node(0, leaving=True), broker_node(1)]
    found = elected(image(nodes, partition_image(0, 5, REPLICAS, (0, 1))))
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr) == (1, 6, (1,))
    assert elected(image(nodes, partition_image(0, 5, REPLICAS, (0,)))) is None, "nobody else can lead"


def test_a_replica_whose_log_is_offline_does_not_lead() -> None:
    nodes = [broker_node(0), broker_node(1)]
    offline = Reports(offline={0: frozenset([T0])})
    found = elected(image(nodes, partition_image(0, 5, REPLICAS, (0, 1))), offline)
    assert found is not None
    assert (found.leader, found.isr) == (1, (1,))
    alone = elected(image(nodes, partition_image(0, 5, REPLICAS, (0,))), offline)
    assert alone is not None
    assert (alone.leader, alone.isr) == (NO_LEADER, (0,))
    assert elected(image(nodes, partition_image(0, 5, REPLICAS, (0, 1)))) is None


BROKERS = st.dictionaries(
    st.integers(0, 2),
    st.builds(
        lambda epoch, data, state: (epoch, data, state),
        st.integers(1, 2),
        st.sampled_from([("data",), ("new", "data"), ("other",)]),
        st.sampled_from(["serving", "leaving", "full"]),
    ),
)


@given(
    BROKERS,
    st.permutations(REPLICAS).map(tuple),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(-1, 2),
    st.integers(1, 2),
)
def test_what_is_passed_over_is_what_the_rule_leaves_as_it_is(
    brokers: dict[int, tuple[int, tuple[str, ...], str]],
    members: tuple[int, ...],
    in_sync: int,
    eligible: int,
    leader: int,
    epoch: int,
) -> None:
    """Most partitions need no election, and are not judged in detail."""
    isr, elr = members[:in_sync], members[in_sync : in_sync + eligible]
    data_ids = dict.fromkeys(isr + elr, "data")
    leader_now = leader if leader in isr else NO_LEADER
    state = PartitionState(leader_now, 5, epoch if leader_now != NO_LEADER else -1, isr, elr, data_ids, 4)
    nodes = [
        broker_node(number, epoch=found, data_ids=data, leaving=said == "leaving", full=said == "full")
        for number, (found, data, said) in brokers.items()
    ]
    found = image(nodes, PartitionImage(state, REPLICAS))
    assert elected(found) == elect(state, REPLICAS, found.registrations, {}, 1, 4)


def test_a_state_that_is_none_names_its_path() -> None:
    for data in (b"", b"{}", b'{"version":1}', b'{"version":2,"leader":1}'):
        with pytest.raises(CoordinationError, match="/s holds no partition state"):
            PartitionState.decode("/s", data)


def test_a_change_has_at_most_so_many_partitions() -> None:
    partitions = {number: partition_image(0, 5, (0,)) for number in range(7)}
    found = ClusterImage("c", 0, {}, {"t": TopicImage("t", UUID(int=1), partitions)})
    assert len(first_elections(found, {}, Reports(), TERMS, 5)) == 5


def test_a_broker_whose_disk_is_full_hands_over_and_gets_nothing_back() -> None:
    nodes = [broker_node(0, full=True), broker_node(1)]
    found = elected(image(nodes, partition_image(0, 5, REPLICAS, (0, 1))))
    assert found is not None
    assert (found.leader, found.leader_epoch, found.isr) == (1, 6, (1,))
    refused = preferred_election(partition_image(1, 5, (0, 1)), {node.id: node.registration for node in nodes}, TERMS)
    assert refused == (ErrorCode.preferred_leader_not_available, "the disk of broker 0 is full")


def test_new_partitions_are_led_by_the_first_that_stays_and_has_room() -> None:
    for passed_over in (broker_node(1, leaving=True), broker_node(1, full=True)):
        brokers = {node.id: node.registration for node in (passed_over, broker_node(2, epoch=8))}
        assert new_state((0, 1, 2), brokers, 4).leader == 2
    brokers = {node.id: node.registration for node in (broker_node(1, leaving=True), broker_node(2, epoch=8))}
    state = new_state((0, 1, 2), brokers, 4)
    assert state == PartitionState(2, 0, 8, (1, 2), (), {1: "data-1", 2: "data-2"}, 4)
    assert new_state((1,), brokers, 4).leader == 1


def test_a_lower_minimum_empties_the_eligible_replicas() -> None:
    partition = partition_image(0, 5, REPLICAS, (0,), (1,))
    topic = TopicImage("t", UUID(int=1), {0: partition, 1: partition_image(0, 5, REPLICAS)})
    assert dict(without_elr_at(topic, 2)) == {}
    (state,) = dict(without_elr_at(topic, 1)).values()
    assert (state.isr, state.elr, dict(state.data_ids)) == ((0,), (), {0: "data-0"})
    assert state.controller_epoch == partition.state.controller_epoch, "whoever writes it need not be the controller"


def test_the_minimum_of_a_wrong_configuration_is_the_default() -> None:
    defaults = TopicConfig(min_insync_replicas=2)
    assert min_insync_replicas({}, defaults) == 2
    assert min_insync_replicas({"min.insync.replicas": "3"}, defaults) == 3
    assert min_insync_replicas({"min.insync.replicas": "many"}, defaults) == 2


def test_elect_leaders() -> None:
    brokers = {node.id: node.registration for node in (broker_node(0), broker_node(1))}
    moved = preferred_election(partition_image(1, 5, (0, 1)), brokers, TERMS)
    assert isinstance(moved, PartitionState)
    assert (moved.leader, moved.leader_epoch, moved.leader_broker_epoch, moved.isr) == (0, 6, 1, (0, 1))
    for partition, code in (
        (partition_image(0, 5, (0, 1)), ErrorCode.election_not_needed),
        (partition_image(1, 5, (0, 1), (1,)), ErrorCode.preferred_leader_not_available),
        (partition_image(1, 5, (2, 1)), ErrorCode.preferred_leader_not_available),
    ):
        refused = preferred_election(partition, brokers, TERMS)
        assert not isinstance(refused, PartitionState)
        assert refused[0] is code
    lost = partition_image(NO_LEADER, 5, (2, 1, 0), (2,))
    refused = unclean_election(T0, partition_image(1, 5, (0, 1)), brokers, Reports(), TERMS, 1)
    assert not isinstance(refused, PartitionState)
    assert refused[0] is ErrorCode.election_not_needed
    ends = {number: RecoveredEnd(5, f"data-{number}", 4, 7 + number) for number in (0, 1)}
    waits = unclean_election(T0, lost, brokers, Reports({T0: {1: ends[1]}}), TERMS, 1)
    said = "where their logs end is not reported yet by the brokers 0: try again"
    assert waits == (ErrorCode.eligible_leaders_not_available, said)
    forced = unclean_election(T0, lost, brokers, Reports({T0: ends}), TERMS, 1)
    assert isinstance(forced, PartitionState)
    assert forced.leader == 1


def test_a_stored_leader_that_is_not_live_is_no_leader_to_elect_leaders() -> None:
    """While an election is held (R13) the state names a broker that Metadata does not: the answer must not be that no
    election is needed."""
    brokers = {node.id: node.registration for node in (broker_node(0), broker_node(2))}
    held = partition_image(1, 5, (1, 0, 2), (1,))
    refused = unclean_election(T0, held, brokers, Reports(), TERMS, 1)
    said = "the election waits for brokers that are not back (1): try again"
    assert refused == (ErrorCode.eligible_leaders_not_available, said)
    refused = unclean_election(T0, partition_image(1, 5, (1,)), brokers, Reports(), TERMS, 1)
    assert refused == (ErrorCode.eligible_leaders_not_available, "no replica is live")
    refused = preferred_election(held, brokers, TERMS)
    assert refused == (ErrorCode.preferred_leader_not_available, "broker 1 is not in sync, or is not live")
    led = unclean_election(T0, partition_image(1, 5, (1, 0)), brokers, Reports(), TERMS, 1)
    assert isinstance(led, PartitionState)
    assert (led.leader, led.isr) == (0, (0,)), "one in sync is live"


def test_who_has_left() -> None:
    nodes = [broker_node(0, leaving=True), broker_node(1)]
    assert not is_led_elsewhere(image(nodes, partition_image(1, 5, (0, 1))), 0)
    assert is_led_elsewhere(image(nodes, partition_image(1, 5, (0, 1), (1,))), 0)
    assert is_led_elsewhere(image(nodes, partition_image(0, 5, (0, 1), (0,))), 0), "nobody else can lead"
    both = [broker_node(0, leaving=True), broker_node(1, leaving=True)]
    assert is_led_elsewhere(image(both, partition_image(1, 5, (0, 1))), 0), "the other one leaves too"
    assert is_led_elsewhere(image(nodes[:1], partition_image(0, 5, (0, 1))), 0), "the other one is dead"
    third = [*both, broker_node(2)]
    assert not is_led_elsewhere(image(third, partition_image(1, 5, (0, 1, 2))), 0)


@pytest.mark.parametrize(
    ("before", "leader", "counted"),
    [
        pytest.param(partition_image(0, 5, REPLICAS), 1, (1, 0), id="in sync"),
        pytest.param(partition_image(0, 5, REPLICAS, (0,), (1,)), 1, (1, 0), id="eligible"),
        pytest.param(partition_image(NO_LEADER, 5, REPLICAS, (0,)), 2, (1, 1), id="unclean"),
        pytest.param(partition_image(0, 5, REPLICAS), 0, (0, 0), id="it stays"),
        pytest.param(partition_image(0, 5, REPLICAS), NO_LEADER, (0, 0), id="nobody"),
    ],
)
def test_elections_are_counted(before: PartitionImage, leader: int, counted: tuple[int, int]) -> None:
    after = replace(before.state, leader=leader, leader_epoch=6)
    found = image([], before)
    assert count_elections(found, {T0: after, TopicPartition("new", 0): after}) == counted
