"""What the controller does when brokers come, go, report and ask, on each coordination."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from klamm.core.cluster.brokers.reports import read_reports, report_offline, report_recovered
from klamm.core.cluster.changes import MOST_STATES, incarnation_path, leader_guard
from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.image import PartitionImage
from klamm.core.cluster.image_reader import read_image
from klamm.core.cluster.reassignment import ReplicaAssignment
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.nodes import BrokerIdNode
from klamm.core.cluster.tree.steps import Session, Steps, run_steps
from klamm.core.errors import BrokerError, ErrorCode
from klamm.core.interfaces.coordination import Operation, Set, Stat
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.elections import RecoveredEnd
from klamm.core.replication.leader import IsrProposal, ProposalOutcome
from klamm.core.replication.partition_state import NO_LEADER, PartitionState, with_isr
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.clusters.joined import Joined
from klammtest.waiting import eventually

T0 = TopicPartition("t", 0)


def joined(join: Joined, count: int) -> list[Cluster]:
    clusters = [join(number) for number in range(count)]
    eventually(lambda: all(len(cluster.image().brokers) == count for cluster in clusters), "all brokers")
    return clusters


def found(cluster: Cluster, tp: TopicPartition = T0) -> PartitionImage:
    """Returns the partition as the broker knows it; waits until it knows it."""
    eventually(lambda: cluster.image().partition(tp) is not None, f"{tp} is known")
    partition = cluster.image().partition(tp)
    assert partition is not None
    return partition


def eventually_led(cluster: Cluster, leader: int, isr: tuple[int, ...], tp: TopicPartition = T0) -> PartitionImage:
    """Waits for a leader under its present registration."""

    def is_led() -> bool:
        partition, node = found(cluster, tp), cluster.image().brokers.get(leader)
        epoch = -1 if node is None else node.epoch
        return (partition.leader, partition.isr, partition.state.leader_broker_epoch) == (leader, isr, epoch)

    eventually(is_led, f"broker {leader} to lead with the ISR {isr}")
    return found(cluster, tp)


def test_new_partitions_name_the_registrations_and_data_of_their_replicas(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2)
    epoch = first.image().brokers[0].epoch
    assert found(first).state == PartitionState(0, 0, epoch, (0, 1), (), {0: "data-0", 1: "data-1"}, 1)
    own = second.own_registration
    assert own is not None
    assert (own.broker_id, own.data_ids, own.leaving) == (1, ("data-1",), False)
    assert join.coordinations[0].exists(incarnation_path(own.incarnation)) is not None


@pytest.mark.parametrize("ended", [True, False], ids=["its session is over", "its session lives"])
def test_a_restarted_leader_gets_a_new_leader_epoch(join: Joined, ended: bool) -> None:
    """R8. One that was killed finds its own registration, and replaces it at once."""
    (first,) = joined(join, 1)
    second = join(1)
    eventually(lambda: len(first.image().brokers) == 2, "both brokers")
    first.create_topic("t", 1, 1, {}, {0: (1,)})
    before = found(first)
    if ended:
        join.leave(1)
        eventually(lambda: found(first).leader == NO_LEADER, "no leader")
        assert found(first).isr == (1,)
    again = join(1)
    eventually(lambda: found(first).leader_epoch > before.leader_epoch, "a new leader epoch")
    after = eventually_led(first, 1, (1,))
    assert again.broker_epoch > second.broker_epoch
    assert after.state.leader_broker_epoch == again.broker_epoch
    if not ended:
        assert second.own_registration is None or second.own_registration.epoch != again.broker_epoch


def test_a_broker_that_expired_leads_again_in_a_new_epoch(join: Joined) -> None:
    (cluster,) = joined(join, 1)
    cluster.create_topic("t", 1, 1)
    told: list[BrokerRegistration | None] = []
    cluster.on_change(lambda _: told.append(cluster.own_registration))
    before = cluster.own_registration
    assert before is not None
    join.case.expire(join.coordinations[0])
    eventually(lambda: cluster.own_registration not in (None, before), "a new registration")
    assert told[0] is None, "it is told that it has none"
    after = cluster.own_registration
    assert after is not None
    assert after.incarnation != before.incarnation
    partition = eventually_led(cluster, 0, (0,))
    assert partition.leader_epoch > 0


def test_doubtful_members_lead_by_their_ends(join: Joined) -> None:
    """R7: after a power loss of all, whose data ids are new ones with the old as ancestors."""
    first, _ = joined(join, 2)
    first.create_topic("t", 2, 2, {"min.insync.replicas": "2"})
    join.leave(1)
    join.leave(0)
    first, second = join(0, ("new-0", "data-0")), join(1, ("new-1", "data-1"))
    eventually(lambda: found(first).leader == NO_LEADER and found(first).leader_epoch > 0, "a new epoch without leader")
    eventually(lambda: found(second).state == found(first).state, "the other knows it")
    assert sorted(found(first).state.members) == [0, 1]
    both = [tp for tp, _ in first.image().partitions()]
    for cluster, end in ((first, 70), (second, 80)):
        data_id = f"new-{cluster.broker_id}"
        cluster.report_recovered({tp: RecoveredEnd(found(first, tp).leader_epoch, data_id, 0, end) for tp in both})
        cluster.report_recovered({tp: RecoveredEnd(found(first, tp).leader_epoch, data_id, 0, end) for tp in both})
    for tp in both:
        led = eventually_led(first, 1, (1,), tp)
        assert dict(led.state.data_ids) == {1: "new-1"}


def test_a_report_of_an_earlier_session_is_replaced(join: Joined) -> None:
    """R7: it would vanish with that session."""
    (cluster,) = joined(join, 1)
    dead = join.case.open(60_000)
    dead.create(paths.recovered(0), b'{"version":1,"partitions":[]}', ephemeral=True)
    ends = {T0: RecoveredEnd(5, "data-0", 4, 17, 12)}
    cluster.report_recovered(ends)
    tree = join.coordinations[0]
    data, stat = tree.get(paths.recovered(0))
    assert stat.ephemeral_owner == tree.session_id
    assert json.loads(data)["partitions"] == [["t", 0, 5, "data-0", 4, 17, 12]]
    cluster.report_recovered({})
    assert tree.exists(paths.recovered(0)) is None


def test_a_report_of_many_partitions_has_several_paths(join: Joined) -> None:
    """A path takes 1 MB, and a broker may have been a member of more partitions than that, all without a leader."""
    (cluster,) = joined(join, 1)
    tree = join.coordinations[0]
    many = [TopicPartition(f"a-topic-with-thirty-characters-{n // 4:04}", n % 4) for n in range(12_000)]
    ends = {tp: RecoveredEnd(5, "data-of-broker-0-as-long-as-a-uuid-is", 4, 10**9) for tp in many}
    own = cluster.image().brokers[0].registration.incarnation
    run_steps(tree, report_recovered(tree, 10, own, dict.fromkeys(many[:5], RecoveredEnd(5, "data-10", 4, 17))))
    for reported in (many, many[7_000:], many[7_000:7_010], many):
        cluster.report_recovered({tp: ends[tp] for tp in reported})
        cluster.report_offline(reported)
        found = run_steps(tree, read_reports())
        assert {tp: of[0] for tp, of in found.recovered.items() if 0 in of} == {tp: ends[tp] for tp in reported}
        assert found.offline == {0: set(reported)}
        assert all(found.recovered[tp][10].end_offset == 17 for tp in many[:5])
    cluster.report_recovered({})
    cluster.report_offline([])
    assert (tree.children(paths.RECOVERED), tree.children(paths.OFFLINE)) == (["10"], [])


def test_replicas_whose_logs_are_offline_are_taken_out(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2)
    first.report_offline([T0])
    eventually_led(first, 1, (1,))
    second.report_offline([T0])
    eventually(lambda: found(first).leader == NO_LEADER, "no leader")
    assert found(first).isr == (1,)
    second.report_offline([])
    eventually_led(first, 1, (1,))


def test_offline_logs_are_reported_in_every_session(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2)
    second.report_offline([T0])
    eventually_led(first, 0, (0,))
    before = second.broker_epoch
    join.case.expire(join.coordinations[1])
    eventually(lambda: second.broker_epoch > before, "a new registration")
    eventually(lambda: join.coordinations[0].exists(paths.offline(1)) is not None, "the report again")


def test_a_report_of_a_new_session_does_not_replace_a_newer_one(join: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = joined(join, 2)
    second.report_offline([T0])
    newer = threading.Thread(target=second.report_offline, args=([],))
    tried = threading.Event()

    def report(session: Session, broker_id: int, own: str, partitions: Collection[TopicPartition]) -> Steps[None]:
        if partitions:  # the worker's
            newer.start()
            newer.join(0.3)
        yield from report_offline(session, broker_id, own, partitions)
        if partitions:
            tried.set()

    monkeypatch.setattr("klamm.core.cluster.node.report_offline", report)
    join.case.expire(join.coordinations[1])
    assert tried.wait(60)
    newer.join()
    assert join.coordinations[0].exists(paths.offline(1)) is None


def test_a_broker_that_leaves_hands_over_and_gets_no_more(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("both", 2, 2)
    first.create_topic("alone", 1, 1, {}, {0: (0,)})
    assert not first.has_left()
    first.set_leaving()
    first.set_leaving()
    eventually(first.has_left, "it has left")
    for number in range(2):
        led = eventually_led(second, 1, (1,), TopicPartition("both", number))
        assert led.elr == ()
    assert found(first, TopicPartition("alone", 0)).leader == 0, "nobody else can lead it"
    eventually(lambda: second.image().registrations[0].leaving, "the other knows it")
    first.create_topic("later", 2, 1)
    assert {p.replicas for p in first.image().topics["later"].partitions.values()} == {(1,)}
    join.case.expire(join.coordinations[0])
    eventually(lambda: (own := first.own_registration) is not None and own.leaving, "it is still leaving")


# -- eviction


def test_a_broker_is_told_of_its_registration_though_the_image_has_it_already(
    join: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads the image of the new registration before the broker knows that it is its own: it would have
    no role until the next change."""
    _, second, third = joined(join, 3)
    before = third.own_registration
    assert before is not None
    told: list[BrokerRegistration | None] = []
    third.on_change(lambda _: told.append(third.own_registration))
    mine = third.node.registration._mine

    def mine_later(node: BrokerIdNode, stat: Stat) -> int:
        third.run(third.node.read())
        return mine(node, stat)

    monkeypatch.setattr(third.node.registration, "_mine", mine_later)
    join.unreachable.add(2)
    second.suspect(2, before.incarnation)
    eventually(lambda: third.own_registration not in (None, before), "a new registration")
    eventually(lambda: told[-1:] == [third.own_registration], "the broker is told of it")


