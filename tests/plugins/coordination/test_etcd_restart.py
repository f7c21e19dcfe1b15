"""The `etcd` coordination while its server is killed and started again, frozen, cut off, or never there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from klamm.core.interfaces.coordination import (
    Coordination,
    CoordinationUnavailableError,
    Create,
    SessionEvent,
    SessionExpiredError,
    Set,
)
from klamm.plugins.coordination.etcd.gateway import EtcdGateway, EtcdStream
from klamm.plugins.coordination.etcd.nodes import Request
from klamm.plugins.coordination.etcd.server import EtcdServer
from klamm.plugins.coordination.etcd.session import EtcdSession
from klamm.plugins.coordination.etcd.watches import EtcdWatches
from klamm.plugins.coordination.session_shell import UnknownOutcomeError
from klamm.testing.contracts import SessionEvents, WatchSignal
from klammtest.etcd import EtcdCase, etcd_cluster, needs_etcd
from klammtest.ports import free_port
from klammtest.proxies.tcp import Link, TcpProxy
from klammtest.waiting import PATIENCE_S, eventually, freeze
from klammtest.zookeeper import found_or_made

pytestmark = needs_etcd


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """One that the test may kill."""
    with EtcdServer(tmp_path / "etcd", free_port()) as server:
        yield server


@pytest.fixture
def case(server: EtcdServer) -> Iterator[EtcdCase]:
    case = EtcdCase(server)
    yield case
    case.close()


class _HeldLink(Link):
    """Holds each transaction that writes until `let_go`."""

    def __init__(self, held: threading.Event, let_go: threading.Event) -> None:
        self._held, self._let_go = held, let_go

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if b'"request_put"' in piece:
                self._held.set()
                self._let_go.wait(PATIENCE_S)
            yield piece


def test_a_write_that_is_on_the_wire_when_the_session_ends_never_applies(server: EtcdServer) -> None:
    """An expired lease alone would let it pass."""
    held, let_go = threading.Event(), threading.Event()
    direct = EtcdCase(server)
    other = direct.open()
    let_go.set()
    with TcpProxy(free_port(), server.port, lambda: _HeldLink(held, let_go)) as proxy:
        section = direct.section()
        case = EtcdCase(server, f"http://{proxy.bootstrap}", {"etcd.prefix": section["etcd.prefix"]})
        writer = case.open()
        other.create("/state", b"old")
        let_go.clear()
        held.clear()
        failed: list[Exception] = []

        def write() -> None:
            try:
                writer.transaction([Set("/state", b"late", 0), Create("/made")])
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        assert held.wait(PATIENCE_S)
        direct.expire(writer)
        let_go.set()
        thread.join()
        assert [type(error) for error in failed] == [SessionExpiredError]
        assert other.get("/state")[0] == b"old"
        assert other.children("/") == ["state"]
        case.close()
    direct.close()


class _AnswerLostLink(Link):
    """Cuts the connection instead of answering to a transaction that writes, while `losing` is set."""

    def __init__(self, losing: threading.Event) -> None:
        self._losing = losing
        self._written = False

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._written = self._losing.is_set() and b'"request_put"' in piece
            yield piece

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            if self._written:
                raise OSError("planted: the answer is lost")
            yield piece


def test_a_write_whose_answer_was_lost_on_the_wire_is_found_by_reading(server: EtcdServer) -> None:
    losing = threading.Event()
    with TcpProxy(free_port(), server.port, lambda: _AnswerLostLink(losing)) as proxy:
        case = EtcdCase(server, f"http://{proxy.bootstrap}")
        coordination = case.open()
        losing.set()
        writes: list[Callable[[], object]] = [
            lambda: coordination.create("/a"),
            lambda: coordination.set("/a", b"1"),
            lambda: coordination.transaction([Set("/a", b"2", 1)]),
        ]
        for write in writes:
            with pytest.raises(UnknownOutcomeError, match="may or may not"):
                write()
        losing.clear()
        data, stat = coordination.get("/a")
        assert (data, stat.version) == (b"2", 2)
        case.close()


def test_a_client_that_is_cut_off_loses_its_session_and_learns_of_it(server: EtcdServer) -> None:
    """Nobody revokes the lease: it ends by time."""
    direct = EtcdCase(server)
    other = direct.open()
    proxy = TcpProxy(free_port(), server.port)
    with proxy:
        section = direct.section()
        case = EtcdCase(server, f"http://{proxy.bootstrap}", {"etcd.prefix": section["etcd.prefix"]})
        coordination = case.open(session_timeout_ms=6_000)
        events = SessionEvents(coordination)
        coordination.create("/ephemeral", ephemeral=True)
    events.wait_for(SessionEvent.SUSPENDED)
    eventually(lambda: other.exists("/ephemeral") is None, "the end of the session by time")
    assert SessionEvent.EXPIRED not in events.seen
    with TcpProxy(proxy.port, server.port):
        events.wait_for(SessionEvent.EXPIRED)
        assert SessionEvent.CONNECTED not in events.seen[-2:]
        coordination.restart()
        assert coordination.create("/ephemeral", ephemeral=True).ephemeral_owner == coordination.session_id
        case.close()
    direct.close()


@pytest.mark.parametrize("before", ["session", "size of transactions"])
def test_a_session_that_ends_before_it_is_open_is_followed_by_another(
    case: EtcdCase, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """So it is on a machine that is too busy for some seconds: the lease ends before a request of the start, and while
    there is no stream of changes.
    """
    call, open_stream = EtcdGateway.call, EtcdGateway.open_stream
    leases: list[str] = []

    def ends_first(gateway: EtcdGateway, method: str, body: Request, what: str, **more: Any) -> dict[str, Any]:
        if method == "kv/txn" and what == before and len(leases) == 1:
            call(gateway, "lease/revoke", {"ID": leases[0]}, "the test")
        answer = call(gateway, method, body, what, **more)
        if method == "lease/grant":
            leases.append(answer["ID"])
        return answer

    def opens_later(gateway: EtcdGateway, *arguments: Any) -> EtcdStream:
        if len(leases) == 1:
            raise CoordinationUnavailableError("planted: no stream")
        return open_stream(gateway, *arguments)

    monkeypatch.setattr(EtcdGateway, "call", ends_first)
    monkeypatch.setattr(EtcdGateway, "open_stream", opens_later)
    coordination = case.make(session_timeout_ms=6_000)
    events = SessionEvents(coordination)
    coordination.start(timeout_s=PATIENCE_S)
    assert [int(lease) for lease in leases[1:]] == [coordination.session_id]
    assert events.seen == [SessionEvent.CONNECTED]
    coordination.create("/ephemeral", ephemeral=True)


def test_sessions_that_end_again_and_again_before_they_are_open_are_one_line(
    case: EtcdCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = EtcdGateway.call

    def ends_first(gateway: EtcdGateway, method: str, body: Request, what: str, **more: Any) -> dict[str, Any]:
        answer = call(gateway, method, body, what, **more)
        if method == "lease/grant":
            call(gateway, "lease/revoke", {"ID": answer["ID"]}, "the test")
        return answer

    monkeypatch.setattr(EtcdGateway, "call", ends_first)
    with pytest.raises(SessionExpiredError, match=r"too busy for `etcd\.session\.timeout\.ms`") as caught:
        case.make().start(timeout_s=3.0)
    assert "\n" not in str(caught.value)


def test_a_cluster_of_three_survives_its_leader(tmp_path: Path) -> None:
    """Also the member that the client uses is killed in turn: the next one is asked."""
    with etcd_cluster(tmp_path) as servers:
        case = EtcdCase(servers[0], ",".join(server.url for server in servers))
        coordination, other = case.open(session_timeout_ms=20_000), case.open(session_timeout_ms=20_000)
        events, signal_ = SessionEvents(coordination), WatchSignal()
        ephemeral = coordination.create("/ephemeral", b"mine", ephemeral=True)
        coordination.watch("/a", signal_)
        for number, server in enumerate(servers):
            server.kill()
            # A write may be answered by nobody while the members elect: it is found, or made again.
            eventually(partial(found_or_made, coordination, f"/{number}"), "a write without a member")
            server.start()
        signal_.mark()
        eventually(lambda: found_or_made(other, "/a"), "a write of another")
        signal_.wait_for_more()
        assert coordination.get("/ephemeral") == (b"mine", ephemeral)
        assert coordination.children("/") == ["0", "1", "2", "a", "ephemeral"]
        assert SessionEvent.EXPIRED not in events.seen
        case.close()


def test_watches_leave_a_member_that_is_frozen(tmp_path: Path) -> None:
    """It keeps its connections, so nothing ends the stream of changes but the keep-alive that it does not answer."""
    with etcd_cluster(tmp_path) as servers:
        addresses = [server.url for server in servers]
        case = EtcdCase(servers[0], ",".join(addresses))
        coordination = case.open(session_timeout_ms=10_000)
        events, called = SessionEvents(coordination), WatchSignal()
        coordination.create("/a")
        coordination.watch("/a", called)
        pid = servers[0].pid
        assert pid is not None
        freeze(pid)
        try:
            others = {**case.section(), "etcd.endpoints": ",".join(addresses[1:])}
            other = EtcdCase(servers[1], more={key: others[key] for key in ("etcd.endpoints", "etcd.prefix")})
            writer = other.open()
            events.wait_for(SessionEvent.CONNECTED)  # after SUSPENDED
            called.mark()
            eventually(partial(_is_set, writer, "/a"), "a write of another")
            called.wait_for_more()
            assert events.seen[0] is SessionEvent.SUSPENDED
            assert SessionEvent.EXPIRED not in events.seen
            other.close()
        finally:
            os.kill(pid, signal.SIGCONT)
        case.close()


def _is_set(coordination: Coordination, path: str) -> bool:
    try:
        coordination.set(path, b"by another")
    except CoordinationUnavailableError:
        return False
    return True


def test_a_transaction_finds_a_renewed_session(case: EtcdCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction does not renew etcd's lease: the session is renewed before one where its thread is late."""
    monkeypatch.setattr(EtcdSession, "_run", lambda session: session._set(streaming=True))
    coordination = case.open(session_timeout_ms=10_000)
    for number in range(3):
        time.sleep(4)  # without a keep-alive the lease would end after 10 to 10.5 s
        coordination.create(f"/node-{number}", b"")


def test_watches_go_on_after_a_change_that_cannot_be_read(
    case: EtcdCase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    coordination = case.open(session_timeout_ms=20_000)
    events, fired = SessionEvents(coordination), WatchSignal()
    coordination.create("/a")
    coordination.watch("/a", fired)
    fired.mark()

    def fail_once(*_: object) -> NoReturn:
        monkeypatch.undo()
        raise ValueError("planted")

    monkeypatch.setattr(EtcdWatches, "_dispatch", fail_once)
    coordination.set("/a", b"1")
    fired.wait_for_more()
    fired.mark()
    coordination.set("/a", b"2")
    fired.wait_for_more()
    events.wait_for(SessionEvent.CONNECTED)
    assert "the stream of changes is opened again: planted" in caplog.text
