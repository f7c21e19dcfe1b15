"""A session of ZooKeeper on a connection that is not as it should be."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SystemZookeeperError, UnknownSessionError
from kazoo.exceptions import SessionExpiredError as ExpiredAnswer
from kazoo.protocol.serialization import MultiHeader

from klamm.core.interfaces.coordination import Check, SessionEvent
from klamm.plugin import CoordinationUnavailableError, SessionExpiredError
from klamm.plugins.coordination.zookeeper.config import ZooKeeperConfig
from klamm.plugins.coordination.zookeeper.coordination import ZooKeeperCoordination
from klamm.plugins.coordination.zookeeper.kazoo_session import _drop_out_of_order
from klamm.plugins.coordination.zookeeper.server import ZooKeeperServer
from klamm.plugins.coordination.zookeeper.watches import _WatchedPath
from klamm.testing.contracts import SessionEvents, WatchSignal
from klammtest.ports import free_port
from klammtest.proxies.tcp import Link, TcpProxy
from klammtest.waiting import eventually

_LENGTH = struct.Struct(">i")


_XID, _ERROR = struct.Struct(">i"), struct.Struct(">i")
_XID_AT, _ERROR_AT = 4, 16
"""Where a response has the number of its request, which is negative for watches and pings, and its error code."""


class ChangedAnswer(Link):
    """Sends, after `due` is set, what `change` makes of the next response to a request."""

    def __init__(self, due: threading.Event, change: Callable[[bytes], bytes]) -> None:
        self._due = due
        self._change = change

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        kept = b""
        for piece in pieces:
            kept += piece
            while len(kept) >= _LENGTH.size and len(kept) >= (size := _LENGTH.size + _LENGTH.unpack_from(kept)[0]):
                answer, kept = kept[:size], kept[size:]
                if self._due.is_set() and _XID.unpack_from(answer, _XID_AT)[0] > 0:
                    self._due.clear()
                    answer = self._change(answer)
                yield answer


def skipped(_: bytes) -> bytes:
    return b""


def refused(code: int) -> Callable[[bytes], bytes]:
    """Returns the change that makes an answer an error without a result."""

    def change(answer: bytes) -> bytes:
        header = answer[_LENGTH.size : _ERROR_AT] + _ERROR.pack(code)
        return _LENGTH.pack(len(header)) + header

    return change


@pytest.mark.parametrize("write", [True, False], ids=["a write", "a read"])
def test_a_session_outlives_a_response_that_is_missing(zookeeper_server: ZooKeeperServer, write: bool) -> None:
    """The next response ends the connection: a write may have been carried out, a read is sent again."""
    skip = threading.Event()
    with TcpProxy(free_port(), zookeeper_server.port, lambda: ChangedAnswer(skip, skipped)) as proxy:
        coordination = ZooKeeperCoordination(
            ZooKeeperConfig.model_validate({"zookeeper.connect": f"{proxy.bootstrap}/klamm-test/skipped-{write}"})
        )
        events = SessionEvents(coordination)
        coordination.start()
        try:
            session = coordination.session_id
            coordination.create("/a", b"1")
            other = threading.Thread(target=lambda: coordination.exists("/a"))
            skip.set()
            other_sent = threading.Timer(0.3, other.start)
            other_sent.start()
            if write:
                with pytest.raises(CoordinationUnavailableError, match="may or may not have been carried out"):
                    coordination.set("/a", b"2")
            else:
                assert coordination.get("/a")[0] == b"1"
            other_sent.join()
            other.join()
            assert coordination.get("/a")[0] == (b"2" if write else b"1")
            assert coordination.session_id == session
            assert SessionEvent.EXPIRED not in events.seen
        finally:
            coordination.close()


def refused_operation(answer: bytes) -> bytes:
    """Changes the answer to a transaction of one operation: the leader has ended the session."""
    code = ExpiredAnswer.code
    result = MultiHeader(-1, False, code).serialize() + _ERROR.pack(code) + MultiHeader(-1, True, -1).serialize()
    changed = answer[_LENGTH.size : _ERROR_AT + _ERROR.size] + result
    return _LENGTH.pack(len(changed)) + changed


@contextmanager
def behind_a_proxy(
    server: ZooKeeperServer, due: threading.Event, code: int, *, operation: bool = False, timeout_ms: int = 30_000
) -> Iterator[ZooKeeperCoordination]:
    """Yields a started coordination, which asks nothing by itself for `timeout_ms`. After `due` is set the next
    response is an error with this code, or with `operation` one of a transaction."""
    change = refused_operation if operation else refused(code)
    with TcpProxy(free_port(), server.port, lambda: ChangedAnswer(due, change)) as proxy:
        config = {"zookeeper.connect": f"{proxy.bootstrap}/klamm-test/refused{code}"}
        config["zookeeper.session.timeout.ms"] = str(timeout_ms)
        coordination = ZooKeeperCoordination(ZooKeeperConfig.model_validate(config))
        coordination.start()
        try:
            yield coordination
        finally:
            coordination.close()


@pytest.mark.parametrize("code", [UnknownSessionError.code, ExpiredAnswer.code])
def test_a_session_that_the_server_does_not_know_any_more_is_over(zookeeper_server: ZooKeeperServer, code: int) -> None:
    """The server answers so when it has removed the session and not closed the connection, which it may never do."""
    due = threading.Event()
    with behind_a_proxy(zookeeper_server, due, code) as coordination:
        events = SessionEvents(coordination)
        due.set()
        with pytest.raises(SessionExpiredError, match="the session has expired"):
            coordination.exists("/a")
        events.wait_for(SessionEvent.EXPIRED)
        assert coordination.session_id == 0
        coordination.restart()
        assert coordination.exists("/a") is None


def test_a_session_whose_transaction_finds_it_ended_is_over(zookeeper_server: ZooKeeperServer) -> None:
    """Each operation of a transaction has its own answer."""
    due = threading.Event()
    with behind_a_proxy(zookeeper_server, due, ExpiredAnswer.code, operation=True) as coordination:
        events = SessionEvents(coordination)
        coordination.create("/transaction")
        due.set()
        with pytest.raises(SessionExpiredError, match="the session has expired"):
            coordination.transaction([Check("/transaction", 0)])
        events.wait_for(SessionEvent.EXPIRED)


def test_listeners_hear_of_the_end_before_the_next_session(zookeeper_server: ZooKeeperServer) -> None:
    """The listener of one that asks is told on another thread, which may be late."""
    due = threading.Event()
    with behind_a_proxy(zookeeper_server, due, ExpiredAnswer.code) as coordination:
        seen: list[SessionEvent] = []

        def hear(event: SessionEvent) -> None:
            if event is SessionEvent.EXPIRED:
                time.sleep(0.5)
            seen.append(event)

        coordination.on_session(hear)
        due.set()
        with pytest.raises(SessionExpiredError):
            coordination.exists("/a")
        eventually(lambda: coordination.session_id == 0, "the session is over")
        coordination.restart()
        assert seen == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]


@pytest.mark.parametrize("operation", [True, False])
def test_a_session_that_asks_nothing_learns_that_it_is_over(zookeeper_server: ZooKeeperServer, operation: bool) -> None:
    """A follower may answer the pings of a session that its leader has ended."""
    due = threading.Event()
    with behind_a_proxy(
        zookeeper_server, due, ExpiredAnswer.code, operation=operation, timeout_ms=2_000
    ) as coordination:
        events = SessionEvents(coordination)
        due.set()
        events.wait_for(SessionEvent.EXPIRED)


def test_a_session_that_is_alive_stays_so(zookeeper_server: ZooKeeperServer) -> None:
    """Whatever the leader answers to the session's own question, as where its root may not be read."""
    due = threading.Event()
    with behind_a_proxy(zookeeper_server, due, SystemZookeeperError.code, timeout_ms=2_000) as coordination:
        session, events = coordination.session_id, SessionEvents(coordination)
        due.set()
        eventually(lambda: not due.is_set(), "the session has asked")
        assert coordination.exists("/a") is None
        assert coordination.session_id == session
        assert SessionEvent.EXPIRED not in events.seen