def test_a_broker_that_refuses_connections_is_evicted(join: Joined) -> None:
    """Its session lives on. It lives itself, in this test, and so registers again."""
    first, second, third = joined(join, 3)
    first.create_topic("t", 1, 3, {}, {0: (2, 1, 0)})
    before = third.own_registration
    assert before is not None
    join.unreachable.add(2)
    second.suspect(2, before.incarnation)
    eventually(lambda: found(first).leader == 1, "another to lead")
    tree = join.coordinations[0]
    eventually(lambda: tree.exists(incarnation_path(before.incarnation)) is None, "the end of its incarnation")
    eventually(lambda: third.own_registration not in (None, before), "a new registration")
    after = third.own_registration
    assert after is not None
    assert after.epoch > before.epoch
    assert after.incarnation != before.incarnation
    eventually(lambda: tree.children(paths.SUSPECTS) == [], "the end of the suspicion")
    second.suspect(2, after.incarnation)
    eventually(lambda: tree.children(paths.SUSPECTS) == [], "the second suspicion is dropped")
    assert tree.exists(incarnation_path(after.incarnation)) is not None, "at most one eviction in a session time-out"


def test_a_broker_that_stops_does_not_register_again(join: Joined, caplog: pytest.LogCaptureFixture) -> None:
    """It listens no more, so that others find it gone and the controller evicts it; it would lead again what it does
    not serve."""
    first, second, third = joined(join, 3)
    third.set_leaving()
    third.retire()
    own = first.image().registrations[2]
    eventually(lambda: first.image().registrations[2].leaving, "the controller knows that it leaves")
    join.unreachable.add(2)
    caplog.set_level(logging.INFO)
    second.suspect(2, own.incarnation)
    eventually(lambda: 2 not in third.image().brokers, "it knows that it was evicted")
    first.create_topic("later", 1, 1)
    eventually(lambda: "later" in third.image().topics, "it has reacted to a later change")
    assert join.coordinations[0].exists(paths.broker(2)) is None
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert ("INFO", "broker 2 has stopped listening, as it leaves: its registration is ended") in said
    assert not [text for _, text in said if "refuses connections" in text or "was not registered" in text]


