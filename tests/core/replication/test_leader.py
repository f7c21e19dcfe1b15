"""The leader's watermark and proposals (R2-R6), step by step."""

from __future__ import annotations

from dataclasses import replace

from kio.schema.errors import ErrorCode

from klamm.core.replication.leader import PartitionLeader, ProposalOutcome, ReplicationSettings
from klamm.core.replication.partition_state import NO_EPOCH, PartitionState, with_isr
from klamm.core.replication.registrations import BrokerRegistration
from klamm.core.replication.replica_fetch import EpochEndOffset, ReplicaFetch, ReplicaFetchData
from klammsim.memory_log import MemoryLog

REPLICAS = (0, 1, 2)
BROKERS = {broker: BrokerRegistration(broker, 100 + broker, f"i{broker}", (f"a{broker}",)) for broker in REPLICAS}


def state_of(*isr: int) -> PartitionState:
    return PartitionState(0, 5, 100, isr, (), {member: f"a{member}" for member in isr}, 1)


def leader_of(log: MemoryLog, *isr: int, min_insync_replicas: int = 2) -> PartitionLeader:
    settings = ReplicationSettings(min_insync_replicas, 30)
    return PartitionLeader(0, log, REPLICAS, settings, state_of(*isr), 7, 0.0)


def fetch(
    leader: PartitionLeader, replica: int, offset: int, now: float = 1.0, last: int = 5
) -> ReplicaFetchData | None:
    request = ReplicaFetch(replica, 100 + replica, leader.epoch, offset, last if offset else -1)
    return leader.on_fetch(request, BROKERS[replica], now)


def appended(log: MemoryLog, count: int) -> None:
    for _ in range(count):
        log.append(log.log_end_offset, 5)


def test_the_watermark_is_what_every_member_of_the_isr_has() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1, 2)
    appended(log, 3)
    assert fetch(leader, 1, 3) is None
    assert log.high_watermark == 0
    fetch(leader, 2, 2)
    assert log.high_watermark == 2


def test_the_bounds_of_a_follower_are_those_of_its_last_fetch_that_counts() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    appended(log, 3)
    assert leader.follower_bounds(1) == leader.follower_bounds(9) == (-1, -1)
    for start in (1, 2):
        leader.on_fetch(ReplicaFetch(1, 101, 5, 3, 5, start), BROKERS[1], 1.0)
        leader.on_fetch(ReplicaFetch(1, 99, 5, 3, 5, 0), BROKERS[1], 1.0)  # of an earlier registration
        assert leader.follower_bounds(1) == (start, 3)


def test_a_fetch_of_another_epoch_registration_or_history_counts_for_nothing() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    appended(log, 3)
    for epoch, error in ((4, ErrorCode.fenced_leader_epoch), (6, ErrorCode.unknown_leader_epoch)):
        answer = leader.on_fetch(ReplicaFetch(1, 101, epoch, 3, 5), BROKERS[1], 1.0)
        assert answer == ReplicaFetchData(error)
    assert leader.on_fetch(ReplicaFetch(1, 99, 5, 3, 5), BROKERS[1], 1.0) is None, "it is served"
    assert leader.on_fetch(ReplicaFetch(1, 101, 5, 3, 4), BROKERS[1], 1.0) == ReplicaFetchData(
        diverging_epoch=EpochEndOffset(4, 0)
    )
    answer = leader.on_fetch(ReplicaFetch(1, 101, 5, 4, 5), BROKERS[1], 1.0)
    assert answer == ReplicaFetchData(diverging_epoch=EpochEndOffset(5, 3))
    assert log.high_watermark == 0


def test_a_follower_without_a_record_begins_at_the_leaders_start_unless_it_is_in_sync() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    appended(log, 3)
    empty = [ReplicaFetch(replica, 100 + replica, 5, 2, NO_EPOCH) for replica in (1, 2)]
    assert leader.on_fetch(empty[0], BROKERS[1], 1.0) is None, "the high watermark depends on its end"
    answer = leader.on_fetch(empty[1], BROKERS[2], 1.0)
    assert answer == ReplicaFetchData(ErrorCode.offset_out_of_range, log_start_offset=0)
    assert fetch(leader, 2, 2) is None, "it has records"
    eligible = PartitionLeader(0, log, REPLICAS, ReplicationSettings(2, 30), replace(state_of(0), elr=(2,)), 7, 0.0)
    assert eligible.on_fetch(empty[1], BROKERS[2], 1.0) is None, "it may be elected"


