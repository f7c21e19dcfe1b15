"""Elections by data (R6-R8), case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klamm.core.replication.elections import RecoveredEnd, elect
from klamm.core.replication.partition_state import NO_LEADER, PartitionState
from klamm.core.replication.registrations import BrokerRegistration

REPLICAS = (0, 1, 2)
DATA = {0: "a0", 1: "a1", 2: "a2"}
STATE = PartitionState(0, 5, 100, (0, 1, 2), (), DATA, 3)


def registered(
    broker: int, *data_ids: str, epoch: int | None = None, leaving: bool = False, full: bool = False
) -> BrokerRegistration:
    return BrokerRegistration(
        broker, 100 + broker if epoch is None else epoch, f"i{broker}", data_ids or (DATA[broker],), leaving, full
    )


def live(*registrations: BrokerRegistration) -> dict[int, BrokerRegistration]:
    return {registration.broker_id: registration for registration in registrations}


ALL = live(registered(0), registered(1), registered(2))


def test_nothing_changes_while_the_leader_and_its_isr_are_live() -> None:
    assert elect(STATE, REPLICAS, ALL, {}, 2, 4) is None


def test_a_dead_leader_is_replaced_by_the_first_live_member_of_the_isr() -> None:
    elected = elect(STATE, REPLICAS, live(registered(1), registered(2)), {}, 2, 4)
    assert elected == PartitionState(1, 6, 101, (1, 2), (), {1: "a1", 2: "a2"}, 4)


def test_who_leaves_an_isr_below_the_minimum_enters_the_elr() -> None:
    elected = elect(STATE, REPLICAS, live(registered(2)), {}, 2, 4)
    assert elected == PartitionState(2, 6, 102, (2,), (0, 1), DATA, 4)


def test_a_restarted_leader_leads_in_a_new_epoch() -> None:
    back = ALL | live(registered(0, epoch=200))
    elected = elect(STATE, REPLICAS, back, {}, 2, 4)
    assert elected == replace(STATE, leader_epoch=6, leader_broker_epoch=200, controller_epoch=4)


def test_a_member_with_another_disk_leaves_the_isr() -> None:
    elected = elect(STATE, REPLICAS, ALL | live(registered(0, "b0", epoch=200)), {}, 2, 4)
    assert elected == PartitionState(1, 6, 101, (1, 2), (), {1: "a1", 2: "a2"}, 4)


def test_a_doubtful_member_leaves_while_a_sound_one_is_live() -> None:
    elected = elect(STATE, REPLICAS, ALL | live(registered(1, "b1", "a1", epoch=201)), {}, 2, 4)
    assert elected == PartitionState(0, 5, 100, (0, 2), (), {0: "a0", 2: "a2"}, 4)


def test_a_doubtful_member_stays_eligible_below_the_minimum() -> None:
    """The sound one may be dead, with a session that lives on, and have lost what the doubtful one still has."""
    state = replace(STATE, isr=(0, 1), data_ids={0: "a0", 1: "a1"})
    doubtful = live(registered(1, "b1", "a1", epoch=201))
    elected = elect(state, REPLICAS, live(registered(0)) | doubtful, {}, 2, 4)
    assert elected == PartitionState(0, 5, 100, (0,), (1,), {0: "a0", 1: "a1"}, 4)
    assert elect(elected, REPLICAS, live(registered(0)) | doubtful, {}, 2, 4) is None
    back = live(registered(0, "b0", "a0", epoch=200)) | doubtful
    waits = elect(elected, REPLICAS, back, {}, 2, 4)
    assert waits is not None
    ends = {0: RecoveredEnd(waits.leader_epoch, "b0", 5, 7), 1: RecoveredEnd(waits.leader_epoch, "b1", 5, 9)}
    leads = elect(waits, REPLICAS, back, ends, 2, 4)
    assert leads is not None
    assert (leads.leader, leads.members) == (1, (1,))


def test_a_new_member_is_not_eligible_below_the_minimum() -> None:
    state = replace(STATE, isr=(0, 1), data_ids={0: "a0", 1: "a1"})
    elected = elect(state, REPLICAS, live(registered(0), registered(1, "b1", epoch=201)), {}, 2, 4)
    assert elected == PartitionState(0, 5, 100, (0,), (), {0: "a0"}, 4)


def test_a_member_of_the_elr_leads_when_the_isr_is_away() -> None:
    state = replace(STATE, isr=(0,), elr=(1, 2))
    elected = elect(state, REPLICAS, live(registered(1), registered(2)), {}, 2, 4)
    assert elected == PartitionState(1, 6, 101, (1,), (2, 0), DATA, 4)


def test_nobody_leaves_while_no_sound_member_is_live() -> None:
    """An absent member may come back doubtful, too, and then have less than the one that is doubtful now."""
    state = replace(STATE, isr=(2,), elr=(0,), data_ids={2: "a2", 0: "a0"}, leader=2, leader_broker_epoch=102)
    elected = elect(state, REPLICAS, live(registered(0, "b0", "a0", epoch=200)), {}, 2, 4)
    assert elected is not None
    assert (elected.leader, elected.leader_epoch) == (NO_LEADER, 6)
    assert (elected.isr, elected.elr) == ((2,), (0,))
    assert elect(elected, REPLICAS, live(registered(0, "b0", "a0", epoch=200)), {}, 2, 4) is None


def test_after_a_power_loss_of_all_the_longest_log_leads_once_all_have_said_how_long_theirs_is() -> None:
    state = replace(STATE, isr=(1,), elr=(0,), data_ids={1: "a1", 0: "a0"})
    brokers = live(registered(0, "b0", "a0", epoch=200), registered(1, "b1", "a1", epoch=201))
    headless = elect(state, REPLICAS, brokers, {}, 2, 4)
    assert headless is not None
    assert (headless.leader, headless.leader_epoch) == (NO_LEADER, 6)
    ends = {0: RecoveredEnd(6, "b0", 5, 90), 1: RecoveredEnd(5, "b1", 5, 99)}
    assert elect(headless, REPLICAS, brokers, ends, 2, 4) is None, "the end of an earlier epoch does not count"
    ends[1] = RecoveredEnd(6, "c1", 5, 99)
    assert elect(headless, REPLICAS, brokers, ends, 2, 4) is None, "nor one of other data"
    ends[1] = RecoveredEnd(6, "b1", 4, 99)
    elected = elect(headless, REPLICAS, brokers, ends, 2, 4)
    assert elected == PartitionState(0, 7, 200, (0,), (), {0: "b0"}, 4), "epoch 5 is later than epoch 4"


def test_a_log_without_records_leads_only_if_it_ends_behind_the_others() -> None:
    """All of its records were deleted, which committed ones are: what lies before its end is not written again."""
    headless = replace(
        STATE, leader=NO_LEADER, leader_epoch=6, leader_broker_epoch=-1, isr=(0, 1), data_ids={0: "a0", 1: "a1"}
    )
    brokers = live(registered(0, "b0", "a0", epoch=200), registered(1, "b1", "a1", epoch=201))
    empty = RecoveredEnd(6, "b0", -1, 1000)
    for end, leader in ((900, 0), (1000, 1), (1100, 1)):
        elected = elect(headless, REPLICAS, brokers, {0: empty, 1: RecoveredEnd(6, "b1", 5, end)}, 2, 4)
        assert elected is not None
        assert elected.leader == leader, end
    elected = elect(headless, REPLICAS, brokers, {0: empty, 1: RecoveredEnd(6, "b1", -1, 1200)}, 2, 4)
    assert elected is not None
    assert elected.leader == 1


def test_a_single_doubtful_member_leads_with_what_it_has() -> None:
    """The records that were committed are its own, whatever other logs end with."""
    state = PartitionState(0, 5, 100, (0,), (), {0: "a0"}, 3)
    brokers = live(registered(0, "b0", "a0", epoch=200), registered(1))
    headless = elect(state, REPLICAS, brokers, {}, 1, 4)
    assert headless == PartitionState(NO_LEADER, 6, -1, (0,), (), {0: "a0"}, 4)
    assert elect(headless, REPLICAS, brokers, {}, 1, 4) is None, "it has not reported"
    elected = elect(headless, REPLICAS, brokers, {0: RecoveredEnd(6, "b0", 4, 1)}, 1, 4)
    assert elected == PartitionState(0, 7, 200, (0,), (), {0: "b0"}, 4)
    lost = elect(state, REPLICAS, live(registered(0, "b0", epoch=200)), {}, 1, 4)
    assert lost is not None
    assert lost.leader == NO_LEADER, "a new disk has nothing"
    only = elect(state, (0,), live(registered(0, "b0", "a0", epoch=200)), {}, 1, 4)
    assert only == PartitionState(0, 6, 200, (0,), (), {0: "b0"}, 4), "the only replica waits for nobody"


@pytest.mark.parametrize("members", [(0,), (0, 1)])
def test_doubtful_members_without_records_do_not_lead_beside_a_live_replica_that_has_committed_ones(
    members: tuple[int, ...],
) -> None:
    """As after the loss of one partition's directory, and a start with `--accept-missing-logs`."""
    ids = {member: f"a{member}" for member in members}
    state = PartitionState(NO_LEADER, 6, -1, members, (), ids, 3)
    own = live(*(registered(member, f"b{member}", f"a{member}", epoch=200 + member) for member in members))
    ends = {member: RecoveredEnd(6, f"b{member}", -1, 0) for member in members}
    brokers = own | live(registered(2))
    assert elect(state, REPLICAS, brokers, ends, 1, 4) is None, "the other has not reported"
    some, none = RecoveredEnd(6, "a2", 5, 1000, 900), RecoveredEnd(6, "a2", -1, 0)
    assert elect(state, REPLICAS, brokers, ends | {2: some}, 1, 4) is None
    uncommitted = elect(state, REPLICAS, brokers, ends | {2: replace(some, high_watermark=0)}, 1, 4)
    assert uncommitted is not None
    assert uncommitted.leader == 0, "nothing says that any of these records was committed"
    unclean = elect(state, REPLICAS, brokers, ends | {2: some}, 1, 4, unclean=True)
    assert unclean is not None
    assert unclean.leader == 2
    first = PartitionState(0, 7, 200, (0,), (), {0: "b0"}, 4)
    assert elect(state, REPLICAS, brokers, ends | {2: none}, 1, 4) == first
    assert elect(state, REPLICAS, own, ends, 1, 4) == first, "nobody else is live"


