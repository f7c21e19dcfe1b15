"""The coordinations that have a server, while it is killed and started again, or away for long, or never there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from klamm.core.interfaces.coordination import (
    CoordinationUnavailableError,
    Create,
    NodeExistsError,
    SessionEvent,
    SessionExpiredError,
    Set,
)
from klamm.plugins.coordination.etcd.server import EtcdServer
from klamm.plugins.coordination.session_shell import UnknownOutcomeError
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klamm.testing.contracts import SessionEvents, WatchSignal
from klammtest.etcd import EtcdCase, needs_etcd
from klammtest.faulty import fault_hook
from klammtest.ports import free_port
from klammtest.waiting import eventually, freeze
from klammtest.zookeeper import CoordinationCase, ZooKeeperCase, found_or_made

SHORT_MS = 3_000
"""A request time-out that a test waits for, in which a busy machine still answers."""


@dataclass(frozen=True)
class Kind:
    """`case`: of a server, with a request time-out in milliseconds, or None for the default."""

    name: str
    server: Callable[[Path, int], Any]
    case: Callable[[Any, int | None], CoordinationCase]
    address: Callable[[Any], str]


ZOOKEEPER = Kind("ZooKeeper", ZooKeeperServer, ZooKeeperCase, attrgetter("connect"))
ETCD = Kind(
    "etcd",
    EtcdServer,
    lambda server, ms: EtcdCase(server, more={} if ms is None else {"etcd.request.timeout.ms": ms}),
    attrgetter("url"),
)


@pytest.fixture(params=[pytest.param(ZOOKEEPER, id="zookeeper"), pytest.param(ETCD, id="etcd", marks=needs_etcd)])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def server(kind: Kind, tmp_path: Path) -> Iterator[Any]:
    """One that the test may kill."""
    with kind.server(tmp_path / "server", free_port()) as server:
        yield server


@pytest.fixture
def case(kind: Kind, server: Any) -> Iterator[CoordinationCase]:
    case = kind.case(server, None)
    yield case
    case.close()


@pytest.fixture
def impatient(kind: Kind, server: Any) -> Iterator[CoordinationCase]:
    case = kind.case(server, SHORT_MS)
    yield case
    case.close()


def test_a_killed_server_comes_back_with_everything(server: Any, case: CoordinationCase) -> None:
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


def test_watches_come_back_with_the_server(server: Any, impatient: CoordinationCase) -> None:
    """After a reconnect every watch fires, and goes on; one that was set meanwhile too."""
    coordination = impatient.open(session_timeout_ms=20_000)
    events = SessionEvents(coordination)
    coordination.create("/there")
    there, not_there, later = WatchSignal(), WatchSignal(), WatchSignal()
    coordination.watch("/there", there)
    coordination.watch("/not-there", not_there)
    for called in (there, not_there):
        called.mark()
    server.kill()
    events.wait_for(SessionEvent.SUSPENDED)
    coordination.watch("/later", later)
    server.start()
    for called in (there, not_there, later):
        called.wait_for_more()
        called.mark()
    coordination.set("/there", b"new")
    coordination.transaction([Create("/not-there"), Create("/later")])
    for called in (there, not_there, later):
        called.wait_for_more()


def test_a_call_waits_for_the_server_to_come_back(server: Any, case: CoordinationCase) -> None:
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


def test_a_connection_that_is_never_answered_does_not_cost_the_session(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path, free_port()) as server:
        _survives_silence(server)


def _survives_silence(server: ZooKeeperServer) -> None:
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


def test_calls_fail_in_one_line_while_the_server_is_away(kind: Kind, server: Any, impatient: CoordinationCase) -> None:
    coordination = impatient.open(session_timeout_ms=20_000)
    events = SessionEvents(coordination)
    server.kill()
    events.wait_for(SessionEvent.SUSPENDED)
    unreachable = rf"{kind.name} at {kind.address(server)} was unreachable"
    for call in (lambda: coordination.get("/"), lambda: coordination.transaction([Create("/a")])):
        with pytest.raises(CoordinationUnavailableError, match=unreachable) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert not isinstance(caught.value, UnknownOutcomeError)
    server.start()
    events.wait_for(SessionEvent.CONNECTED)
    assert coordination.children("/") == []


def test_a_session_that_ended_while_the_server_was_away(server: Any, case: CoordinationCase) -> None:
    """A restarted ZooKeeper gives every session a whole time-out, so the session is ended from outside."""
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


def test_an_ephemeral_create_whose_answer_was_lost_is_known_as_own(case: CoordinationCase) -> None:
    coordination, other = case.open(), case.open()
    loses = LosesAnswers(1)
    with fault_hook(loses):
        stat = coordination.create("/ephemeral", b"mine", ephemeral=True)
    assert stat.ephemeral_owner == coordination.session_id
    assert loses.lost == 0
    other.create("/taken", ephemeral=True)
    with pytest.raises(NodeExistsError):
        coordination.create("/taken", ephemeral=True)


def test_other_writes_whose_answer_was_lost_are_unknown(case: CoordinationCase) -> None:
    coordination = case.open()
    with fault_hook(LosesAnswers(3)):
        with pytest.raises(CoordinationUnavailableError):
            coordination.create("/a")
        with pytest.raises(CoordinationUnavailableError):
            coordination.set("/a", b"1")
        with pytest.raises(CoordinationUnavailableError):
            coordination.transaction([Set("/a", b"2", 1)])
    assert coordination.get("/a")[0] == b"2"


class _AtWrite:
    """A fault hook that freezes a process once, before the next write is sent."""

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    def __call__(self, point: str) -> None:
        if point == "coordination.write" and self._pid is not None:
            freeze(self._pid)
            self._pid = None


def test_a_frozen_server_answers_nobody(server: Any, impatient: CoordinationCase) -> None:
    """The write was sent: whether it is carried out stays unknown."""
    coordination = impatient.open(session_timeout_ms=20_000)
    try:
        with fault_hook(_AtWrite(server.pid)), pytest.raises(UnknownOutcomeError, match="may or may not"):
            coordination.create("/a")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    eventually(lambda: found_or_made(coordination, "/a"), "the write, late or made again")


def test_no_server_at_start_says_where_and_what_to_do(kind: Kind, tmp_path: Path) -> None:
    server = kind.server(tmp_path, free_port())
    coordination = kind.case(server, None).make()
    with pytest.raises(CoordinationUnavailableError) as caught:
        coordination.start(timeout_s=0.3)
    assert kind.address(server) in str(caught.value)
    assert f"`klamm {kind.name.lower()}`" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert coordination.session_id == 0
    server.start()
    try:
        coordination.start()
        assert coordination.children("/") == []
        coordination.close()
    finally:
        server.stop()
