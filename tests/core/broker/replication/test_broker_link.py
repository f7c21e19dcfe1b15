"""The connection between brokers: negotiated, whole frames, one request at a time, and one clear end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from struct import pack

import pytest

from klamm.core.broker.replication.broker_link import BrokerLink
from klamm.core.errors import BrokerError, ProtocolError
from klamm.core.protocol.apis import ApiKey
from klamm.core.transport.address import Address
from klammtest.brokers.negotiating import answer

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request(reader: asyncio.StreamReader) -> bytes:
    """Returns the next request, without its length."""
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def answered(asked: bytes, body: bytes) -> bytes:
    """Returns a response frame: the request's correlation id, no tagged fields, the body."""
    return pack(">i", 5 + len(body)) + asked[4:8] + b"\0" + body


def run(
    serve: Serve, use: Callable[[BrokerLink], Awaitable[None]], timeout_s: float = 30.0, *, negotiates: bool = True
) -> None:
    async def main() -> None:
        served: list[asyncio.Task[object]] = []

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            served.append(task)
            try:
                if negotiates:
                    writer.writelines(answer(await request(reader)))
                await serve(reader, writer)
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = None
        try:
            link = await BrokerLink.open(Address("127.0.0.1", port), "replica", timeout_s)
            await use(link)
        finally:
            if link is not None:
                link.close()
            server.close()
            await asyncio.gather(*served, return_exceptions=True)

    asyncio.run(main())


async def ask(link: BrokerLink) -> object:
    return await link.call(ApiKey.FETCH, lambda _: [b"more"], decode=lambda frame, at: bytes(frame[at:]))


def test_frames_arrive_whole_however_they_are_cut() -> None:
    bodies = [b"a" * 5, b"b" * 300_000, b"c"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, body in enumerate(bodies):
            asked = await request(reader)
            assert asked.endswith(b"more")
            frame = answered(asked, body)
            step = 1 if number != 1 else 70_001
            for at in range(0, len(frame), step):
                writer.write(frame[at : at + step])
                await asyncio.sleep(0)

    async def use(link: BrokerLink) -> None:
        for body in bodies:
            assert await ask(link) == body

    run(serve, use)


def test_any_request_can_be_sent_in_the_version_that_both_have() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(answer(await request(reader)))

    async def use(link: BrokerLink) -> None:
        assert link.version(ApiKey.METADATA, 9) == 9
        metadata = await link.call(ApiKey.METADATA, lambda schema: schema.build(topics=None), max_version=1)
        assert metadata.controller_id == 1
        with pytest.raises(BrokerError, match="no common version of FETCH"):
            link.version(ApiKey.FETCH, 3)

    run(serve, use)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", EOFError),
        (b"\0\0", EOFError),
        (pack(">i", 0), ProtocolError),
        (pack(">i", -7), ProtocolError),
        (pack(">iiB", 5, 77, 0), ProtocolError),
    ],
    ids=["nothing", "half a length", "no frame", "a negative length", "another correlation id"],
)
def test_what_ends_the_connection_ends_the_request(said: bytes, error: type[Exception]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request(reader)
        writer.write(said)

    async def use(link: BrokerLink) -> None:
        with pytest.raises((error, ConnectionError)):
            await ask(link)
        with pytest.raises((error, ConnectionError)):
            await ask(link)

    run(serve, use)


def test_a_silent_broker_is_given_up() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(link: BrokerLink) -> None:
        with pytest.raises(TimeoutError, match=r"no answer in 3 s"):
            await ask(link)

    run(serve, use, timeout_s=3)


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "closed at once"])
def test_a_broker_that_does_not_negotiate_is_no_link(silent: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if silent:
            await reader.read()

    async def use(link: BrokerLink) -> None:
        raise AssertionError("it was opened")

    with pytest.raises(TimeoutError if silent else (EOFError, ConnectionError)):
        run(serve, use, timeout_s=1 if silent else 60, negotiates=False)


def test_an_answer_to_no_request_ends_the_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = answered(await request(reader), b"x")
        writer.write(frame * 2)
        await reader.read()  # until the client has ended the connection
        ended.set()

    async def use(link: BrokerLink) -> None:
        with suppress(ProtocolError):  # the second answer may come with the first
            assert await ask(link) == b"x"
        await ended.wait()
        with pytest.raises(ProtocolError, match="that no request asked for"):
            await ask(link)

    run(serve, use)
