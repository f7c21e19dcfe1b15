"""A whole cluster that starts: what its first controller holds, and for how long (R13)."""

from __future__ import annotations

from klamm.core.cluster.control.cold_start import ColdStart
from klamm.core.cluster.control.leadership import is_held
from klamm.core.replication.partition_state import NO_EPOCH, PartitionState
from klamm.core.replication.registrations import BrokerRegistration


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
