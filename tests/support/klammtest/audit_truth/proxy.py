"""A TCP proxy before a broker that does wrong things to the Produce requests of some topics.

It knows a topic by its name in the request (Produce 9: a compact string); the audit's own events pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType

from klammtest.proxies.proxy import PRODUCE


class Wrong(StrEnum):
    """What becomes of a Produce request."""

    NOTHING = "nothing"
    LOST = "lost"
    """It does not arrive. For acks=0, which waits for no answer."""
    ELSEWHERE = "elsewhere"
    """It is stored in another topic, `sink_of(topic)`, and acknowledged for this one."""
    UNANSWERED = "unanswered"
    """It arrives; its answer does not, and the connection ends."""


Decide = Callable[[], Wrong]
"""Asked for each Produce request of a topic."""


def sink_of(topic: str) -> str:
    """Of the same length, and an internal one, which nobody audits."""
    return "_" + topic[1:]


class FaultyProxy:
    """Carries both ways; `spoil` says what is done to a topic's requests from then on."""

    def __init__(self, port: int, broker_port: int) -> None:
        self._port = port
        self._broker_port = broker_port
        self._rules: dict[bytes, tuple[bytes, Decide]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    def spoil(self, topic: str, decide: Decide) -> None:
        self._rules[_compact(topic)] = (_compact(sink_of(topic)), decide)

    def leave(self, topic: str) -> None:
        self._rules.pop(_compact(topic), None)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=1 << 20)

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._broker_port, limit=1 << 20)
        except OSError:
            writer.close()
            return
        connection = _Connection(self._rules)
        both = (
            asyncio.create_task(_carry(reader, upstream[1], connection.request)),
            asyncio.create_task(_carry(upstream[0], writer, connection.answer)),
        )
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for end in (writer, upstream[1]):
                end.close()


class _Connection:
    """What one client's requests and answers become; None from `request`: it is lost, from `answer`: the end."""

    def __init__(self, rules: dict[bytes, tuple[bytes, Decide]]) -> None:
        self._rules = rules
        self._renamed: dict[int, list[tuple[bytes, bytes]]] = {}
        self._unanswered: set[int] = set()

    def request(self, body: bytes) -> bytes | None:
        api, version, correlation = struct.unpack_from(">hhi", body)
        if api != PRODUCE:
            return body
        for topic, (sink, decide) in list(self._rules.items()):
            if topic not in body:
                continue
            assert version >= 9, "the proxy knows topics by compact strings"
            wrong = decide()
            if wrong is Wrong.LOST:
                return None
            if wrong is Wrong.UNANSWERED:
                self._unanswered.add(correlation)
            elif wrong is Wrong.ELSEWHERE:
                body = body.replace(topic, sink, 1)
                self._renamed.setdefault(correlation, []).append((sink, topic))
        return body

    def answer(self, body: bytes) -> bytes | None:
        (correlation,) = struct.unpack_from(">i", body)
        if correlation in self._unanswered:
            raise ConnectionAbortedError
        for sink, topic in self._renamed.pop(correlation, ()):
            body = body.replace(sink, topic, 1)
        return body


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, become: Callable[[bytes], bytes | None]
) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            body = become(await reader.readexactly(size))
            if body is not None:
                writer.write(struct.pack(">i", len(body)) + body)
                await writer.drain()


def _compact(name: str) -> bytes:
    """As Kafka's flexible versions write a short string."""
    return bytes([len(name) + 1]) + name.encode()