def test_a_broker_that_is_killed_again_after_its_restart_is_evicted_again(join: Joined) -> None:
    """It has a new session: only one that lives on in its session is left alone for a while."""
    first, second, _ = joined(join, 3)
    tree = join.coordinations[0]
    join.unreachable.add(2)
    for _ in range(2):
        eventually(lambda: 2 in first.image().brokers, "its registration")
        own = first.image().registrations[2]
        join.kill(2)
        second.suspect(2, own.incarnation)
        eventually(lambda: 2 not in first.image().brokers, "its eviction")
        assert tree.exists(paths.broker(2)) is None
        join(2)


def test_a_suspect_that_accepts_connections_stays(join: Joined) -> None:
    first, second, third = joined(join, 3)
    own = third.own_registration
    assert own is not None
    second.suspect(2, own.incarnation)
    second.suspect(2, own.incarnation)
    tree = join.coordinations[0]
    eventually(lambda: tree.children(paths.SUSPECTS) == [], "the end of the suspicion")
    assert third.own_registration == own
    second.suspect(7, "nobody")
    eventually(lambda: tree.children(paths.SUSPECTS) == [], "the end of the second")
    assert first.is_controller


def test_a_controller_that_refuses_connections_is_succeeded(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2)
    own = first.own_registration
    assert own is not None
    join.unreachable.add(0)
    second.suspect(0, own.incarnation)
    eventually(lambda: found(second).leader == 1, "the other to lead")
    eventually(lambda: second.is_controller and not first.is_controller, "the other to be the controller")
    eventually(lambda: second.image().controller_id == 1, "and to know it")


