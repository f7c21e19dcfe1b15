"""Accepting connections: a few per round of the event loop, at a limited rate, and not without descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from klamm.core.broker.network import file_descriptors as descriptors
from klamm.core.broker.network.acceptor import Acceptor
from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.server import Broker
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.core.transport.interface import Transport, TransportHandler
from klamm.core.transport.plaintext_transport import accept_plaintext
from klammtest.waiting import PATIENCE_S, until


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Guest(TransportHandler):
    """Tells who has been connected, and nothing else."""

    def __init__(self, inside: list[Transport]) -> None:
        self._inside = inside

    def connected(self, transport: Transport) -> None:
        self._inside.append(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(bytearray(100))


class AcceptorUnderTest:
    """A listening socket, its acceptor, and who has come in."""

    def __init__(self, limits: Limits, clock: Clock, listening: socket.socket | None = None) -> None:
        self.connections = Connections(limits, clock=clock)
        self.listening = listening or socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listening.setblocking(False)
        self.accepted: list[socket.socket] = []
        self.inside: list[Transport] = []
        self.acceptor = Acceptor(self.listening, self.connections, lambda: Guest(self.inside), self._accept)

    async def _accept(self, accepted: socket.socket, make_handler: Callable[[], TransportHandler]) -> None:
        self.accepted.append(accepted)
        await accept_plaintext(accepted, make_handler)

    def connect(self, count: int) -> list[socket.socket]:
        return [socket.create_connection(self.listening.getsockname(), PATIENCE_S) for _ in range(count)]

    def close(self) -> None:
        self.acceptor.stop()
        self.listening.close()
        for transport in self.inside:
            transport.abort()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_burst_comes_in_over_several_turns(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        under_test = AcceptorUnderTest(Limits(), Clock())
        clients = under_test.connect(20)
        under_test.acceptor._ready()
        assert len(under_test.acceptor._entering) == 8, "the others have their turn in between"
        under_test.acceptor.start()
        await until(lambda: len(under_test.inside) == 20)
        assert under_test.accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        under_test.close()
        for client in clients:
            client.close()

    run(test)
    assert not caplog.records


def test_over_the_rate_connections_wait_outside(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        clock = Clock()
        under_test = AcceptorUnderTest(Limits(creation_rate=3), clock)
        clients = under_test.connect(5)
        under_test.acceptor.start()
        await until(lambda: len(under_test.inside) == 3)
        await until(lambda: under_test.connections.metrics.connections_throttled > 0)
        assert len(under_test.inside) == 3
        clock.now += 1
        await until(lambda: len(under_test.inside) == 5)
        under_test.close()
        for client in clients:
            client.close()

    run(test)
    assert "new connections wait: max.connection.creation.rate=3 is reached" in caplog.text


class Exhausted(socket.socket):
    """Has no descriptor for the first that comes, and finds the second gone."""

    errors = [errno.EMFILE, errno.ECONNABORTED]  # noqa: RUF012 - of the one that there is

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            code = self.errors.pop(0)
            raise OSError(code, os.strerror(code))
        return super().accept()


def test_without_descriptors_connections_wait_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        listening = Exhausted()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        under_test = AcceptorUnderTest(Limits(), Clock(), listening)
        clients = under_test.connect(2)
        under_test.acceptor.start()
        await until(lambda: len(under_test.inside) == 2)
        assert under_test.connections.metrics.connections_throttled == 1
        under_test.close()
        for client in clients:
            client.close()

    run(test)
    assert "new connections wait: Too many open files; raise the limit of open files" in caplog.text


def test_connections_leave_descriptors_for_the_rest() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert descriptors.for_connections() < hard or hard == resource.RLIM_INFINITY


def test_a_security_protocol_that_is_not_served_is_refused_at_start(tmp_path: Path) -> None:
    async def test() -> None:
        keys = {
            "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:SASL_SSL,UNUSED:SSL",
            "log.dirs": str(tmp_path / "data"),
        }
        line = r"listener.security.protocol.map: INSIDE:SASL_SSL is not served; give the listener PLAINTEXT"
        with pytest.raises(ConfigError, match=line):
            await Broker(load_settings({"broker": keys})).start()

    run(test)