def test_a_proposal_holds_the_watermark_until_it_is_read_back_or_refused() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    appended(log, 1)
    fetch(leader, 1, 1)
    fetch(leader, 2, 1)
    proposal = leader.next_proposal(BROKERS, 2.0)
    assert proposal is not None
    assert proposal.state.isr == (0, 1, 2)
    assert proposal.added == (BROKERS[2],)
    assert leader.next_proposal(BROKERS, 2.0) is None, "one at a time"
    appended(log, 1)
    fetch(leader, 1, 2)
    assert log.high_watermark == 1
    leader.on_outcome(proposal, ProposalOutcome.REFUSED)
    assert log.high_watermark == 2


def test_a_proposal_without_an_answer_is_made_again_and_a_refusal_then_says_nothing() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    fetch(leader, 1, 0)
    fetch(leader, 2, 0)
    first = leader.next_proposal(BROKERS, 2.0)
    assert first is not None
    leader.on_outcome(first, ProposalOutcome.UNKNOWN)
    assert leader.next_proposal(BROKERS, 3.0) is first
    leader.on_outcome(first, ProposalOutcome.REFUSED)
    assert leader._maximal_isr == {0, 1, 2}
    leader.on_state(state_of(0, 1), 8, REPLICAS, ReplicationSettings(2, 30))
    assert leader._maximal_isr == {0, 1}


def test_a_proposal_is_made_again_for_the_follower_s_new_registration() -> None:
    """Under the old incarnation it was refused for ever, and the follower never joined (a seed of `make sim`)."""
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    fetch(leader, 1, 0)
    fetch(leader, 2, 0)
    first = leader.next_proposal(BROKERS, 2.0)
    assert first is not None
    leader.on_outcome(first, ProposalOutcome.UNKNOWN)
    again = replace(BROKERS[2], epoch=BROKERS[2].epoch + 10, incarnation="anew")
    restarted = {**BROKERS, 2: again}
    request = ReplicaFetch(2, again.epoch, leader.epoch, 0, NO_EPOCH)
    assert leader.on_fetch(request, again, 3.0) is None
    second = leader.next_proposal(restarted, 3.0)
    assert second is not None
    assert second.state == first.state
    assert second.added == (again,)


def test_the_stored_isr_is_written_again_to_decide_a_proposal_that_is_not_wanted_any_more() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    fetch(leader, 1, 0)
    fetch(leader, 2, 0)
    first = leader.next_proposal(BROKERS, 2.0)
    assert first is not None
    leader.on_outcome(first, ProposalOutcome.UNKNOWN)
    gone = {broker: BROKERS[broker] for broker in (0, 1)}
    second = leader.next_proposal(gone, 3.0)
    assert second is not None
    assert (second.state, second.base_version) == (state_of(0, 1), 7)


def test_a_lagging_member_is_proposed_away_but_not_for_the_leaders_own_pause() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1, 2)
    appended(log, 1)
    fetch(leader, 1, 1, now=20.0)
    assert leader.next_proposal(BROKERS, 50.0, lateness_ms=25.0) is None
    proposal = leader.next_proposal(BROKERS, 50.0)
    assert proposal is not None
    assert proposal.state.isr == (0, 1)


def test_a_follower_joins_no_sooner_than_at_the_epochs_start() -> None:
    log = MemoryLog("0")
    log.lead(4)
    for value in range(3):
        log.append(value, 4)
    leader = leader_of(log, 0, 1)
    assert (leader.epoch_start_offset, leader.latest_offset_is_known) == (3, False)
    leader._followers[2].last_caught_up_ms = 1.0
    fetch(leader, 2, 2, last=4)
    assert leader.next_proposal(BROKERS, 2.0) is None
    fetch(leader, 2, 3, last=4)
    assert leader.next_proposal(BROKERS, 2.0) is not None