def test_watches_go_on_after_one_that_the_server_refused_to_set(
    zookeeper_server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    due, fired = threading.Event(), WatchSignal()
    with behind_a_proxy(zookeeper_server, due, SystemZookeeperError.code) as coordination:
        coordination.create("/a", b"1")
        coordination.watch("/a", fired)
        path = f"127.0.0.1:{zookeeper_server.port}/klamm-test/refused{SystemZookeeperError.code}"
        other = ZooKeeperCoordination(ZooKeeperConfig.model_validate({"zookeeper.connect": path}))
        other.start()
        try:
            fired.mark()
            due.set()
            other.set("/a", b"2")
            fired.wait_for_more()
            fired.mark()
            other.set("/a", b"3")
            fired.wait_for_more()
        finally:
            other.close()
    assert "a watch could not be set, it is tried again" in caplog.text


def test_watches_go_on_after_an_answer_that_cannot_be_read(
    zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fired = WatchSignal()
    with behind_a_proxy(zookeeper_server, threading.Event(), SystemZookeeperError.code) as coordination:
        coordination.create("/b", b"1")
        coordination.watch("/b", fired)
        fired.mark()

        def fail_once(_: object, __: object) -> NoReturn:
            monkeypatch.undo()
            raise struct.error("planted")

        monkeypatch.setattr(_WatchedPath, "arm", fail_once)
        coordination.set("/b", b"2")
        fired.wait_for_more()
    assert "a watch could not be set, it is tried again in 1 s: planted" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("xids do not match"), IndexError("pop from an empty deque")])
def test_a_response_to_no_request_ends_the_connection_not_the_thread(error: Exception) -> None:
    def read_response(*_: object) -> None:
        raise error

    connection = SimpleNamespace(_read_response=read_response)
    _drop_out_of_order(cast(KazooClient, SimpleNamespace(_connection=connection)))
    with pytest.raises(ConnectionDropped, match=str(error)):
        connection._read_response()