def test_members_without_records_lead_beside_records_that_end_before_them() -> None:
    """A log without records may begin where retention has deleted all, or where the checkpoint of a lost log says."""
    state = PartitionState(NO_LEADER, 6, -1, (0,), (), {0: "a0"}, 3)
    brokers = live(registered(0, "b0", "a0", epoch=200), registered(1), registered(2))
    own = {0: RecoveredEnd(6, "b0", -1, 10)}

    def leader(first: tuple[int, int], second: tuple[int, int]) -> int:
        ends = own | {1: RecoveredEnd(6, "a1", *first, first[1]), 2: RecoveredEnd(6, "a2", *second, second[1])}
        elected = elect(state, REPLICAS, brokers, ends, 1, 4)
        return NO_LEADER if elected is None else elected.leader

    assert leader((4, 18), (4, 19)) == NO_LEADER, "it has lost them, or never had them"
    assert leader((4, 10), (4, 9)) == 0, "it has deleted what they have"
    assert leader((-1, 10), (-1, 0)) == 0
    assert leader((-1, 18), (-1, 9)) == 1, "offsets up to 18 were given: there were records, and they were deleted"


def test_after_the_loss_of_a_member_the_furthest_log_leads_if_none_has_records() -> None:
    state = PartitionState(NO_LEADER, 6, -1, (0,), (), {0: "a0"}, 3)
    brokers = live(registered(0, "c0", epoch=200), registered(1), registered(2))
    ends = {
        number: RecoveredEnd(6, data, -1, end) for number, data, end in ((0, "c0", 0), (1, "a1", 20), (2, "a2", 30))
    }
    elected = elect(state, REPLICAS, brokers, ends, 1, 4)
    assert elected is not None
    assert elected.leader == 2