# -- proposals


def proposal(cluster: Cluster, isr: tuple[int, ...], added: tuple[BrokerRegistration, ...] = ()) -> IsrProposal:
    data_ids = {broker.broker_id: broker.data_id for broker in added}
    return IsrProposal(cluster.image().version, with_isr(found(cluster).state, isr, data_ids, 1), added)


def test_a_leader_changes_its_isr(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2, {}, {0: (1, 0)})
    eventually(lambda: second.image().version == first.image().version, "the topic at the leader")
    assert second.propose([(T0, proposal(second, (1,)))]) == [ProposalOutcome.APPLIED]
    assert found(second).isr == (1,)
    eventually(lambda: found(first).isr == (1,), "the other knows it")
    back = second.image().registrations[0]
    assert second.propose([(T0, proposal(second, (1, 0), (back,)))]) == [ProposalOutcome.APPLIED]
    assert found(second).isr == (1, 0)
    assert second.propose([]) == []


def test_a_stale_proposal_is_refused_and_the_newest_image_read(join: Joined) -> None:
    (cluster,) = joined(join, 1)
    join(1)
    eventually(lambda: len(cluster.image().brokers) == 2, "both")
    cluster.create_topic("t", 1, 2)
    stale = proposal(cluster, (0,))
    cluster.create_topic("u", 1, 1)
    assert cluster.propose([(T0, stale)]) == [ProposalOutcome.REFUSED]
    none = TopicPartition("none", 0)
    fresh = proposal(cluster, (0,))
    outcomes = cluster.propose([(none, replace(fresh)), (T0, stale), (T0, fresh)])
    assert outcomes == [ProposalOutcome.REFUSED, ProposalOutcome.REFUSED, ProposalOutcome.APPLIED]
    back = cluster.image().registrations[1]
    assert cluster.propose([(T0, proposal(cluster, (0, 1), (back,)))]) == [ProposalOutcome.APPLIED]
    fresh = proposal(cluster, (0,))
    tree = join.coordinations[0]
    join.faulty[0].before_next(lambda: tree.set(paths.METADATA_VERSION, b"{}"))
    before = cluster.image().version
    assert cluster.propose([(T0, fresh)]) == [ProposalOutcome.REFUSED]
    assert cluster.image().version > before
    assert found(cluster).isr == (0, 1)


