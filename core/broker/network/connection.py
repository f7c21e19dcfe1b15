"""One client connection: frames in, handled one after the other, responses out in the same order.

Rules: at most `PIPELINED` requests wait behind the one that is being handled, fewer when all connections together hold
too much, then reading pauses; while the client does not read its responses, nothing more is handled; what a request is
waiting for (a parked Fetch) is cancelled with the connection; a request that cannot be read closes the connection with
one line in the log, once those ahead of it are answered. The answers to requests that came together go out together:
one write to the socket costs as much as handling a small request.

A client that says no more (EOF) may have gone or may read on, which only an answer shows: whatever it sent is handled
and answered, Produce without acks too, as with Kafka; only nothing is waited for any more (a parked Fetch answers with
what there is), and where none of it comes to its end for `socket.receive.timeout.ms` the connection is closed. A broker
that stops still reads what has come, until its system has no more at hand, `_LAST_READ` bytes of a connection at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from ...errors import ProtocolError
from ...protocol.frames import FrameLengthError, FrameSplitter
from ...protocol.messages import Buffer
from . import send_buffer
from .connections import Connections
from .context import FIRST_ALLOWANCE, ConnectionContext
from .limits import Limits
from .receive_buffer import arrived

log = logging.getLogger(__name__)

Reply = list[Buffer] | None
"""The pieces of a response frame; None: there is no response (acks=0)."""

Dispatch = Callable[[ConnectionContext, bytearray], "Reply | Coroutine[Any, Any, Reply]"]

WRITE_BUFFER_HIGH = 4 * 1024 * 1024
"""Bytes that wait to be read by the client, over which it is not served any further."""
PIPELINED = 64
"""Requests of one connection that wait behind the one being handled."""

_LAST_READ = 1024 * 1024  # bytes that a stopping broker still takes from one connection
_COUNTED = 64 * 1024  # bytes waiting to be read from which on they are counted
_LEAST_PROGRESS = 64 * 1024  # bytes of an unfinished request in one period
_TIGHT_SEND_S = 10.0  # how long nothing may be read when too much waits in all
_READ_WHILE_CROWDED = 4 * 1024
_BURST = 16  # requests handled before other connections get their turn
_SMALL = 16 * 1024  # bytes of answers that go out without waiting for their turn
_FETCH = 1  # the second byte of a Fetch: of its API key
_GATHERED = 64 * 1024  # bytes of answers that may wait for the next one


_REASONS = {
    "unfinished request": "its request did not come to its end within socket.receive.timeout.ms",
    "unhandled requests": "it sends no more, and what it sent was not handled within socket.receive.timeout.ms",
    "reads nothing": "it read nothing of what it asked for within socket.send.timeout.ms",
}


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        context: ConnectionContext,
        splitter: FrameSplitter,
        dispatch: Dispatch,
        house: Connections,
    ) -> None:
        self.context = context
        self.address = "?"
        self._splitter = splitter
        self._dispatch = dispatch
        self._clock: Callable[[], float] = house.clock
        self._house = house
        self._memory = house.memory
        self._transport: asyncio.Transport | None = None
        self._requests: deque[bytearray] = deque()
        self._task: asyncio.Task[Reply] | None = None
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._reading_paused = False
        self._writing_paused = False
        self._full = False  # the system takes no more
        self._reads = False  # the peer, once the system had more than it took
        self._awaits_turn = self._has_turn = False
        self._turn_bytes = 0
        self._draining = False
        self._to_read = 0  # bytes that are still taken while draining
        self._unreadable: FrameLengthError | None = None  # what came behind the last request
        self._handled = 0  # bytes of the request that a task is at
        self._held = 0  # bytes of requests that the house counts for this connection
        self._queued = 0  # requests that it counts as waiting
        self._unread = 0  # bytes of responses that it counts: the memory that they hold, sent in part or not
        self._written = self._largest = 0  # bytes, and the largest write, since all was sent
        self._progress: tuple[float, int] | None = None  # since when a request is unfinished, with so many bytes
        self._unread_progress: tuple[float, int] | None = None
        self._drain_progress: tuple[float, int] | None = None
        self.last_active = self._clock()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_COUNTED, low=0)
        peer = transport.get_extra_info("peername")
        if peer:
            self.address = peer[0]
            self.context.peer = f"{peer[0]}:{peer[1]}"
        if not self._house.admit(self):
            self._draining = True
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        room = self._splitter.get_buffer()
        if self._task is not None and self._memory.crowded:
            return room[:_READ_WHILE_CROWDED]  # it will have to wait here; the rest may wait in the system
        return room

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._clock()
        if self._draining:
            nbytes = self._last_bytes(nbytes)
            if not nbytes:
                return
        try:
            frames = self._splitter.received(nbytes)
        except FrameLengthError as error:
            self._end(error)
            return
        if frames:
            self._progress = None
            if self._held:
                self._memory.done(self)
            self._requests += frames
            self._pump()
        if self._requests or self._splitter.held or self._held:
            self._account()
            self.review_reading()

    def eof_received(self) -> bool:
        """Whether the connection stays, for what is to be handled."""
        self._drain_to(0)
        self.context.end()
        if self.busy:
            return True
        self._close_when_done()
        return False

    def pause_writing(self) -> None:
        self._full = True
        self._count_unread()

    def resume_writing(self) -> None:
        self._full = False
        if not self._reads and self._house.limits.send_buffer < 0:
            send_buffer.let_grow(self._transport)
        self._reads = True
        self._all_sent()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._requests.clear()
        self._gathered, self._gathered_bytes = [], 0
        if self._task is not None:
            self._task.cancel()
        self._memory.responses_gone(self._unread)
        self._memory.held -= self._held
        self._memory.queued -= self._queued
        self._unread = self._held = self._queued = 0
        self._memory.done(self)
        self._house.lost(self)

    # -- the broker's side

    @property
    def busy(self) -> bool:
        """A request is being handled, or waits to be."""
        return self._task is not None or bool(self._requests)

    def drain(self) -> None:
        """Take no more requests than have come; close once they are answered."""
        if not self._draining:
            self._drain_to(_LAST_READ if arrived(self._transport) else 0)
        self._close_when_done()

    def overdue(self, now: float, limits: Limits, *, tight: bool) -> str | None:
        """Why it has to go, if it has to. Asked from time to time, at least twice in each of the limits' periods."""
        if self._transport is None:
            return None
        if self._unread:
            patience = min(limits.send_s, _TIGHT_SEND_S) if tight else limits.send_s
            self._count_unread()
            return "reads nothing" if self._stands_still(now, patience) else None
        if self._draining and self.busy:
            self._drain_progress = _least(self._drain_progress, now, len(self._requests))
            return "unhandled requests" if now - self._drain_progress[0] >= limits.frame_s else None
        if self._splitter.begun and not self._reading_paused:
            since, bytes_then = self._progress or (now, 0)
            self._progress = (since, bytes_then)
            if now - since < limits.frame_s:
                return None
            if self._splitter.begun - bytes_then < _LEAST_PROGRESS:
                return "unfinished request"
            self._progress = (now, self._splitter.begun)
            return None
        quiet = self.last_active < now - limits.idle_s and not self.busy and not self._reading_paused
        return "idle" if quiet else None

    def _stands_still(self, now: float, patience: float) -> bool:
        assert self._transport is not None
        unread = self._transport.get_write_buffer_size() + self._gathered_bytes
        self._unread_progress = _least(self._unread_progress, now, unread)
        return now - self._unread_progress[0] >= patience

    def expel(self, reason: str) -> None:
        """Close at once, and say why, once a second for each reason."""
        self._house.metrics.connections_closed[reason] += 1
        where = f"{self.context.connection_id} of {self.context.peer}"
        said = logging.INFO if reason == "idle" else logging.WARNING
        text = "closed idle connection %s" if reason == "idle" else "closed connection %s: " + _REASONS[reason]
        more = self._house.worth_saying(f"closed: {reason}")
        if more is not None:
            log.log(said, text + "%s", where, more, extra=self._fields())
        self.abort()

    def close(self) -> None:
        """Once all that was answered is sent."""
        if self._transport is not None:
            self._write()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- the work

    def _pump(self) -> None:
        """Handle what is waiting, until something has to be waited for."""
        for _ in range(_BURST):
            if self._transport is None or self._task is not None or not self._requests or self._cannot_write:
                break
            if self._house.turns.over and self._requests[0][1] == _FETCH and self._reads_much and not self._may_fetch:
                self._awaits_turn = True
                self._house.turns.wait(self)
                break
            self._handle(self._requests.popleft())
        else:
            asyncio.get_running_loop().call_soon(self._pump)
        self._send()
        if self._draining and not self.busy and not self._to_read:
            self._close_when_done()
        elif self._held or self._queued or self._reading_paused:
            self._account()
            self.review_reading()

    def _end(self, error: FrameLengthError) -> None:
        """What came ahead is handled and answered, as Kafka does; then it is closed."""
        self._unreadable = error
        self._requests += error.ahead
        self._memory.done(self)
        self._drain_to(0)
        self.context.end()
        self._pump()

    def _drain_to(self, to_read: int) -> None:
        """Take so many bytes more at most."""
        self._draining, self._to_read = True, to_read
        if not to_read:
            self._pause_reading()

    def _last_bytes(self, count: int) -> int:
        """How many of the bytes that have come are still taken, while draining."""
        taken = min(count, self._to_read)
        if taken and (taken == self._to_read or not arrived(self._transport)):
            self._drain_to(0)
            asyncio.get_running_loop().call_soon(self._pump)  # which closes it, where no request has become whole
        else:
            self._to_read -= taken
        return taken

    def _close_when_done(self) -> None:
        if self.busy or self._to_read:
            return
        if self._unreadable is not None:
            self._refuse(self._unreadable)
        else:
            self.close()

    @property
    def _cannot_write(self) -> bool:
        return self._writing_paused or self._awaits_turn

    @property
    def _reads_much(self) -> bool:
        return self.context.allowance > FIRST_ALLOWANCE

    @property
    def _may_fetch(self) -> bool:
        """It is its turn, and it has had nothing yet."""
        return self._has_turn and not self._turn_bytes and not self._gathered_bytes

    def _handle(self, frame: bytearray) -> None:
        try:
            outcome = self._dispatch(self.context, frame)
        except Exception as error:
            self._refuse(error)
            return
        if outcome is None:
            return
        if isinstance(outcome, list):
            self._gather(outcome)
        else:
            self._task = asyncio.get_running_loop().create_task(outcome)
            self._task.add_done_callback(self._answered)
            self._handled = len(frame)

    def _answered(self, task: asyncio.Task[Reply]) -> None:
        self._take_answer(task)
        self._memory.give_back(self.context)

    def _take_answer(self, task: asyncio.Task[Reply]) -> None:
        self._task = None
        self._handled = 0
        if task.cancelled():
            self.close()
            return
        error = task.exception()
        if error is not None:
            self._refuse(error)
            return
        reply = task.result()
        if reply is not None:
            self._gather(reply)
        self._pump()

    def _gather(self, reply: list[Buffer]) -> None:
        self._gathered += reply
        self._gathered_bytes += sum(map(len, reply))
        if self._gathered_bytes >= _GATHERED:
            self._send()

    def _send(self) -> None:
        """Write what was gathered, a large answer when it is its turn; may call `pause_writing`."""
        if not self._gathered or self._awaits_turn:
            return
        size = self._gathered_bytes
        if size < _SMALL or (self._has_turn and not self._turn_bytes) or self._house.turns.take(self, size):
            self._write()
        else:
            self._awaits_turn = True
            self._count_unread()

    def have_turn(self) -> int:
        self._awaits_turn = False
        if self._transport is None:
            return 0
        self._has_turn, self._turn_bytes = True, 0
        try:
            self._write()
            if not self._full:
                self._all_sent()
            self._pump()
        finally:
            self._has_turn = False
        return self._turn_bytes

    def _write(self) -> None:
        pieces, size = self._gathered, self._gathered_bytes
        self._gathered, self._gathered_bytes = [], 0
        self._turn_bytes += size
        if pieces and self._transport is not None:
            self._written = self._written + size if self._full else size
            self._largest = max(self._largest, size) if self._full else size
            self._transport.writelines(pieces)
            if self._unread:
                self._count_unread()

    def _all_sent(self) -> None:
        """The system has all that was written."""
        self._memory.responses_gone(self._unread)
        self._unread = self._written = self._largest = 0
        self._writing_paused = False
        self._unread_progress = None
        if self._awaits_turn:
            self._count_unread()

    def _refuse(self, error: BaseException) -> None:
        """Close, once what is answered is sent, and say why in one line."""
        self._send()
        context = self.context
        where = f"connection {context.connection_id} of {context.peer} ({context.software_name or 'client unknown'})"
        if isinstance(error, ProtocolError):
            log.warning("closed %s: %s", where, error, extra=self._fields())
        else:
            log.error("closed %s: unexpected %s", where, describe(error), extra=self._fields())
        self._house.metrics.connections_closed["bad request"] += 1
        self._requests.clear()
        self._unreadable = None
        self._draining, self._to_read = True, 0
        self.close()

    def _fields(self) -> dict[str, object]:
        """Of a line in the log that is read by programs."""
        context = self.context
        return {"event": "connection closed", "connection": context.connection_id, "client": context.peer}

    # -- memory

    def _account(self) -> None:
        """Tell the house what this connection holds."""
        memory = self._memory
        held = self._splitter.held + self._handled + sum(map(len, self._requests))
        shrunk = held < self._held
        memory.held += held - self._held
        memory.queued += len(self._requests) - self._queued
        self._held, self._queued = held, len(self._requests)
        if shrunk:
            memory.wake()

    def _count_unread(self) -> None:
        """A write is held as a whole until its last byte is sent, so that is what it counts for."""
        if self._transport is not None:
            left = self._transport.get_write_buffer_size() + self._gathered_bytes
            unread = max(left, min(self._written, left + self._largest))
            self._memory.unread += unread - self._unread
            self._unread = unread
            if self._memory.tight and not self._writing_paused:
                self._house.held_up("queued.max.response.bytes")
            self._writing_paused = unread > WRITE_BUFFER_HIGH or self._memory.tight

    def review_reading(self) -> None:
        """Pause or go on, after what waits here and in the whole house."""
        waiting = len(self._requests)
        most = 0 if self._memory.many_queued else PIPELINED // 2 if self._reading_paused else PIPELINED
        full = self._splitter.held and not self._memory.may_grow(self)
        if waiting > most or full:
            if not self._reading_paused and (full or not most):
                self._house.held_up("queued.max.request.bytes" if full else "queued.max.requests")
            self._pause_reading()
        elif self._reading_paused and (not self._draining or self._to_read):
            self._resume_reading()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused:
            self._reading_paused = True
            self._progress = None
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._reading_paused = False


def _least(seen: tuple[float, int] | None, now: float, value: int) -> tuple[float, int]:
    """Since when a value has not fallen, and to what."""
    since, then = seen or (now, value)
    return (now if value < then else since), value


def describe(error: BaseException) -> str:
    """An unexpected error in one line: its kind, its message and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