def test_new_disks_lead_if_no_replica_has_anything_left() -> None:
    """As the only replica, or all of them, after a start with `--accept-missing-logs`."""
    lost = PartitionState(NO_LEADER, 6, -1, (0,), (), {0: "a0"}, 3)
    empty = RecoveredEnd(6, "b0", -1, 0)
    only = live(registered(0, "b0", epoch=200))
    assert elect(lost, (0,), only, {}, 1, 4) == PartitionState(0, 7, 200, (0,), (), {0: "b0"}, 4)
    assert elect(lost, (0, 1), only, {0: empty}, 1, 4) is None, "the other replica may have records"
    both = only | live(registered(1, "b1", epoch=201))
    assert elect(lost, (1, 0), both, {0: empty}, 1, 4) is None
    assert elect(lost, (1, 0), both, {0: empty, 1: RecoveredEnd(6, "b1", 4, 9)}, 1, 4) is None
    elected = elect(lost, (1, 0), both, {0: empty, 1: RecoveredEnd(6, "b1", -1, 0)}, 1, 4)
    assert elected == PartitionState(1, 7, 201, (1,), (), {1: "b1"}, 4)


def test_a_new_disk_among_doubtful_members_needs_an_unclean_election() -> None:
    state = replace(STATE, leader=NO_LEADER, leader_broker_epoch=-1, isr=(0, 1), data_ids={0: "a0", 1: "a1"})
    brokers = live(registered(0, "c0", epoch=201), registered(1, "b1", "a1", epoch=200))
    ends = {1: RecoveredEnd(5, "b1", 5, 90)}
    assert elect(state, REPLICAS, brokers, ends, 2, 4) is None
    assert elect(state, REPLICAS, brokers, ends, 2, 4, unclean=True) is None, "the new one has not reported"
    ends[0] = RecoveredEnd(5, "c0", -1, 0)
    elected = elect(state, REPLICAS, brokers, ends, 2, 4, unclean=True)
    assert elected == PartitionState(1, 6, 200, (1,), (), {1: "b1"}, 4)


