"""The `zookeeper` coordination while its server is killed and started again, or away for long, or never there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.core.interfaces.coordination import (
    CoordinationUnavailableError,
    Create,
    NodeExistsError,
    SessionEvent,
    SessionExpiredError,
    Set,
)
from klamm.plugins.coordination.unknown_outcome import UnknownOutcomeError
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klamm.testing.contracts import SessionEvents, WatchSignal
from klammtest.faulty import fault_hook
from klammtest.ports import free_port
from klammtest.waiting import eventually, freeze
from klammtest.zookeeper import ZooKeeperCase


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """One that the test may kill."""
    with ZooKeeperServer(tmp_path / "zookeeper", free_port()) as server:
        yield server


@pytest.fixture
def case(server: ZooKeeperServer) -> Iterator[ZooKeeperCase]:
    case = ZooKeeperCase(server)
    yield case
    case.close()


def test_a_killed_server_comes_back_with_everything(server: ZooKeeperServer, case: ZooKeeperCase) -> None:
    coordination = case.open(session_timeout_ms=20_000)
    events = SessionEvents(coordination)
    session_id = coordination.session_id
    coordination.create("/persistent", b"data")
    ephemeral = coordination.create("/ephemeral", b"mine", ephemeral=True)
    server.kill()
    events.wait_for(SessionEvent.SUSPENDED)
    assert coordination.session_id == session_id
    server.start()
    events.wait_for(SessionEvent.CONNECTED)
    assert events.seen == [SessionEvent.SUSPENDED, SessionEvent.CONNECTED]
    assert coordination.session_id == session_id
    assert coordination.get("/persistent")[0] == b"data"
    assert coordination.get("/ephemeral") == (b"mine", ephemeral)
    assert coordination.create("/later").creation_id > ephemeral.creation_id


def test_watches_come_back_with_the_server(server: ZooKeeperServer, case: ZooKeeperCase) -> None:
    """After a reconnect every watch fires, and goes on."""
    coordination = case.open(session_timeout_ms=20_000)
    coordination.create("/there")
    there, not_there = WatchSignal(), WatchSignal()
    coordination.watch("/there", there)
    coordination.watch("/not-there", not_there)
    for called in (there, not_there):
        called.mark()
    server.kill()
    server.start()
    for called in (there, not_there):
        called.wait_for_more()
        called.mark()
    coordination.set("/there", b"new")
    coordination.create("/not-there")
    for called in (there, not_there):
        called.wait_for_more()


def test_a_watch_set_while_the_server_is_away(server: ZooKeeperServer, case: ZooKeeperCase) -> None:
    coordination = ZooKeeperCase(server, request_timeout_ms=2000).open(session_timeout_ms=20_000)
    events = SessionEvents(coordination)
    server.kill()
    events.wait_for(SessionEvent.SUSPENDED)
    called = WatchSignal()
    coordination.watch("/a", called)
    server.start()
    called.wait_for_more()
    called.mark()
    coordination.create("/a")
    called.wait_for_more()
    coordination.close()


def test_a_call_waits_for_the_server_to_come_back(server: ZooKeeperServer, case: ZooKeeperCase) -> None:
    coordination = case.open(session_timeout_ms=20_000)
    events = SessionEvents(coordination)
    server.kill()
    events.wait_for(SessionEvent.SUSPENDED)
    starter = threading.Thread(target=server.start)
    starter.start()
    assert coordination.create("/a", b"1", ephemeral=True).ephemeral_owner == coordination.session_id
    starter.join()


class _Mute:
    """Accepts connections, as a starting server does, and never says a word."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._accept)
        self.accepted: list[socket.socket] = []
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.accepted.append(self._listening.accept()[0])

    def close(self) -> None:
        """The listener first; those accepted stay open, and silent, to the end."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


def test_a_connection_that_is_never_answered_does_not_cost_the_session(server: ZooKeeperServer) -> None:
    case = ZooKeeperCase(server)
    coordination = case.open(session_timeout_ms=12_000)
    events = SessionEvents(coordination)
    coordination.create("/ephemeral", ephemeral=True)
    server.kill()
    mute = _Mute(server.port)
    eventually(lambda: len(mute.accepted) > 1, "a second try within the session's time-out", limit_s=11)
    mute.close()
    server.start()
    events.wait_for(SessionEvent.CONNECTED)
    assert SessionEvent.EXPIRED not in events.seen
    assert coordination.exists("/ephemeral") is not None
    case.close()
    for connection in mute.accepted:
        connection.close()


def test_calls_fail_in_one_line_while_the_server_is_away(server: ZooKeeperServer) -> None:
    case = ZooKeeperCase(server, request_timeout_ms=1500)
    coordination = case.open(session_timeout_ms=20_000)
    events = SessionEvents(coordination)
    server.kill()
    events.wait_for(SessionEvent.SUSPENDED)
    for call in (lambda: coordination.get("/"), lambda: coordination.transaction([Create("/a")])):
        with pytest.raises(
            CoordinationUnavailableError, match=rf"ZooKeeper at {server.connect} was unreachable"
        ) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, UnknownOutcomeError)
    server.start()
    events.wait_for(SessionEvent.CONNECTED)
    assert coordination.children("/") == []
    case.close()


def test_a_server_away_for_longer_than_the_session(server: ZooKeeperServer, case: ZooKeeperCase) -> None:
    """A restarted server gives every session a whole time-out, so the session is ended from outside meanwhile."""
    coordination, other = case.open(20_000), case.open(20_000)
    events = SessionEvents(coordination)
    coordination.create("/ephemeral", ephemeral=True)
    case.expire(coordination)
    events.wait_for(SessionEvent.EXPIRED)
    assert events.seen[-1] is SessionEvent.EXPIRED
    server.restart()
    with pytest.raises(SessionExpiredError):
        coordination.get("/")
    coordination.restart()
    assert coordination.exists("/ephemeral") is None
    assert other.exists("/") is not None


class LosesAnswers:
    """A fault hook: the next writes are carried out, and their answers are lost."""

    def __init__(self, lost: int) -> None:
        self.lost = lost

    def __call__(self, point: str) -> None:
        if self.lost and point == "coordination.answered":
            self.lost -= 1
            raise UnknownOutcomeError("planted")


def test_an_ephemeral_create_whose_answer_was_lost_is_known_as_own(case: ZooKeeperCase) -> None:
    coordination, other = case.open(), case.open()
    loses = LosesAnswers(1)
    with fault_hook(loses):
        stat = coordination.create("/ephemeral", b"mine", ephemeral=True)
    assert stat.ephemeral_owner == coordination.session_id
    assert loses.lost == 0
    other.create("/taken", ephemeral=True)
    with pytest.raises(NodeExistsError):
        coordination.create("/taken", ephemeral=True)


def test_other_writes_whose_answer_was_lost_are_unknown(case: ZooKeeperCase) -> None:
    coordination = case.open()
    with fault_hook(LosesAnswers(3)):
        with pytest.raises(CoordinationUnavailableError):
            coordination.create("/a")
        with pytest.raises(CoordinationUnavailableError):
            coordination.set("/a", b"1")
        with pytest.raises(CoordinationUnavailableError):
            coordination.transaction([Set("/a", b"2")])
    assert coordination.get("/a")[0] == b"2"


def test_a_frozen_server_answers_nobody(server: ZooKeeperServer) -> None:
    """The request was sent: whether it is carried out stays unknown."""
    case = ZooKeeperCase(server, request_timeout_ms=500)
    coordination = case.open(session_timeout_ms=20_000)
    assert server.pid is not None
    freeze(server.pid)
    try:
        with pytest.raises(UnknownOutcomeError, match="may or may not"):
            coordination.create("/a")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    eventually(lambda: coordination.exists("/a") is not None, "the late write")
    case.close()


def test_no_server_at_start_says_where_and_what_to_do(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, free_port())
    coordination = ZooKeeperCase(server).make()
    with pytest.raises(CoordinationUnavailableError) as caught:
        coordination.start(timeout_s=0.3)
    assert server.connect in str(caught.value)
    assert "`klamm zookeeper`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert coordination.session_id == 0
    server.start()
    try:
        coordination.start()
        assert coordination.children("/") == []
        coordination.close()
    finally:
        server.stop()