def test_below_the_minimum_the_watermark_stands_and_the_elr_keeps_who_left() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0)
    appended(log, 1)
    assert leader.is_under_min_isr
    assert not leader.advance_high_watermark()
    shrunk = with_isr(state_of(0, 1, 2), (0,), {}, 2)
    assert (shrunk.isr, shrunk.elr) == ((0,), (1, 2))
    grown = with_isr(shrunk, (0, 2), {2: "b2"}, 2)
    assert (grown.isr, grown.elr, grown.data_ids) == ((0, 2), (), {0: "a0", 2: "b2"})


def test_with_eligible_replicas_the_watermark_stands_whatever_the_minimum_is_here() -> None:
    """The controller wrote them under a higher minimum; one of them may be elected."""
    log = MemoryLog("0")
    leader = leader_of(log, 0, min_insync_replicas=1)
    settings = ReplicationSettings(1, 30)
    leader.on_state(PartitionState(0, 5, 100, (0,), (1,), {0: "a0", 1: "a1"}, 1), 8, REPLICAS, settings)
    appended(log, 2)
    assert not leader.advance_high_watermark()
    assert leader.is_under_min_isr
    leader.on_state(state_of(0), 9, REPLICAS, settings)
    assert log.high_watermark == 2


def test_a_leader_that_has_resigned_changes_nothing() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    appended(log, 1)
    fetch(leader, 1, 1)
    assert log.high_watermark == 1
    appended(log, 1)
    leader.resign()
    assert fetch(leader, 1, 2) == ReplicaFetchData(ErrorCode.not_leader_or_follower)
    assert log.high_watermark == 1


def test_a_reassignment_adds_and_drops_followers_in_the_same_epoch() -> None:
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1)
    appended(log, 1)
    fetch(leader, 1, 1)
    brokers = {**BROKERS, 3: BrokerRegistration(3, 103, "i3", ("a3",))}
    leader.on_state(state_of(0, 1), 8, (0, 1, 2, 3), ReplicationSettings(2, 30))
    leader.on_fetch(ReplicaFetch(3, 103, 5, 1, 5), brokers[3], 2.0)
    proposal = leader.next_proposal(brokers, 3.0)
    assert proposal is not None
    assert proposal.state.isr == (0, 1, 3), "the added follower joins"
    after = PartitionState(0, 5, 100, (0, 3), (), {0: "a0", 3: "a3"}, 1)
    leader.on_state(after, 9, (0, 3), ReplicationSettings(2, 30))
    fetch(leader, 1, 1, now=4.0)
    assert leader._maximal_isr == {0, 3}
    assert leader.next_proposal(brokers, 4.0) is None, "the dropped follower fetches, and does not join again"
    assert leader.epoch == 5


def test_an_idle_follower_whose_disk_is_full_does_not_join() -> None:
    """It is at the leader's end, as long as nothing is appended."""
    log = MemoryLog("0")
    leader = leader_of(log, 0, 2)
    appended(log, 3)
    for replica in (1, 2):
        fetch(leader, replica, 3)
    full = BROKERS | {1: replace(BROKERS[1], full=True)}
    assert not leader.wants_member(1, full[1], 1.0)
    assert not leader.wants_change(full, 1.0, 0.0)
    assert leader.next_proposal(full, 1.0) is None
    proposal = leader.next_proposal(BROKERS, 1.0)
    assert proposal is not None
    assert proposal.state.isr == (0, 1, 2)


def test_a_follower_that_was_taken_out_joins_again_only_once_it_has_fetched_again() -> None:
    """Its log is offline: nothing is appended, so that it stays at the end, and it would join for ever."""
    log = MemoryLog("0")
    leader = leader_of(log, 0, 1, 2)
    appended(log, 3)
    fetch(leader, 1, 3)
    fetch(leader, 2, 3)
    assert log.high_watermark == 3
    leader.on_state(state_of(0, 1), 8, REPLICAS, ReplicationSettings(2, 30))
    assert not leader.wants_change(BROKERS, 2.0, 0.0)
    assert leader.next_proposal(BROKERS, 2.0) is None
    assert leader.follower_bounds(2) == (-1, 3), "what it has is still known"
    fetch(leader, 2, 3, 2.0)
    proposal = leader.next_proposal(BROKERS, 2.0)
    assert proposal is not None
    assert proposal.state.isr == (0, 1, 2)
