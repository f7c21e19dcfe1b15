"""A group is entered by one door at a time, also by two that come at once."""

from __future__ import annotations

import threading

import pytest

from klamm.core.cluster import paths
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.groups import group_protocol_lock as doors
from klamm.core.groups.group_protocol_lock import ClassicDoors, Door
from klamm.core.interfaces.coordination import Coordination, NodeExistsError
from klammtest.zookeeper import CoordinationCase


def test_the_other_door_is_shut_while_somebody_is_inside(coordination: Coordination) -> None:
    assert doors.door_of(coordination, "g") is None
    first = doors.enter(coordination, "g", Door.REGISTRY, "a")
    doors.enter(coordination, "g", Door.REGISTRY, "b")
    assert doors.door_of(coordination, "g") is Door.REGISTRY
    with pytest.raises(BrokerError, match="'g' has members of the registry kind") as raised:
        doors.enter(coordination, "g", Door.CLASSIC, "broker-0")
    assert raised.value.code is ErrorCode.inconsistent_group_protocol
    coordination.delete(first.path)
    coordination.delete(paths.group_member("g", "b"))
    doors.enter(coordination, "g", Door.CLASSIC, "broker-0")
    assert doors.door_of(coordination, "g") is Door.CLASSIC
    with pytest.raises(BrokerError):
        doors.enter(coordination, "g", Door.REGISTRY, "a")


def test_a_name_is_entered_once_by_a_session_and_taken_for_others(coordination_case: CoordinationCase) -> None:
    one, other = coordination_case.open(), coordination_case.open()
    assert doors.enter(one, "g", Door.REGISTRY, "a") == doors.enter(one, "g", Door.REGISTRY, "a")
    with pytest.raises(NodeExistsError, match="another session"):
        doors.enter(other, "g", Door.REGISTRY, "a")


def test_a_broker_takes_over_the_path_of_its_former_session(coordination_case: CoordinationCase) -> None:
    dead, live = coordination_case.open(), coordination_case.open()
    path, _ = doors.enter(dead, "g", Door.CLASSIC, "broker-0")
    doors.enter(live, "g", Door.CLASSIC, "broker-0")
    found = live.exists(path)
    assert found.ephemeral_owner == live.session_id


def test_a_root_that_names_no_door_is_told(coordination: Coordination) -> None:
    coordination.create(paths.group("g"), b"something else", make_parents=True)
    with pytest.raises(CoordinationError, match="should name the group's door, but holds"):
        doors.enter(coordination, "g", Door.REGISTRY, "a")


def test_of_two_doors_entered_at_once_one_wins(coordination_case: CoordinationCase) -> None:
    sessions = [coordination_case.open() for _ in range(4)]
    for turn in range(10):
        inside: list[Door] = []
        start = threading.Barrier(len(sessions))

        def come(number: int, turn: int = turn, start: threading.Barrier = start, inside: list[Door] = inside) -> None:
            door = Door.REGISTRY if number % 2 else Door.CLASSIC
            start.wait()
            try:
                doors.enter(sessions[number], f"race-{turn}", door, f"{door.value}-{number}")
                inside.append(door)
            except BrokerError:
                return

        threads = [threading.Thread(target=come, args=(n,)) for n in range(len(sessions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(inside) == 2
        assert len(set(inside)) == 1


def test_a_brokers_doors_are_left_with_the_last_member_and_not_before(coordination: Coordination) -> None:
    populated: set[str] = set()
    classic = ClassicDoors(coordination, 0, populated.__contains__)
    classic.enter("g")
    populated.add("g")
    assert not classic.entered("g")
    classic.leave("g")
    assert doors.door_of(coordination, "g") is Door.CLASSIC, "it has a member"
    populated.clear()
    classic.enter("g")
    classic.leave("g")
    assert doors.door_of(coordination, "g") is Door.CLASSIC, "a join is on its way"
    assert classic.entered("g"), "the join left nobody inside"
    classic.leave("g")
    assert doors.door_of(coordination, "g") is None
    doors.enter(coordination, "g", Door.REGISTRY, "a")
    with pytest.raises(BrokerError):
        classic.enter("g")
    classic.leave("g")


def test_a_brokers_doors_are_entered_again_in_a_new_session(coordination_case: CoordinationCase) -> None:
    coordination = coordination_case.open()
    other = coordination_case.open()
    populated = {"kept", "taken"}
    classic = ClassicDoors(coordination, 0, populated.__contains__)
    for group in ("kept", "taken", "empty"):
        classic.enter(group)
        classic.entered(group)
    coordination_case.expire(coordination)
    coordination.restart()
    doors.enter(other, "taken", Door.REGISTRY, "a")
    assert classic.renew() == ["taken"]
    assert doors.door_of(other, "kept") is Door.CLASSIC
    assert doors.door_of(other, "empty") is None


def test_who_joins_while_the_door_is_being_left_enters_again(
    coordination: Coordination, monkeypatch: pytest.MonkeyPatch
) -> None:
    members: set[str] = set()
    classic = ClassicDoors(coordination, 0, members.__contains__)
    classic.enter("g")
    assert classic.entered("g"), "nobody stays"
    joins: list[threading.Thread] = []
    kept = coordination.delete

    def join() -> None:
        classic.enter("g")
        members.add("g")
        classic.entered("g")

    def delete(path: str) -> None:
        joins.append(threading.Thread(target=join))
        joins[0].start()
        joins[0].join(0.5)  # it waits for the leave, unless it takes the door for open
        kept(path)

    monkeypatch.setattr(coordination, "delete", delete)
    classic.leave("g")
    joins[0].join()
    assert classic.guard("g") is not None
    assert doors.door_of(coordination, "g") is Door.CLASSIC
