"""Election and the controller's writes, on both coordinations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast
from uuid import UUID

import pytest

from klamm.core.cluster.control.controller import Controller, ControllerLease
from klamm.core.cluster.tree import paths
from klamm.core.cluster.tree.bootstrap import create_base_paths
from klamm.core.cluster.tree.steps import Steps
from klamm.core.errors import BrokerError, CoordinationError, ErrorCode
from klamm.core.interfaces.coordination import BadVersionError, Coordination, CoordinationUnavailableError, Create
from klammtest.clusters.blocking import Blocking
from klammtest.clusters.joined import FaultyCoordination
from klammtest.zookeeper import CoordinationCase


def controller(
    coordination: Coordination, broker_id: int, on_not_controller: Callable[[], None] = lambda: None
) -> Blocking:
    create_base_paths(coordination, lambda: UUID(int=7))
    made = Controller(coordination, broker_id, lambda: 1_700_000_000.0, threading.Lock(), on_not_controller)
    return Blocking(coordination, made)


def test_one_is_elected_and_the_epoch_grows(coordination_case: CoordinationCase) -> None:
    sessions = [coordination_case.open() for _ in range(2)]
    first, second = (controller(session, number) for number, session in enumerate(sessions))
    assert first.elect()
    assert not second.elect()
    assert first.elect()
    assert (first.epoch(), second.lease) == (1, None)
    first.resign()
    first.resign()
    assert second.elect()
    assert second.epoch() == 2
    assert sessions[0].get("/controller_epoch")[0] == b"2"


def test_an_election_whose_answer_was_lost_is_found(coordination: Coordination) -> None:
    assert controller(coordination, 0).elect()
    again = controller(coordination, 0)  # knows nothing of what the first did in this session
    assert again.elect()
    assert again.epoch() == 1
    coordination.transaction(again.guard())


def test_a_dead_sessions_controller_of_the_same_broker_is_replaced_at_once(coordination_case: CoordinationCase) -> None:
    dead, mine = coordination_case.open(60_000), coordination_case.open()
    assert controller(dead, 0).elect()
    reborn = controller(mine, 0)
    assert reborn.elect()
    assert reborn.epoch() == 2


def test_a_deposed_controller_writes_nothing(coordination_case: CoordinationCase) -> None:
    """It still believes that it is elected: its session lives, and nobody has told it."""
    old_session, new_session = coordination_case.open(), coordination_case.open()
    deposed = controller(old_session, 0)
    deposed.elect()
    new_session.delete(paths.CONTROLLER)
    successor = controller(new_session, 1)
    successor.elect()
    assert deposed.lease is not None
    with pytest.raises(BadVersionError, match="/controller_epoch"):
        old_session.transaction([*deposed.guard(), Create("/x")])
    with pytest.raises(BrokerError) as caught:
        deposed.guard(refused=True)
    assert caught.value.code is ErrorCode.not_controller
    assert deposed.lease is None
    assert new_session.exists("/x") is None
    new_session.transaction([*successor.guard(), Create("/x")])


def test_a_write_of_an_earlier_lease_does_not_end_the_one_that_was_taken_since(
    coordination_case: CoordinationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in one session: `/controller` would name this broker, which would answer NOT_CONTROLLER, and nothing would
    wake anyone to elect."""
    sessions = [coordination_case.open() for _ in range(2)]
    first, second = (controller(session, number) for number, session in enumerate(sessions))
    assert first.elect()
    read_lease = first._read_lease

    def take_over_meanwhile() -> Steps[ControllerLease]:
        monkeypatch.undo()
        assert second.take_over(0)
        assert first.take_over(1)
        yield from ()
        lease: ControllerLease = read_lease()
        return lease

    monkeypatch.setattr(first.inner, "_read_lease", take_over_meanwhile)
    with pytest.raises(BrokerError) as caught:
        first.guard(refused=True)
    assert caught.value.code is ErrorCode.not_controller
    assert first.epoch() == 3
    sessions[0].transaction(first.guard())


def test_a_controller_that_refuses_connections_is_replaced(coordination_case: CoordinationCase) -> None:
    """Its session lives on."""
    sessions = [coordination_case.open() for _ in range(2)]
    first, second = (controller(session, number) for number, session in enumerate(sessions))
    first.elect()
    assert not second.take_over(2)  # another is the controller
    assert second.take_over(0)
    assert second.epoch() == 2
    with pytest.raises(BadVersionError):
        sessions[0].transaction(first.guard())
    assert not first.elect()
    assert first.lease is None


def test_who_is_not_elected_writes_nothing(coordination: Coordination) -> None:
    never = controller(coordination, 0)
    for use in (never.epoch, never.guard):
        with pytest.raises(BrokerError) as caught:
            use()
        assert caught.value.code is ErrorCode.not_controller


def test_a_lease_ends_with_its_session(coordination_case: CoordinationCase) -> None:
    session = coordination_case.open()
    elected = controller(session, 0)
    elected.elect()
    coordination_case.expire(session)
    assert elected.lease is None
    session.restart()
    assert elected.lease is None
    assert elected.elect()
    assert elected.epoch() == 2


def test_an_epoch_that_is_no_number_is_one_line(coordination: Coordination) -> None:
    elected = controller(coordination, 0)
    coordination.set(paths.CONTROLLER_EPOCH, b"x")
    with pytest.raises(CoordinationError, match="/controller_epoch should hold a number"):
        elected.elect()


def test_a_take_over_whose_answer_was_lost_is_found_though_there_was_an_earlier_lease(
    coordination_case: CoordinationCase,
) -> None:
    """With the earlier lease it would write nothing, and `/controller` would name it."""
    sessions = [FaultyCoordination(coordination_case.open()) for _ in range(2)]
    first, second = (controller(cast(Coordination, session), number) for number, session in enumerate(sessions))
    assert first.elect()
    assert second.take_over(0)
    sessions[0].lose_answer()
    with pytest.raises(CoordinationUnavailableError):
        first.take_over(1)
    assert first.elect()
    assert first.epoch() == 3
    sessions[0].transaction(first.guard())


def test_who_asks_a_broker_without_a_lease_has_it_look(coordination: Coordination) -> None:
    asked: list[int] = []
    never = controller(coordination, 0, lambda: asked.append(0))
    for use in (never.epoch, never.guard):
        with pytest.raises(BrokerError):
            use()
    assert len(asked) == 2
    assert never.elect()
    never.guard()
    assert len(asked) == 2