def test_an_unclean_election_takes_the_replica_with_the_most_records() -> None:
    """Of those that are live, whatever their order: the member of the ISR is lost, and the first replica is empty."""
    state = replace(STATE, leader=NO_LEADER, leader_broker_epoch=-1, isr=(1,), data_ids={1: "a1"})
    ends = {0: RecoveredEnd(5, "a0", -1, 0), 2: RecoveredEnd(5, "a2", 5, 1000)}
    brokers = live(registered(0), registered(2))
    assert elect(state, REPLICAS, brokers, ends, 2, 4) is None
    elected = elect(state, REPLICAS, brokers, ends, 2, 4, unclean=True)
    assert elected is not None
    assert (elected.leader, elected.isr) == (2, (2,))
    alike = {number: RecoveredEnd(5, f"a{number}", 5, 1000) for number in (0, 2)}
    elected = elect(state, REPLICAS, live(registered(0, leaving=True), registered(2)), alike, 2, 4, unclean=True)
    assert elected is not None
    assert elected.leader == 2, "of equal ones it takes one that stays"


def test_a_leader_that_is_leaving_hands_over_and_leaves_the_isr() -> None:
    elected = elect(STATE, REPLICAS, ALL | live(registered(0, leaving=True)), {}, 2, 4)
    assert elected == PartitionState(1, 6, 101, (1, 2), (), {1: "a1", 2: "a2"}, 4)


