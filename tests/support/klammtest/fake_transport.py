"""Byte streams in memory, for tests: no socket, no thread, and nothing happens except by a call.

`FakeTransport` is used under a connection of the broker, `FakeByteStream` under one of a client, and `connect` joins
the two: what the client writes is handled by the broker's connection before the call returns.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from klamm.core.protocol.messages import Buffer
from klamm.core.transport.interface import TransportHandler

UNLIMITED = 1 << 62
T = TypeVar("T")


async def settle() -> None:
    """Lets the loop run what is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


def on_a_loop(make: Callable[[], T]) -> Callable[[Callable[[T], Awaitable[None]]], Callable[[], None]]:
    """Returns a decorator of a test that gets what `make` returns, on an event loop of its own."""

    def decorate(test: Callable[[T], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                await test(make())

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


class FakeTransport:
    """A `Transport` for which the test plays the client and the kernel.

    The client sends with `feed`, and finds the bytes sent to it in `written`, one item a write. The kernel accepts
    `kernel_room` bytes, unless that is changed; `sent` lets it accept more.
    """

    def __init__(self, handler: TransportHandler, peer: tuple[str, int] | None = ("127.0.0.1", 4711)) -> None:
        self.handler = handler
        self.peer = peer
        self.more_input = False
        """The result of `expects_input`."""
        self.written: list[bytes] = []
        self.kernel_room = UNLIMITED
        self.unsent = 0
        """The number of written bytes that the kernel has not accepted."""
        self.events: list[str] = []
        """The calls that change the stream's state, in order: pause, resume, grow, close, abort."""
        self.reading = True
        self._high, self._low = 64 * 1024, 16 * 1024
        self._writing_paused = False
        self._held_back = bytearray()

    def connect(self) -> None:
        self.handler.connected(self)

    # -- the client and the kernel

    def feed(self, data: bytes, *, although_paused: bool = False) -> None:
        """Delivers bytes from the client; while reading is paused they are held back, unless `although_paused`,
        since event loops deliver bytes that they have read already."""
        self._held_back += data
        while self._held_back and not self.is_closing() and (self.reading or although_paused):
            room = self.handler.get_buffer(-1)
            count = min(len(room), len(self._held_back))
            room[:count] = self._held_back[:count]
            del self._held_back[:count]
            self.handler.buffer_updated(count)

    def feed_end(self) -> None:
        """Ends the client's sending side."""
        if not self.handler.eof_received():
            self.close()

    def sent(self, count: int = UNLIMITED) -> None:
        """Lets the kernel accept `count` of the waiting bytes."""
        self.unsent -= min(count, self.unsent)
        if self._writing_paused and self.unsent <= self._low:
            self._writing_paused = False
            self.handler.resume_writing()

    def lose(self, error: Exception | None = None) -> None:
        """Loses the connection."""
        self.events.append("abort")
        self.handler.connection_lost(error)

    def take_written(self) -> bytes:
        """Returns the bytes written since the last call."""
        data, self.written = b"".join(self.written), []
        return data

    # -- the interface

    def expects_input(self) -> bool:
        return self.more_input or bool(self._held_back)

    def writelines(self, pieces: list[Buffer], /) -> None:
        data = b"".join(pieces)
        self.written.append(data)
        self.unsent += max(len(data) - self.kernel_room, 0)
        self.kernel_room -= min(len(data), self.kernel_room) if self.kernel_room < UNLIMITED else 0
        if self.unsent > self._high and not self._writing_paused:
            self._writing_paused = True
            self.handler.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._high, self._low = high, low

    def pause_reading(self) -> None:
        self.reading = False
        self.events.append("pause")

    def resume_reading(self) -> None:
        self.reading = True
        self.events.append("resume")

    def grow_send_buffer(self) -> None:
        self.events.append("grow")

    def is_closing(self) -> bool:
        return "close" in self.events or "abort" in self.events

    def close(self) -> None:
        self.events.append("close")

    def abort(self) -> None:
        self.events.append("abort")


class FakeByteStream:
    """A `ByteStream` whose broker is `answer`: it is called with each write, and returns the bytes that can be read
    then.

    No call waits: one that would have to raises `TimeoutError`.
    """

    _next_descriptor = 1_000_000  # of no file; registered with a selector, but never selected

    def __init__(self, answer: Callable[[bytes], bytes] = lambda _: b"") -> None:
        self.answer = answer
        self.written = bytearray()
        self.unread = bytearray()
        """The bytes that the broker has sent; a test may add to them."""
        self.ended = False
        """True once the broker has closed the stream after the unread bytes."""
        self.failure: OSError | None = None
        """The error that the next call raises."""
        self.room = UNLIMITED
        """The number of bytes that can be written before the kernel accepts no more."""
        self.closed = False
        FakeByteStream._next_descriptor += 1
        self._descriptor = FakeByteStream._next_descriptor

    def read_into(self, buffer: memoryview, timeout_s: float) -> int:
        count = self.read_available(buffer)
        if count is None:
            raise TimeoutError
        return count

    def write_all(self, data: bytes, timeout_s: float) -> None:
        if self.write_available([memoryview(data)]) < len(data):
            raise TimeoutError

    def is_quiet(self) -> bool:
        return not (self.closed or self.ended or self.unread or self.failure)

    def set_nonblocking(self) -> None: ...

    def fileno(self) -> int:
        return self._descriptor

    def read_available(self, buffer: memoryview) -> int | None:
        self._check()
        if not self.unread:
            return 0 if self.ended else None
        count = min(len(buffer), len(self.unread))
        buffer[:count] = self.unread[:count]
        del self.unread[:count]
        return count

    @property
    def has_buffered_input(self) -> bool:
        return False

    def write_available(self, pieces: Iterable[memoryview]) -> int:
        self._check()
        data = b"".join(pieces)[: self.room]
        self.room -= len(data) if self.room < UNLIMITED else 0
        self.written += data
        self.unread += self.answer(data) if data else b""
        return len(data)

    def events(self, *, writing: bool) -> int:
        return selectors.EVENT_READ | selectors.EVENT_WRITE if writing else selectors.EVENT_READ

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.closed:
            raise OSError("the stream is closed")
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


def connect(handler: TransportHandler) -> FakeByteStream:
    """Returns the client's end of a stream whose other end is the broker's `handler`.

    Bytes that the broker sends without a write of the client (the answer of a parked request) are read at the client's
    next write.
    """
    transport = FakeTransport(handler)

    def carry(data: bytes) -> bytes:
        transport.feed(data)
        return transport.take_written()

    transport.connect()
    return FakeByteStream(carry)
