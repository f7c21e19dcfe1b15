"""A connection to another broker: one request at a time, frames received without a copy."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Final, cast

from ...errors import ProtocolError

_LENGTH: Final = Struct(">i")
_LARGEST: Final = 1 << 30


class PeerConnection(asyncio.BufferedProtocol):
    """Receives each frame into a buffer of its own. Made by `connect`; belongs to the event loop.

    One watch for the whole connection ends it when no byte of an answer has come for `timeout_s`, instead of a timer
    for each request.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(_LENGTH.size)
        self._frame: bytearray | None = None
        self._filled = 0
        self._waiting: asyncio.Future[memoryview] | None = None
        self._heard_at = 0.0
        self._ended: Exception | None = None
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, host: str, port: int, timeout_s: float) -> PeerConnection:
        """Connects. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(lambda: cls(timeout_s), host, port)
        return protocol

    async def ask(self, frame: bytes) -> memoryview:
        """Sends a request frame and returns the next frame that arrives, without its length. Raises what has ended the
        connection: OSError, EOFError, TimeoutError or `ProtocolError`."""
        if self._ended is not None or self._transport is None:
            raise self._ended or ConnectionError("the connection is closed")
        self._waiting = self._loop.create_future()
        self._heard_at = self._loop.time()
        self._transport.write(frame)
        return await self._waiting

    def close(self) -> None:
        self._end(ConnectionError("the connection is closed"))

    # -- called by the transport -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._look()

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        if self._frame is None:
            return memoryview(self._head)[self._filled :]
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._heard_at = self._loop.time()
        if self._frame is None:
            if self._filled < _LENGTH.size:
                return
            (size,) = _LENGTH.unpack(self._head)
            if not 0 < size <= _LARGEST:
                self._end(ProtocolError(f"a frame of {size} bytes"))
                return
            self._frame, self._filled = bytearray(size), 0
        elif self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            waiting, self._waiting = self._waiting, None
            if waiting is None:
                self._end(ProtocolError("an answer to no request"))
            elif not waiting.done():
                waiting.set_result(memoryview(frame))

    def eof_received(self) -> None:
        self._end(EOFError("the broker has closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or EOFError("the connection is lost"))

    # -- the end -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._waiting is not None and self._loop.time() - self._heard_at > self._timeout_s:
            self._end(TimeoutError(f"no answer in {self._timeout_s:g} s"))
        else:
            self._watch = self._loop.call_later(self._timeout_s / 4, self._look)

    def _end(self, why: Exception) -> None:
        if self._ended is None:
            self._ended = why
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(self._ended)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