def test_the_last_live_member_leads_though_it_is_leaving() -> None:
    state = replace(STATE, isr=(0,), data_ids={0: "a0"})
    assert elect(state, REPLICAS, live(registered(0, leaving=True), registered(1)), {}, 1, 4) is None


def full(*brokers: int) -> dict[int, BrokerRegistration]:
    return ALL | live(*(registered(broker, full=True) for broker in brokers))


def test_a_leader_whose_disk_is_full_hands_over() -> None:
    elected = elect(STATE, REPLICAS, full(0), {}, 2, 4)
    assert elected == PartitionState(1, 6, 101, (1, 2), (), {1: "a1", 2: "a2"}, 4)
    assert elect(elected, REPLICAS, full(0), {}, 2, 4) is None
    assert elect(elected, REPLICAS, ALL, {}, 2, 4) is None, "it joins again by its leader's proposal"


def test_a_follower_whose_disk_is_full_leaves_the_isr_and_stays_eligible_below_the_minimum() -> None:
    elected = elect(STATE, REPLICAS, full(1), {}, 2, 4)
    assert elected == PartitionState(0, 5, 100, (0, 2), (), {0: "a0", 2: "a2"}, 4)
    below = elect(STATE, REPLICAS, full(1, 2), {}, 2, 4)
    assert below == PartitionState(0, 5, 100, (0,), (1, 2), DATA, 4)
    dead = live(registered(1, full=True), registered(2, full=True))
    after = elect(below, REPLICAS, dead, {}, 2, 4)
    assert after == PartitionState(1, 6, 101, (1,), (2, 0), DATA, 4), "what is stored is still served"


def test_nothing_changes_if_the_disks_of_all_are_full() -> None:
    assert elect(STATE, REPLICAS, full(0, 1, 2), {}, 2, 4) is None
    assert elect(replace(STATE, isr=(0,), data_ids={0: "a0"}), REPLICAS, full(0, 1, 2), {}, 1, 4) is None
    assert elect(replace(STATE, isr=(0,), elr=(1, 2)), REPLICAS, full(0, 1, 2), {}, 2, 4) is None


def test_a_full_leader_stays_while_too_few_others_have_room() -> None:
    """Another could take no acks=all either, and would not know which of the last records are committed."""
    elected = elect(STATE, REPLICAS, full(0, 1), {}, 2, 4)
    assert elected == PartitionState(0, 5, 100, (0, 2), (), {0: "a0", 2: "a2"}, 4)
    assert elect(elected, REPLICAS, full(0, 1), {}, 2, 4) is None
    joined = replace(elected, isr=(0, 1, 2), data_ids=DATA)
    handed_over = elect(joined, REPLICAS, full(0), {}, 2, 4)
    assert handed_over is not None
    assert (handed_over.leader, handed_over.isr) == (1, (1, 2))
    alone = elect(STATE, REPLICAS, full(0, 1), {}, 1, 4)
    assert alone is not None
    assert (alone.leader, alone.isr) == (2, (2,)), "with a minimum of one it takes all records"


def test_one_with_room_is_elected_rather_than_a_full_one() -> None:
    back = full(1) | live(registered(0, epoch=200, full=True))
    elected = elect(STATE, REPLICAS, back, {}, 2, 4)
    assert elected is not None
    assert (elected.leader, elected.isr, elected.elr) == (2, (2,), (0, 1))
    of_elr = elect(replace(STATE, isr=(0,), elr=(1, 2)), REPLICAS, live(*list(full(1).values())[1:]), {}, 2, 4)
    assert of_elr is not None
    assert of_elr.leader == 2


def test_who_leaves_hands_over_to_one_that_is_full() -> None:
    elected = elect(STATE, REPLICAS, full(1, 2) | live(registered(0, leaving=True)), {}, 2, 4)
    assert elected == PartitionState(1, 6, 101, (1, 2), (), {1: "a1", 2: "a2"}, 4)
