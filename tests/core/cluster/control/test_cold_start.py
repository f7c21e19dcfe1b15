"""A whole cluster that starts: what its first controller holds, and for how long (R13)."""

from __future__ import annotations

from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.control.leadership import Terms, is_held
from klamm.core.cluster.control.tasks import topic_node
from klamm.core.cluster.tree import paths
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.errors import ErrorCode
from klamm.core.interfaces.coordination import Set
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import IsrProposal, ProposalOutcome
from klamm.core.replication.partition import leads
from klamm.core.replication.partition_state import NO_EPOCH, NO_LEADER, PartitionState, with_isr
from klamm.core.replication.registrations import DOUBTED, BrokerRegistration
from klammtest.clusters.joined import Joined
from klammtest.waiting import eventually


def registration(broker: int, epoch: int) -> BrokerRegistration:
    return BrokerRegistration(broker, epoch, f"i{epoch}", (f"d{broker}",))


WAITS = "the cluster is starting, and the partition waits for replicas that are not back yet"
OLDER, NEWER = 70, 78
"""Broker epochs, before and after that of the broker that starts."""


def test_a_cold_start_holds_what_is_older_for_a_while() -> None:
    now = [100.0]
    start = ColdStart("me", lambda: 12.0, lambda: now[0])
    assert start.held_below() == NO_EPOCH
    start.registered(77, 5)
    assert (start.held_below(), start.left_s()) == (77, 12.0)
    start.saw(6, "me/1", 77)
    assert start.held_below() == 77, "its own change"
    start.saw(5, "another/0", OLDER)
    assert start.held_below() == 77, "before it registered"
    now[0] += 12.0
    assert start.held_below() == NO_EPOCH


def test_a_change_of_a_broker_that_was_there_ends_a_cold_start_and_one_of_a_newer_does_not() -> None:
    """A newer one starts, too: it may lead where all replicas are back; elsewhere one may be absent that has more."""
    start = ColdStart("me", lambda: 12.0, lambda: 100.0)
    start.registered(77, 5)
    start.saw(6, "another/1", NEWER)
    start.saw(7, "another/2", None)
    start.registered(90, 8)
    start.saw(9, "another/3", NEWER)
    assert start.held_below() == 90
    start.saw(10, "another/4", OLDER)
    assert start.held_below() == NO_EPOCH, "the cluster is running"


def test_a_cold_start_takes_older_registrations_for_those_of_a_backup() -> None:
    state = PartitionState(0, 9, 100, (0, 1), (), {0: "d0", 1: "d1"}, 1)
    both = {number: registration(number, 100 + number) for number in (0, 1)}
    terms = Terms(2, 0, TopicConfig(), 101)
    assert is_held(state, (0, 1), both, terms), "0 has not registered since"
    assert not is_held(state, (0, 1), both, terms._replace(held_below=NO_EPOCH)), "the wait is over"
    again = both | {0: registration(0, 102)}
    assert not is_held(state, (0, 1), again, terms)
    assert is_held(state, (0, 1, 2), again, terms), "2 is absent"
    assert not is_held(PartitionState(0, 10, 102, (0,), (), {0: "d0"}, 1), (0, 1, 2), again, terms), "elected since"
    assert not is_held(state, (0, 1, 2), again, terms._replace(controller_epoch=1)), "written by this controller"
    alone = PartitionState(NO_LEADER, 10, NO_EPOCH, (1,), (), {1: "d1"}, 2)
    assert not is_held(alone, (0, 1, 2), again, terms), "of its members, this controller has seen the last one die"
    doubted = PartitionState(NO_LEADER, 10, NO_EPOCH, (0, 1), (), {0: DOUBTED, 1: DOUBTED}, 2)
    assert is_held(doubted, (0, 1, 2), again, terms), "this controller has only doubted it"


