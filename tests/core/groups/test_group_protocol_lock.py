"""The members of a group use one protocol at a time, also when two holders acquire its lock at once."""

from __future__ import annotations

import threading

import pytest

from klamm.core.cluster.tree import paths
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.groups import group_protocol_lock
from klamm.core.groups.group_protocol_lock import ClassicGroupLocks, GroupProtocol
from klamm.core.interfaces.coordination import BadVersionError, Check, Coordination, NodeExistsError
from klammtest.zookeeper import CoordinationCase


def test_the_other_protocol_is_refused_while_the_lock_is_held(coordination: Coordination) -> None:
    assert group_protocol_lock.active_protocol(coordination, "g") is None
    first = group_protocol_lock.acquire(coordination, "g", GroupProtocol.REGISTRY, "a")
    group_protocol_lock.acquire(coordination, "g", GroupProtocol.REGISTRY, "b")
    assert group_protocol_lock.active_protocol(coordination, "g") is GroupProtocol.REGISTRY
    with pytest.raises(BrokerError, match="'g' has members that use the registry protocol") as raised:
        group_protocol_lock.acquire(coordination, "g", GroupProtocol.CLASSIC, "broker-0")
    assert raised.value.code is ErrorCode.inconsistent_group_protocol
    coordination.delete(first.path)
    coordination.delete(paths.group_member("g", "b"))
    group_protocol_lock.acquire(coordination, "g", GroupProtocol.CLASSIC, "broker-0")
    assert group_protocol_lock.active_protocol(coordination, "g") is GroupProtocol.CLASSIC
    with pytest.raises(BrokerError):
        group_protocol_lock.acquire(coordination, "g", GroupProtocol.REGISTRY, "a")


def test_a_session_acquires_a_name_once_and_other_sessions_are_refused(coordination_case: CoordinationCase) -> None:
    one, other = coordination_case.open(), coordination_case.open()
    assert group_protocol_lock.acquire(one, "g", GroupProtocol.REGISTRY, "a") == group_protocol_lock.acquire(
        one, "g", GroupProtocol.REGISTRY, "a"
    )
    with pytest.raises(NodeExistsError, match="another session"):
        group_protocol_lock.acquire(other, "g", GroupProtocol.REGISTRY, "a")


def test_a_successor_deletes_and_takes_the_lock(coordination_case: CoordinationCase) -> None:
    former, successor = coordination_case.open(), coordination_case.open()
    group_protocol_lock.acquire(former, "g", GroupProtocol.CLASSIC, "broker-0-a")
    group_protocol_lock.acquire(successor, "g", GroupProtocol.CLASSIC, "broker-1-b")
    assert successor.children(paths.group_ids("g")) == ["broker-1-b"]
    group_protocol_lock.acquire(successor, "g", GroupProtocol.CLASSIC, "broker-1-b")
    assert successor.children(paths.group_ids("g")) == ["broker-1-b"]


def test_a_deposed_coordinator_releases_nothing_of_its_successor(coordination_case: CoordinationCase) -> None:
    one, other = coordination_case.open(), coordination_case.open()
    populated = {"g"}
    former = ClassicGroupLocks(one, lambda: "0-a", populated.__contains__)
    successor = ClassicGroupLocks(other, lambda: "1-b", {"g"}.__contains__)
    for locks in (former, successor):
        locks.acquire("g")
        locks.join_delivered("g")
    assert not former.still_holds("g")
    former.mark_lost("g")
    populated.clear()
    former.release("g")
    assert other.children(paths.group_ids("g")) == ["broker-1-b"]
    assert successor.still_holds("g")


def test_a_guard_that_fails_leaves_the_lock(coordination_case: CoordinationCase) -> None:
    """Of a broker that does not lead any more: its coordination says so in the transaction that acquires."""
    one, other = coordination_case.open(), coordination_case.open()
    one.create("/state", b"", make_parents=True)
    group_protocol_lock.acquire(other, "g", GroupProtocol.CLASSIC, "broker-1")
    with pytest.raises(BadVersionError):
        group_protocol_lock.acquire(one, "g", GroupProtocol.CLASSIC, "broker-0", guard=lambda: Check("/state", 7))
    assert other.children(paths.group_ids("g")) == ["broker-1"]


def test_a_root_that_names_no_protocol_is_refused(coordination: Coordination) -> None:
    coordination.create(paths.group("g"), b"something else", make_parents=True)
    with pytest.raises(CoordinationError, match="should name the group's protocol, but holds"):
        group_protocol_lock.acquire(coordination, "g", GroupProtocol.REGISTRY, "a")


def test_one_of_two_protocols_wins_a_race(coordination_case: CoordinationCase) -> None:
    sessions = [coordination_case.open() for _ in range(4)]
    for race in range(10):
        acquired: list[GroupProtocol] = []
        start = threading.Barrier(len(sessions))

        def come(
            number: int, race: int = race, start: threading.Barrier = start, acquired: list[GroupProtocol] = acquired
        ) -> None:
            protocol = GroupProtocol.REGISTRY if number % 2 else GroupProtocol.CLASSIC
            start.wait()
            try:
                group_protocol_lock.acquire(sessions[number], f"race-{race}", protocol, f"{protocol.value}-{number}")
                acquired.append(protocol)
            except BrokerError:
                return

        threads = [threading.Thread(target=come, args=(n,)) for n in range(len(sessions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(acquired) == 2, "the classic ones one after the other"
        assert len(set(acquired)) == 1


def test_a_broker_releases_the_lock_after_the_last_member_has_left(coordination: Coordination) -> None:
    populated: set[str] = set()
    classic = ClassicGroupLocks(coordination, lambda: "0", populated.__contains__)
    classic.acquire("g")
    populated.add("g")
    assert not classic.join_delivered("g")
    classic.release("g")
    assert group_protocol_lock.active_protocol(coordination, "g") is GroupProtocol.CLASSIC, "it has a member"
    populated.clear()
    classic.acquire("g")
    classic.release("g")
    assert group_protocol_lock.active_protocol(coordination, "g") is GroupProtocol.CLASSIC, "a join is on its way"
    assert classic.join_delivered("g"), "the join left the group empty"
    classic.release("g")
    assert group_protocol_lock.active_protocol(coordination, "g") is None
    group_protocol_lock.acquire(coordination, "g", GroupProtocol.REGISTRY, "a")
    with pytest.raises(BrokerError):
        classic.acquire("g")
    classic.release("g")


def test_a_join_during_the_release_acquires_the_lock_again(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    members: set[str] = set()
    classic = ClassicGroupLocks(coordination, lambda: "0", members.__contains__)
    classic.acquire("g")
    assert classic.join_delivered("g"), "nobody stays"
    joins: list[threading.Thread] = []
    kept = coordination.delete

    def join() -> None:
        classic.acquire("g")
        members.add("g")
        classic.join_delivered("g")

    def delete(path: str) -> None:
        joins.append(threading.Thread(target=join))
        joins[0].start()
        joins[0].join(0.5)  # it waits for the leave, unless it finds the lock held
        kept(path)

    monkeypatch.setattr(coordination, "delete", delete)
    classic.release("g")
    joins[0].join()
    assert classic.guard("g") is not None
    assert group_protocol_lock.active_protocol(coordination, "g") is GroupProtocol.CLASSIC
