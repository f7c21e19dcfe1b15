"""A whole cluster that starts: what its first controller holds, and for how long (R13)."""

from __future__ import annotations

from klamm.core.cluster.cluster import Cluster
from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.control.leadership import is_held
from klamm.core.replication.partition_state import NO_EPOCH, PartitionState
from klamm.core.replication.registrations import BrokerRegistration
from klammtest.clusters.joined import Joined
from klammtest.waiting import eventually


def registration(broker: int, epoch: int) -> BrokerRegistration:
    return BrokerRegistration(broker, epoch, f"i{epoch}", (f"d{broker}",))


def test_a_cold_start_holds_what_is_older_for_a_while() -> None:
    now = [100.0]
    start = ColdStart("me", lambda: 12.0, lambda: now[0])
    assert start.held_below() == NO_EPOCH
    start.registered(77, 5)
    assert (start.held_below(), start.left_s()) == (77, 12.0)
    start.saw(6, "me/1")
    assert start.held_below() == 77, "its own change"
    now[0] += 12.0
    assert start.held_below() == NO_EPOCH
    again = ColdStart("me", lambda: 12.0, lambda: now[0])
    again.registered(77, 5)
    again.saw(6, "another/1")
    assert again.held_below() == NO_EPOCH, "the cluster is running"


def test_a_cold_start_takes_older_registrations_for_those_of_a_backup() -> None:
    state = PartitionState(0, 9, 100, (0, 1), (), {0: "d0", 1: "d1"}, 1)
    both = {number: registration(number, 100 + number) for number in (0, 1)}
    assert is_held(state, (0, 1), both, 101), "0 has not registered since"
    assert not is_held(state, (0, 1), both, NO_EPOCH), "the wait is over"
    again = both | {0: registration(0, 102)}
    assert not is_held(state, (0, 1), again, 101)
    assert is_held(state, (0, 1, 2), again, 101), "2 is absent"
    assert not is_held(PartitionState(0, 10, 102, (0,), (), {0: "d0"}, 1), (0, 1, 2), again, 101), "elected since"


def epochs(cluster: Cluster) -> dict[int, int]:
    return {number: found.epoch for number, found in cluster.image().registrations.items()}


def test_brokers_that_are_back_before_the_controller_are_not_waited_for(join: Joined) -> None:
    """All are killed, and their sessions live on: the controller is back last, in the lease that it had. The others
    register again, since it takes older registrations for those of a backup."""
    first, *_ = [join(number) for number in range(3)]
    eventually(lambda: len(first.image().brokers) == 3, "all brokers")
    assert first.is_controller
    first.create_topic("t", 6, 3)
    for number in range(3):
        join.kill(number)
    second, third = join(1), join(2)
    first = join(0)
    eventually(lambda: first.is_controller, "it has its lease again")

    def led() -> bool:
        now = epochs(first)
        states = [partition.state for _, partition in first.image().partitions()]
        return all(state.leader_broker_epoch == now.get(state.leader) for state in states)

    eventually(led, "leaders of all partitions")
    assert first._cold_start.left_s() > 0, "it was not the end of the wait that elected them"
    assert min(second.broker_epoch, third.broker_epoch) > first.broker_epoch
    again = epochs(first)
    first.create_topic("later", 1, 3)
    eventually(lambda: "later" in second.image().topics and "later" in third.image().topics, "a later change")
    assert epochs(third) == again, "each has registered again once"
