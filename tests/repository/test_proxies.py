"""The proxies that tests put between a client and its server."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from klammtest.ports import free_port
from klammtest.proxies.lost_answers import AnswerLostProxy, holding
from klammtest.proxies.produce import PRODUCE, ProduceProxy, Wrong, sink_of
from klammtest.proxies.tcp import Link, TcpProxy
from klammtest.wire import framed, frames

LIMIT_S = 60.0
FETCH = 1


class Server(socketserver.ThreadingTCPServer):
    """Keeps the frames that it receives; answers each with its correlation id and its body while `answers` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.answers = threading.Event()
        self.answers.set()
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class Answer(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        for frame in frames(iter(lambda: self.request.recv(7), b"")):
            self.server.frames.append(frame)
            self.server.answers.wait(LIMIT_S)
            self.request.sendall(framed(frame[4:]))


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._answers = frames(iter(lambda: self.socket.recv(1 << 16), b""))

    def send(self, correlation: int, body: bytes = b"", api: int = PRODUCE) -> None:
        self.socket.sendall(framed(struct.pack(">hhi", api, 9, correlation) + body))

    def answer(self) -> bytes | None:
        """The body behind the correlation id; None when the connection was closed."""
        try:
            return next((frame[4:] for frame in self._answers), None)
        except ConnectionError:
            return None

    def call(self, correlation: int, body: bytes = b"", api: int = PRODUCE) -> bytes | None:
        self.send(correlation, body, api)
        return self.answer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        serving = threading.Thread(target=running.serve_forever, args=(0.01,))
        serving.start()
        yield running
        running.answers.set()
        running.shutdown()
        serving.join()


def test_bytes_pass_both_ways(server: Server) -> None:
    with TcpProxy(free_port(), server.port) as proxy, Client(proxy.port) as one, Client(proxy.port) as other:
        large = bytes(range(256)) * 4_096
        assert one.call(1, large) == large
        assert other.call(2, b"x") == b"x"
        assert one.call(3, b"y") == b"y"


def test_the_end_of_a_proxy_is_the_end_of_its_connections(server: Server) -> None:
    with TcpProxy(free_port(), server.port) as proxy:
        client = Client(proxy.port)
        assert client.call(1, b"x") == b"x"
    with client:
        assert client.answer() is None
    with pytest.raises(ConnectionRefusedError):
        Client(proxy.port)


def test_a_client_is_closed_where_no_server_is() -> None:
    with TcpProxy(free_port(), free_port()) as proxy, Client(proxy.port) as client:
        assert client.answer() is None


def test_a_link_changes_and_ends_what_passes(server: Server) -> None:
    class Upper(Link):
        ended: ClassVar[threading.Event] = threading.Event()

        def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
            for body in frames(pieces):
                yield framed(body.upper())

        def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
            for body in frames(pieces):
                if body.endswith(b"END"):
                    return
                yield framed(body)

        def closed(self) -> None:
            self.ended.set()

    with TcpProxy(free_port(), server.port, Upper) as proxy, Client(proxy.port) as client:
        assert client.call(1, b"abc") == b"ABC"
        assert client.call(2, b"end") is None
        assert Upper.ended.wait(LIMIT_S)


def test_unanswered_produce_requests_are_counted(server: Server) -> None:
    with ProduceProxy(free_port(), server.port) as proxy, Client(proxy.port) as client:
        assert client.call(1, b"x") == b"x"
        assert proxy.in_flight == 0
        server.answers.clear()
        client.send(2)
        client.send(3, api=FETCH)
        client.send(4)
        while proxy.in_flight < 2:
            assert len(server.frames) < 5
        server.answers.set()
        assert [client.answer() for _ in range(3)] == [b"", b"", b""]
        assert proxy.in_flight == 0


def test_a_topics_produce_requests_are_spoiled(server: Server) -> None:
    decisions = iter([Wrong.ELSEWHERE, Wrong.LOST, Wrong.NOTHING, Wrong.UNANSWERED])
    request, elsewhere = b"\x08flightsX", b"\x08" + sink_of("flights").encode() + b"X"
    with ProduceProxy(free_port(), server.port) as proxy, Client(proxy.port) as client:
        proxy.spoil("flights", lambda: next(decisions))
        assert client.call(1, request) == request, "the answer is for the topic that was asked"
        client.send(2, request)
        assert client.call(3, request) == request
        assert client.call(4, b"\x06tripsX") == b"\x06tripsX"
        assert client.call(5, request) is None
        assert [frame[8:] for frame in server.frames] == [elsewhere, request, b"\x06tripsX", request]
        proxy.leave("flights")
        with Client(proxy.port) as again:
            assert again.call(6, request) == request


def test_a_call_is_lost_once_with_its_answer(server: Server) -> None:
    with AnswerLostProxy(server.port, holding(b"rename2")) as proxy:
        with Client(proxy.port) as client:
            assert client.call(1, b"mkdirs") == b"mkdirs"
            assert client.call(2, b"rename2") is None
            assert proxy.lost == 1
        with Client(proxy.port) as client:
            assert client.call(3, b"rename2") == b"rename2"
        assert [frame[8:] for frame in server.frames] == [b"mkdirs", b"rename2", b"rename2"]


def test_a_call_is_lost_on_its_way(server: Server) -> None:
    events: list[str] = []
    with AnswerLostProxy(server.port, holding(b"rename2"), armed=False) as proxy:
        proxy.arm(passes=False, before=lambda: events.append("before"), after=lambda: events.append("after"))
        with Client(proxy.port) as client:
            assert client.call(1, b"rename2") is None
        assert events == ["before", "after"]
        assert proxy.lost == 1
        assert server.frames == []
