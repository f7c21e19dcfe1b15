"""Sessions and their end, as `klamm.core.interfaces.coordination` promises them, on every coordination that ships."""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import methodcaller

import pytest

from klamm.core.interfaces.coordination import Coordination, Create, SessionEvent, SessionExpiredError
from klammtest.waiting import eventually
from klammtest.zookeeper import CoordinationCase, Events

OPERATIONS: list[Callable[[Coordination], object]] = [
    methodcaller("create", "/a"),
    methodcaller("get", "/"),
    methodcaller("exists", "/"),
    methodcaller("set", "/a", b""),
    methodcaller("delete", "/a"),
    methodcaller("children", "/"),
    methodcaller("transaction", [Create("/a")]),
    methodcaller("watch", "/a", lambda: None),
]


def test_start_tells_that_it_is_connected(coordination_case: CoordinationCase) -> None:
    coordination = coordination_case.make(session_timeout_ms=5000)
    events = Events(coordination)
    coordination.start()
    events.wait_for(SessionEvent.CONNECTED)
    assert coordination.session_id != 0
    assert coordination.session_timeout_s == 5.0


def test_who_is_told_that_it_is_connected_sees_the_new_session(coordination_case: CoordinationCase) -> None:
    coordination = coordination_case.make()
    ids: list[int] = []
    coordination.on_session(lambda event: ids.append(coordination.session_id))
    coordination.start()
    eventually(lambda: ids == [coordination.session_id], "the first session's id")
    assert ids[0] != 0
    coordination_case.expire(coordination)
    coordination.restart()
    eventually(lambda: ids[-1] == coordination.session_id, "the second session's id")
    assert ids[-1] not in (0, ids[0])


def test_close_is_no_expiry(coordination_case: CoordinationCase) -> None:
    coordination = coordination_case.open()
    events = Events(coordination)
    coordination.close()
    assert SessionEvent.EXPIRED not in events.seen


def test_an_expired_session_loses_its_ephemeral_paths_and_says_so(coordination_case: CoordinationCase) -> None:
    expiring, other = coordination_case.open(), coordination_case.open()
    events = Events(expiring)
    expiring.create("/ephemeral", ephemeral=True)
    expiring.create("/persistent")
    coordination_case.expire(expiring)
    events.wait_for(SessionEvent.EXPIRED)
    eventually(lambda: other.children("/") == ["persistent"], "the end of the ephemeral path")
    assert expiring.session_id == 0
    for operation in OPERATIONS:
        with pytest.raises(SessionExpiredError):
            operation(expiring)
    assert other.session_id != 0


def test_restart_gives_a_new_session(coordination_case: CoordinationCase) -> None:
    expiring = coordination_case.open()
    first = expiring.session_id
    expiring.create("/ephemeral", ephemeral=True)
    coordination_case.expire(expiring)
    events = Events(expiring)
    expiring.restart()
    events.wait_for(SessionEvent.CONNECTED)
    assert expiring.session_id not in (0, first)
    assert expiring.exists("/ephemeral") is None
    created = expiring.create("/ephemeral", ephemeral=True)
    assert created.ephemeral_owner == expiring.session_id


def test_restart_of_a_live_session_keeps_it(coordination_case: CoordinationCase) -> None:
    """Several users may share one object; the second to hear of an expiry must not end the session of the first."""
    coordination = coordination_case.open()
    coordination.create("/ephemeral", ephemeral=True)
    first = coordination.session_id
    coordination.restart()
    assert coordination.session_id == first
    assert coordination.exists("/ephemeral") is not None


def test_a_session_may_expire_more_than_once(coordination_case: CoordinationCase) -> None:
    expiring = coordination_case.open()
    for number in range(3):
        assert expiring.create("/ephemeral", b"%d" % number, ephemeral=True).ephemeral_owner == expiring.session_id
        coordination_case.expire(expiring)
        expiring.restart()
        eventually(lambda: expiring.exists("/ephemeral") is None, "the end of the ephemeral path")


def test_an_expired_one_may_be_closed(coordination_case: CoordinationCase) -> None:
    expiring = coordination_case.open()
    coordination_case.expire(expiring)
    expiring.close()
    assert expiring.session_id == 0


def test_an_idle_session_lives_on(coordination_case: CoordinationCase) -> None:
    """Heartbeats, not calls, keep it: longer than its time-out without a call, while another looks for the dead."""
    idle, other = coordination_case.open(session_timeout_ms=4000), coordination_case.open(session_timeout_ms=4000)
    events = Events(idle)
    created = idle.create("/ephemeral", ephemeral=True)
    eventually(_after(6.0), "one and a half time-outs")
    assert SessionEvent.EXPIRED not in events.seen
    assert other.exists("/ephemeral") == created


def test_a_listener_that_raises_does_not_stop_the_others(
    coordination_case: CoordinationCase, caplog: pytest.LogCaptureFixture
) -> None:
    coordination = coordination_case.make()

    def fail(event: SessionEvent) -> None:
        raise RuntimeError(f"planted: {event}")

    coordination.on_session(fail)
    events = Events(coordination)
    coordination.start()
    events.wait_for(SessionEvent.CONNECTED)
    assert "planted" in caplog.text


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
