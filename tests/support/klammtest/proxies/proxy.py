"""A TCP proxy in front of a broker that reads the frames it carries: it knows which Produce requests are unanswered.

With it a fault is injected while requests are in flight, not merely at a random moment. Runs its own event loop on a
thread; the broker must advertise the proxy's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from types import TracebackType

PRODUCE = 0
_MAX_FRAME = 128 * 1024 * 1024


class ProduceProxy:
    """`in_flight` counts Produce requests that were passed on whole and not answered yet (acks=0 never is)."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self._broker_port = broker_port
        self._pending: set[tuple[int, int]] = set()
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="produce-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def __enter__(self) -> ProduceProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20)

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._broker_port, limit=1 << 20)
        except OSError:
            writer.close()
            return
        try:
            done, pending = await asyncio.wait(
                [
                    asyncio.create_task(self._carry(reader, upstream[1], connection, requests=True)),
                    asyncio.create_task(self._carry(upstream[0], writer, connection, requests=False)),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in pending:
                task.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        finally:
            self._pending = {p for p in self._pending if p[0] != connection}
            for end in (writer, upstream[1]):
                end.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int, *, requests: bool
    ) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readexactly(4)
                (size,) = struct.unpack(">i", head)
                if not 0 <= size <= _MAX_FRAME:
                    return
                body = await reader.readexactly(size)
                writer.write(head + body)
                if requests:
                    api, _, correlation = struct.unpack_from(">hhi", body)
                    if api == PRODUCE:
                        self._pending.add((connection, correlation))
                else:
                    self._pending.discard((connection, struct.unpack_from(">i", body)[0]))
                await writer.drain()