def test_a_partition_that_was_created_since_is_led_at_once_by_another_replica(join: Joined) -> None:
    """The controller of a cluster that starts was the last to register. It creates a topic, and the leader dies."""
    join(0), join(1)
    last = join(2)
    last.suspect(0, last.image().brokers[0].registration.incarnation)
    eventually(lambda: last.image().controller_id == 2, "the last one to be the controller")
    last.create_topic("t", 1, 2, replicas={0: (1, 2)})
    incarnation = last.image().brokers[1].registration.incarnation
    join.kill(1)
    join.unreachable.add(1)
    last.suspect(1, incarnation)
    eventually(lambda: last.image().topics["t"].partitions[0].state.leader == 2, "another leader")
    assert last.node.cold_start.left_s() > 0


def test_a_change_of_a_partition_that_is_led_again_does_not_end_the_wait_of_another(join: Joined) -> None:
    """All are killed. Of p all replicas are back, and it is led; q's third one, which perhaps has more, is not."""
    first, *_ = [join(number) for number in range(4)]
    eventually(lambda: len(first.image().brokers) == 4, "all brokers")
    first.create_topic("p", 1, 3, replicas={0: (1, 2, 0)})
    first.create_topic("q", 1, 3, replicas={0: (0, 1, 3)})
    for number in range(4):
        join.kill(number)
    first, second, _ = join(0), join(1), join(2)

    def state(topic: str, cluster: Cluster = first) -> PartitionState:
        return cluster.image().topics[topic].partitions[0].state

    eventually(lambda: leads(state("p", second), 1, second.own_registration), "it leads p again")
    version = second.image().version
    smaller = with_isr(state("p", second), (1, 2), {}, 1)
    held = state("q")
    assert second.propose([(TopicPartition("p", 0), IsrProposal(version, smaller, ()))]) == [ProposalOutcome.APPLIED]
    eventually(lambda: first.image().version > version, "the controller has seen it")
    first.suspect(2, "nobody")  # the controller looks again
    eventually(lambda: join.coordinations[0].children(paths.SUSPECTS) == [], "and has looked")
    assert first.node.cold_start.left_s() > 0
    assert state("q") == held


def test_what_administrators_ask_does_not_end_the_wait(join: Joined) -> None:
    """All are killed, and the first is back: by a backup it may be in sync where it was not at the end. Neither as the
    preferred leader nor by a reassignment that ends does it lead before the others are back."""
    first, *_ = [join(number) for number in range(3)]
    eventually(lambda: len(first.image().brokers) == 3, "all brokers")
    for name in ("preferred", "moving", "cancelled"):
        first.create_topic(name, 1, 3, replicas={0: (1, 0, 2)})
    asked = {name: TopicPartition(name, 0) for name in ("preferred", "moving", "cancelled")}
    join.kill(0)
    first = join.clusters[1]
    # Nobody controls meanwhile: what is asked is written, and does not end.
    eventually(lambda: first.image().controller_id == 0, "the dead one to be the controller still")
    eventually(lambda: set(asked) <= set(first.image().topics), "the topics")
    tree = join.coordinations[1]
    for name, assignment in {
        "preferred": {"partitions": {0: (0, 1, 2)}},
        "moving": {"partitions": {0: (0, 1, 2)}, "removing_replicas": {0: (1, 2)}},
        "cancelled": {"partitions": {0: (0, 1, 2)}, "adding_replicas": {0: (1, 2)}, "removing_replicas": {0: (1,)}},
    }.items():
        node = topic_node(first.image().topics[name]).model_copy(update=assignment)
        tree.transaction([Set(paths.topic(name), node.encode()), Set(paths.METADATA_VERSION, b"{}")])
    for number in (1, 2):
        join.kill(number)
    first = join(0)
    before = {name: first.image().topics[name].partitions[0] for name in asked}
    assert before["moving"].assignment.is_reassigning
    refused = first.elect([asked["preferred"]])[asked["preferred"]]
    assert refused == (ErrorCode.preferred_leader_not_available, WAITS)
    assert first.alter_reassignments({asked["cancelled"]: None})[asked["cancelled"]][1] == WAITS
    assert first.node.cold_start.left_s() > 0
    assert {name: first.image().topics[name].partitions[0] for name in asked} == before