def test_a_proposal_is_not_written_on_a_change_that_is_read_meanwhile(
    join: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads it, with a later leader epoch perhaps: the proposal would put the former one in its place."""
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2, {}, {0: (1, 0)})
    eventually(lambda: second.image().version == first.image().version, "the topic at the leader")
    made = proposal(second, (1,))

    def guard_meanwhile(*given: Any) -> list[Operation]:
        monkeypatch.undo()
        first.create_topic("u", 1, 1)
        assert second.run(second.node.read()).version > made.base_version
        return leader_guard(*given)

    monkeypatch.setattr("klamm.core.cluster.node.leader_guard", guard_meanwhile)
    assert second.propose([(T0, made)]) == [ProposalOutcome.REFUSED]
    assert found(second).isr == (1, 0)


def test_a_proposal_with_a_broker_that_is_gone_is_refused(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2)
    assert first.propose([(T0, proposal(first, (0,)))]) == [ProposalOutcome.APPLIED]
    gone = replace(second.image().registrations[1], incarnation="gone")
    assert first.propose([(T0, proposal(first, (0, 1), (gone,)))]) == [ProposalOutcome.REFUSED]
    assert found(first).isr == (0,)


def test_a_proposal_of_a_broker_that_was_evicted_is_refused(join: Joined) -> None:
    first, _ = joined(join, 2)
    first.create_topic("t", 1, 2)
    own = first.own_registration
    assert own is not None
    late = proposal(first, (0,))
    tree = join.coordinations[1]
    join.faulty[0].before_next(lambda: tree.delete(incarnation_path(own.incarnation)))
    assert first.propose([(T0, late)]) == [ProposalOutcome.REFUSED]
    assert found(first).isr == (0, 1)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_proposal_that_was_not_answered_is_unknown(join: Joined, carried_out: bool) -> None:
    """What became of it is read with the image."""
    (cluster,) = joined(join, 1)
    join(1)
    eventually(lambda: len(cluster.image().brokers) == 2, "both")
    cluster.create_topic("t", 1, 2)
    made = proposal(cluster, (0,))
    faulty = join.faulty[0]
    (faulty.lose_answer if carried_out else faulty.lose_request)()
    assert cluster.propose([(T0, made)]) == [ProposalOutcome.UNKNOWN]
    assert found(cluster).isr == ((0,) if carried_out else (0, 1))
    assert (cluster.image().version > made.base_version) == carried_out


def test_only_so_many_proposals_are_written_at_once(join: Joined) -> None:
    (cluster,) = joined(join, 1)
    join(1)
    eventually(lambda: len(cluster.image().brokers) == 2, "both")
    cluster.create_topic("t", MOST_STATES + 2, 2)
    version = cluster.image().version
    asked = []
    for tp, partition in cluster.image().partitions():
        state = with_isr(partition.state, (partition.leader,), {}, 1)
        asked.append((tp, IsrProposal(version, state, ())))
    outcomes = cluster.propose(asked)
    assert outcomes == [ProposalOutcome.APPLIED] * MOST_STATES + [ProposalOutcome.REFUSED] * 2


# -- many partitions, other settings


def test_many_partitions_are_elected_in_changes_of_500(join: Joined) -> None:
    first, _ = joined(join, 2)
    for name in ("t", "u"):
        first.create_topic(name, 700, 2)
    before = first.image().version
    join.leave(1)
    eventually(lambda: all(p.isr == (0,) for _, p in first.image().partitions()), "all to be led by the other")
    assert first.image().version - before == 3
    assert first.image() == read_image(join.coordinations[0])


def test_a_lower_minimum_empties_the_eligible_replicas_in_the_same_change(join: Joined) -> None:
    """R6: with it the high watermark moves, and they fall behind."""
    first, _ = joined(join, 2)
    first.create_topic("t", 1, 2, {"min.insync.replicas": "2"})
    join.leave(1)
    eventually_led(first, 0, (0,))
    assert found(first).elr == (1,)
    before = first.image().version
    first.alter_topic_config("t", {"min.insync.replicas": "1"})
    assert found(first).elr == ()
    assert first.image().version == before + 1


# -- what administrators ask


def test_preferred_leaders_are_elected(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 2, {}, {0: (1, 0)})
    first.create_topic("u", 1, 2, {}, {0: (0, 1)})
    state = replace(found(first).state, leader=0, leader_epoch=1, leader_broker_epoch=first.broker_epoch)
    tree = join.coordinations[0]
    tree.transaction([Set(paths.partition_state("t", 0), state.encode()), Set(paths.METADATA_VERSION, b"{}")])
    eventually(lambda: found(first).leader == 0, "the other one to lead")
    u0, none = TopicPartition("u", 0), TopicPartition("none", 0)
    results = first.elect([T0, u0, none])
    assert {tp: code for tp, (code, _) in results.items()} == {
        T0: ErrorCode.none,
        u0: ErrorCode.election_not_needed,
        none: ErrorCode.unknown_topic_or_partition,
    }
    assert (found(first).leader, found(first).isr) == (1, (1, 0))
    assert found(first).leader_epoch > 1
    assert first.elect(None) == {}
    with pytest.raises(BrokerError) as error:
        second.elect(None)
    assert error.value.code is ErrorCode.not_controller


def test_an_unclean_election_is_made_only_on_demand(join: Joined) -> None:
    told: list[int] = []
    first, _ = join(0, on_elected=lambda unclean, _: told.append(unclean)), join(1)
    eventually(lambda: len(first.image().brokers) == 2, "both brokers")
    first.create_topic("t", 1, 2, {}, {0: (1, 0)})
    assert first.elect([T0], unclean=True)[T0][0] is ErrorCode.election_not_needed
    first_state = with_isr(found(first).state, (1,), {}, 1)
    tree = join.coordinations[0]
    tree.transaction([Set(paths.partition_state("t", 0), first_state.encode()), Set(paths.METADATA_VERSION, b"{}")])
    eventually(lambda: found(first).isr == (1,), "a single in-sync replica")
    join.leave(1)
    eventually(lambda: found(first).leader == NO_LEADER, "no leader")
    assert first.elect([T0], unclean=True)[T0][0] is ErrorCode.none
    assert (found(first).leader, found(first).isr) == (0, (0,))
    assert told == [1]


def test_a_partition_is_moved(join: Joined) -> None:
    first, second, third = joined(join, 3)
    first.create_topic("t", 2, 2, {}, {0: (0, 1), 1: (0, 1)})
    assert first.alter_reassignments({T0: (2, 1)}) == {T0: (ErrorCode.none, "")}
    assert first.reassignments() == {T0: ReplicaAssignment((2, 1, 0), (2,), (0,))}
    assert first.reassignments([TopicPartition("t", 1)]) == {}
    assert found(first).isr == (0, 1)
    eventually(lambda: first.image().version == third.image().version, "the new replica knows it")
    caught_up = third.own_registration
    assert caught_up is not None
    assert first.propose([(T0, proposal(first, (2, 1, 0), (caught_up,)))]) == [ProposalOutcome.APPLIED]
    led = eventually_led(first, 2, (2, 1))
    assert led.assignment == ReplicaAssignment((2, 1))
    assert first.reassignments() == {}
    eventually(lambda: second.image().version == first.image().version, "the last change")
    assert second.image() == read_image(join.coordinations[1])


def test_a_reassignment_is_refused_or_cancelled(join: Joined) -> None:
    first, second = joined(join, 2)
    first.create_topic("t", 1, 1, {}, {0: (0,)})
    none = TopicPartition("none", 0)
    codes = first.alter_reassignments({T0: (7,), none: (0,)})
    assert codes[T0][0] is ErrorCode.invalid_replica_assignment
    assert codes[none][0] is ErrorCode.unknown_topic_or_partition
    assert first.alter_reassignments({T0: None})[T0][0] is ErrorCode.no_reassignment_in_progress
    first.alter_reassignments({T0: (1,)})
    assert list(first.reassignments()) == [T0]
    assert first.alter_reassignments({T0: None})[T0][0] is ErrorCode.none
    assert found(first).assignment == ReplicaAssignment((0,))
    with pytest.raises(BrokerError):
        second.alter_reassignments({T0: (1,)})
