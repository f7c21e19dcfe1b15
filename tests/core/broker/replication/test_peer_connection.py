"""The connection between brokers: whole frames, one request at a time, and one clear end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import pack

import pytest

from klamm.core.broker.replication.peer_connection import PeerConnection
from klamm.core.errors import ProtocolError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run(serve: Serve, use: Callable[[PeerConnection], Awaitable[None]], timeout_s: float = 30.0) -> None:
    async def main() -> None:
        served: list[asyncio.Task[object]] = []

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            served.append(task)
            try:
                await serve(reader, writer)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        connection = await PeerConnection.connect("127.0.0.1", server.sockets[0].getsockname()[1], timeout_s)
        try:
            await use(connection)
        finally:
            connection.close()
            server.close()
            await asyncio.gather(*served, return_exceptions=True)

    asyncio.run(main())


def test_frames_arrive_whole_however_they_are_cut() -> None:
    answers = [b"a" * 5, b"b" * 300_000, b"c"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, answer in enumerate(answers):
            await reader.readexactly(4)
            frame = pack(">i", len(answer)) + answer
            step = 1 if number != 1 else 70_001
            for at in range(0, len(frame), step):
                writer.write(frame[at : at + step])
                await asyncio.sleep(0)

    async def use(connection: PeerConnection) -> None:
        for answer in answers:
            assert await connection.ask(b"more") == answer

    run(serve, use)


@pytest.mark.parametrize(
    ("said", "error"),
    [(b"", EOFError), (b"\0\0", EOFError), (pack(">i", 0), ProtocolError), (pack(">i", -7), ProtocolError)],
)
def test_what_ends_the_connection_ends_the_request(said: bytes, error: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(said)

    async def use(connection: PeerConnection) -> None:
        with pytest.raises((error, ConnectionError)):
            await connection.ask(b"more")
        with pytest.raises((error, ConnectionError)):
            await connection.ask(b"more")

    run(serve, use)


def test_a_silent_broker_is_given_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(connection: PeerConnection) -> None:
        with pytest.raises(TimeoutError, match=r"no answer in 0\.2 s"):
            await connection.ask(b"more")

    run(serve, use, timeout_s=0.2)


def test_an_answer_to_no_request_ends_the_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write((pack(">i", 1) + b"x") * 2)
        await reader.read()  # until the client has ended the connection
        ended.set()

    async def use(connection: PeerConnection) -> None:
        assert await connection.ask(b"more") == b"x"
        await ended.wait()
        with pytest.raises(ProtocolError, match="an answer to no request"):
            await connection.ask(b"more")

    run(serve, use)
