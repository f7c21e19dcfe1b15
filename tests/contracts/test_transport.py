"""The contract of `Transport`, which a connection of the broker runs on: plaintext (asyncio, uvloop), TLS, the fake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from klamm.core.transport.address import Address
from klamm.core.transport.interface import Accept, ByteStream, Dial, Transport, TransportHandler
from klamm.core.transport.plaintext_stream import dial_plaintext
from klamm.core.transport.plaintext_transport import accept_plaintext
from klammtest.fake_transport import UNLIMITED, FakeTransport
from klammtest.tls import accept_tls, dial_tls, self_signed
from klammtest.waiting import PATIENCE_S, until

SOON_S = 0.1
MUCH = 16 * 1024 * 1024
HIGH = 64 * 1024


class Recorder(TransportHandler):
    """Takes note of every call."""

    def __init__(self) -> None:
        self.transport: Transport | None = None
        self.data = bytearray()
        self.updates = 0
        self.ended = self.lost = self.paused = False
        self.keep_open = False
        self._room = bytearray(1000)

    @property
    def open(self) -> Transport:
        assert self.transport is not None
        return self.transport

    def connected(self, transport: Transport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._room)

    def buffer_updated(self, nbytes: int) -> None:
        self.updates += 1
        self.data += self._room[:nbytes]

    def eof_received(self) -> bool:
        self.ended = True
        return self.keep_open

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self.lost
        self.lost = True


class Client:
    """The other end, a client's byte stream with a thread for each call."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        await asyncio.to_thread(self._stream.write_all, data, PATIENCE_S)

    async def receive(self, count: int) -> bytes:
        return await asyncio.to_thread(self._receive, count)

    def _receive(self, count: int) -> bytes:
        buffer = bytearray(count)
        filled = 0
        with contextlib.suppress(ConnectionResetError):
            while filled < count and (more := self._stream.read_into(memoryview(buffer)[filled:], PATIENCE_S)):
                filled += more
        return bytes(buffer[:filled])

    async def end(self) -> None:
        self._stream.close()


class FakeClient:
    def __init__(self, transport: FakeTransport) -> None:
        self._transport = transport
        transport.kernel_room = MUCH // 4

    async def send(self, data: bytes) -> None:
        self._transport.feed(data)

    async def receive(self, count: int) -> bytes:
        found = self._transport.take_written()
        self._transport.kernel_room = UNLIMITED
        self._transport.sent()
        assert len(found) <= count
        return found

    async def end(self) -> None:
        self._transport.feed_end()


Pair = tuple[Recorder, "Client | FakeClient"]


@asynccontextmanager
async def joined(accept: Accept | None, dial: Dial) -> AsyncIterator[Pair]:
    handler = Recorder()
    if accept is None:
        fake = FakeTransport(handler)
        fake.connect()
        yield handler, FakeClient(fake)
        return
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        dialling = loop.create_task(asyncio.to_thread(dial, Address(*listening.getsockname()), PATIENCE_S))
        accepted, _ = await loop.sock_accept(listening)
        accepted.setblocking(False)
        await accept(accepted, lambda: handler)
        stream = await dialling
    try:
        yield handler, Client(stream)
    finally:
        stream.close()
        if not handler.lost:
            handler.open.abort()
            await until(lambda: handler.lost)


CASES = ["plaintext", "plaintext on uvloop", "tls", "tls on uvloop", "fake"]


@pytest.fixture(params=CASES)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Pair], Awaitable[None]]], None]:
    """Runs a test with a connected pair."""
    kind = request.param
    contexts = self_signed(tmp_path) if "tls" in kind else None
    accept = None if kind == "fake" else accept_tls(contexts.server) if contexts else accept_plaintext

    def runner(test: Callable[[Pair], Awaitable[None]]) -> None:
        async def main() -> None:
            async with joined(accept, dial_tls(contexts.client) if contexts else dial_plaintext) as pair:
                await test(pair)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop if "uvloop" in kind else None) as loop:
            loop.run(main())

    return runner


Run = Callable[[Callable[[Pair], Awaitable[None]]], None]


def test_bytes_go_both_ways(run: Run) -> None:
    async def test(pair: Pair) -> None:
        handler, client = pair
        assert handler.open.peer is not None
        assert handler.open.peer[0] == "127.0.0.1"
        data = bytes(range(256)) * 100
        await client.send(data)
        await until(lambda: len(handler.data) == len(data))
        assert handler.data == data
        handler.open.writelines([b"an", bytearray(b"sw"), memoryview(b"er")])
        assert await client.receive(6) == b"answer"

    run(test)


def test_what_the_client_does_not_read_is_counted_and_pauses_writing(run: Run) -> None:
    async def test(pair: Pair) -> None:
        handler, client = pair
        handler.open.writelines([bytes(MUCH)])
        assert handler.paused
        assert handler.open.get_write_buffer_size() > HIGH
        received = await client.receive(MUCH)
        assert received == bytes(MUCH)
        await until(lambda: not handler.paused)
        assert handler.open.get_write_buffer_size() == 0

    run(test)


def test_nothing_is_delivered_while_reading_is_paused_and_input_is_expected(run: Run) -> None:
    async def test(pair: Pair) -> None:
        handler, client = pair
        await client.send(b"first")
        await until(lambda: handler.data == b"first")
        assert not handler.open.expects_input()
        handler.open.pause_reading()
        await client.send(b"second")
        await asyncio.sleep(SOON_S)
        assert handler.data == b"first"
        assert handler.open.expects_input()
        handler.open.resume_reading()
        if isinstance(client, FakeClient):
            await client.send(b"")
        await until(lambda: handler.data == b"firstsecond")
        assert not handler.open.expects_input()

    run(test)


def test_a_handler_that_is_done_closes_at_the_end_of_the_input(run: Run) -> None:
    async def test(pair: Pair) -> None:
        handler, client = pair
        await client.send(b"last")
        await client.end()
        await until(lambda: handler.ended)
        assert handler.data == b"last"
        assert handler.open.is_closing()

    run(test)


def test_what_was_written_is_sent_before_it_closes(run: Run) -> None:
    async def test(pair: Pair) -> None:
        handler, client = pair
        handler.open.writelines([bytes(MUCH)])
        handler.open.close()
        assert handler.open.is_closing()
        assert await client.receive(MUCH) == bytes(MUCH)
        if isinstance(client, Client):
            assert await client.receive(1) == b""
            await until(lambda: handler.lost)

    run(test)


def test_an_aborted_stream_is_lost_and_takes_nothing_more(run: Run) -> None:
    async def test(pair: Pair) -> None:
        handler, client = pair
        handler.open.abort()
        assert handler.open.is_closing()
        handler.open.pause_reading()
        handler.open.resume_reading()
        handler.open.grow_send_buffer()
        handler.open.close()
        handler.open.abort()
        if isinstance(client, Client):
            assert await client.receive(1) == b""
            await until(lambda: handler.lost)

    run(test)
