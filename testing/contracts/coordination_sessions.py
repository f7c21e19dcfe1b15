"""The contract of `klamm.plugin.Coordination`: sessions and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from operator import methodcaller

import pytest

from klamm.core.interfaces.coordination import (
    BadVersionError,
    Check,
    Coordination,
    CoordinationUnavailableError,
    Create,
    Delete,
    NoNodeError,
    Operation,
    SessionEvent,
    SessionExpiredError,
    Set,
)
from klamm.testing.contracts.coordination_cases import (
    CoordinationSuite,
    CoordinationUnderTest,
    SessionEvents,
    WatchSignal,
)
from klamm.testing.fault_points import fault_hook
from klamm.testing.waiting import eventually

__all__ = ["CoordinationSessionsContract"]

OPERATIONS: list[Callable[[Coordination], object]] = [
    methodcaller("create", "/a"),
    methodcaller("get", "/"),
    methodcaller("get_many", ["/"]),
    methodcaller("exists", "/"),
    methodcaller("set", "/a", b""),
    methodcaller("delete", "/a"),
    methodcaller("children", "/"),
    methodcaller("transaction", [Create("/a")]),
    methodcaller("watch", "/a", lambda: None),
]

WRITES: list[Callable[[Coordination], object]] = [
    methodcaller("create", "/new"),
    methodcaller("create", "/new", ephemeral=True),
    methodcaller("set", "/there", b"late"),
    methodcaller("set", "/there", b"late", 0),
    methodcaller("delete", "/there"),
    methodcaller("delete", "/there", recursive=True),
    methodcaller("transaction", [Check("/"), Set("/there", b"late"), Create("/new")]),
]


class AtPoint:
    """A fault hook that acts once, when `thread` passes `point`."""

    def __init__(self, point: str, act: Callable[[], object]) -> None:
        self._point, self._act, self._thread = point, act, threading.get_ident()
        self.acted = False

    def __call__(self, point: str) -> None:
        if point == self._point and not self.acted and threading.get_ident() == self._thread:
            self.acted = True
            self._act()


def _lose_the_answer() -> None:
    raise CoordinationUnavailableError("planted: the answer is lost")


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


class CoordinationSessionsContract(CoordinationSuite):
    """Define `coordination_case` as for `CoordinationContract`.

    The implementation calls `klamm.plugin.fault_point("coordination.write")` before it sends a write, and
    `fault_point("coordination.answered")` when the write's answer has arrived, both on the caller's thread: there the
    suite ends a session, and loses an answer.
    """

    def test_start_tells_that_it_is_connected(self, coordination_case: CoordinationUnderTest) -> None:
        coordination = coordination_case.make(session_timeout_ms=5000)
        events = SessionEvents(coordination)
        coordination.start()
        events.wait_for(SessionEvent.CONNECTED)
        assert coordination.session_id != 0
        assert coordination.session_timeout_s == 5.0

    def test_who_is_told_that_it_is_connected_sees_the_new_session(
        self, coordination_case: CoordinationUnderTest
    ) -> None:
        coordination = coordination_case.make()
        ids: list[int] = []
        coordination.on_session(lambda _: ids.append(coordination.session_id))
        coordination.start()
        eventually(lambda: ids == [coordination.session_id], "the first session's id")
        assert ids[0] != 0
        coordination_case.expire(coordination)
        coordination.restart()
        eventually(lambda: ids[-1] == coordination.session_id, "the second session's id")
        assert ids[-1] not in (0, ids[0])

    def test_close_is_no_expiry(self, coordination_case: CoordinationUnderTest) -> None:
        coordination = coordination_case.open()
        events = SessionEvents(coordination)
        coordination.close()
        assert SessionEvent.EXPIRED not in events.seen

    def test_an_expired_session_loses_its_ephemeral_paths_and_says_so(
        self, coordination_case: CoordinationUnderTest
    ) -> None:
        expiring, other = coordination_case.open(), coordination_case.open()
        events = SessionEvents(expiring)
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

    def test_restart_gives_a_new_session(self, coordination_case: CoordinationUnderTest) -> None:
        expiring = coordination_case.open()
        first = expiring.session_id
        expiring.create("/ephemeral", ephemeral=True)
        coordination_case.expire(expiring)
        events = SessionEvents(expiring)
        expiring.restart()
        events.wait_for(SessionEvent.CONNECTED)
        assert expiring.session_id not in (0, first)
        assert expiring.exists("/ephemeral") is None
        created = expiring.create("/ephemeral", ephemeral=True)
        assert created.ephemeral_owner == expiring.session_id

    def test_restart_of_a_live_session_keeps_it(self, coordination_case: CoordinationUnderTest) -> None:
        """Several users may share one object; the second to hear of an expiry must not end the session of the first."""
        coordination = coordination_case.open()
        coordination.create("/ephemeral", ephemeral=True)
        first = coordination.session_id
        coordination.restart()
        assert coordination.session_id == first
        assert coordination.exists("/ephemeral") is not None

    def test_a_session_may_expire_more_than_once(self, coordination_case: CoordinationUnderTest) -> None:
        expiring = coordination_case.open()
        for number in range(3):
            assert expiring.create("/ephemeral", b"%d" % number, ephemeral=True).ephemeral_owner == expiring.session_id
            coordination_case.expire(expiring)
            expiring.restart()
            eventually(lambda: expiring.exists("/ephemeral") is None, "the end of the ephemeral path")

    def test_an_expired_one_may_be_closed(self, coordination_case: CoordinationUnderTest) -> None:
        expiring = coordination_case.open()
        coordination_case.expire(expiring)
        expiring.close()
        assert expiring.session_id == 0

    @pytest.mark.parametrize("write", WRITES, ids=str)
    def test_a_write_in_flight_at_expiry_never_applies(
        self, coordination_case: CoordinationUnderTest, write: Callable[[Coordination], object]
    ) -> None:
        """The session is live when the write begins, and over when it arrives; its outcome may be called unknown."""
        writer, other = coordination_case.open(), coordination_case.open()
        other.create("/there", b"old")
        expires = AtPoint("coordination.write", lambda: coordination_case.expire(writer))
        with fault_hook(expires), pytest.raises((SessionExpiredError, CoordinationUnavailableError)):
            write(writer)
        assert expires.acted
        writer.restart()  # a write that was still on its way would be applied by now, or by the end of this
        write_of_another = other.set("/there", b"new")
        assert write_of_another.version == 1
        assert other.children("/") == ["there"]
        assert writer.get("/there") == (b"new", write_of_another)

    def test_a_write_whose_answer_is_lost_is_found_by_reading(self, coordination_case: CoordinationUnderTest) -> None:
        coordination = coordination_case.open()
        coordination.create("/ring")
        change: list[Operation] = [Set("/", b"", 0), Create("/ring/1", b"by incarnation 7, number 1")]
        with (
            fault_hook(AtPoint("coordination.answered", _lose_the_answer)),
            pytest.raises(CoordinationUnavailableError),
        ):
            coordination.transaction(change)
        assert coordination.get("/ring/1")[0] == b"by incarnation 7, number 1"
        with pytest.raises(BadVersionError):
            coordination.transaction(change)  # its condition makes it safe to try again
        with (
            fault_hook(AtPoint("coordination.answered", _lose_the_answer)),
            pytest.raises(CoordinationUnavailableError),
        ):
            coordination.create("/ephemeral", b"mine", ephemeral=True)
        found = coordination.exists("/ephemeral")
        assert found is not None
        assert found.ephemeral_owner == coordination.session_id

    def test_an_evicted_ephemeral_path_is_seen_by_its_owner(self, coordination_case: CoordinationUnderTest) -> None:
        """Another session deletes the path, as the controller does when it evicts a broker; the owner's session
        continues."""
        owner, other = coordination_case.open(), coordination_case.open()
        events, signal = SessionEvents(owner), WatchSignal()
        before = owner.create("/live", b"1", ephemeral=True)
        owner.watch("/live", signal)
        signal.mark()
        other.delete("/live")
        signal.wait_for_more()
        assert owner.exists("/live") is None
        with pytest.raises(NoNodeError, match="/live"):
            owner.transaction([Check("/live"), Create("/by-the-evicted")])
        assert SessionEvent.EXPIRED not in events.seen
        again = owner.create("/live", b"2", ephemeral=True)
        assert again.creation_id > before.creation_id
        assert again.ephemeral_owner == before.ephemeral_owner == owner.session_id

    def test_an_ephemeral_path_deleted_and_made_again_in_one_transaction_is_a_new_one(
        self,
        coordination_case: CoordinationUnderTest,
    ) -> None:
        """As a broker replaces the registration that its dead session left behind."""
        dead, mine = coordination_case.open(), coordination_case.open()
        before = dead.create("/live", b"1", ephemeral=True)
        dead.set("/live", b"2")
        mine.transaction([Delete("/live", 1), Create("/live", b"3", ephemeral=True), Check("/live", 0)])
        data, stat = mine.get("/live")
        assert (data, stat.version, stat.ephemeral_owner) == (b"3", 0, mine.session_id)
        assert stat.creation_id > before.creation_id
        assert mine.set("/live", b"4", 0).creation_id == stat.creation_id
        dead.close()
        assert mine.get("/live")[0] == b"4"
        mine.close()
        other = coordination_case.open()
        eventually(lambda: other.exists("/live") is None, "the end of the new session's path")

    def test_an_idle_session_lives_on(self, coordination_case: CoordinationUnderTest) -> None:
        """Heartbeats, not calls, keep it alive: longer than its time-out without a call, while another session
        checks for expired ones."""
        idle, other = coordination_case.open(session_timeout_ms=4000), coordination_case.open(session_timeout_ms=4000)
        events = SessionEvents(idle)
        created = idle.create("/ephemeral", ephemeral=True)
        eventually(_after(6.0), "one and a half time-outs")
        assert SessionEvent.EXPIRED not in events.seen
        assert other.exists("/ephemeral") == created

    def test_a_listener_that_raises_does_not_stop_the_others(
        self, coordination_case: CoordinationUnderTest, caplog: pytest.LogCaptureFixture
    ) -> None:
        coordination = coordination_case.make()

        def fail(event: SessionEvent) -> None:
            raise RuntimeError(f"planted: {event}")

        coordination.on_session(fail)
        events = SessionEvents(coordination)
        coordination.start()
        events.wait_for(SessionEvent.CONNECTED)
        assert "planted" in caplog.text
