"""One client connection: requests are handled one after the other, and answered in the same order. A Produce with
acks=all, once its records are appended, does not hold up the Produce requests behind it.

- OPEN: requests are read and handled.
- DRAINING: the broker stops. What the kernel has already received is still read, `_LAST_READ` bytes at most.
- FINISHING: nothing more is read; what was received is handled and answered, then the connection closes. "input ended"
  is the client's end of stream, a frame length that none may have, or the end of draining. As with Kafka, the requests
  ahead of it are answered, Produce without acks is handled too, and a parked Fetch answers with what there is
  (`ConnectionContext.end`). If nothing is handled for `socket.receive.timeout.ms` the connection is closed.
- CLOSING: only what was answered is sent. A request that cannot be read leads here, with one line in the log.
- CLOSED: the transport is closed, and a request's wait is cancelled.

Parts: `RequestReader` (receiving, pausing, memory of requests), `ResponseWriter` (sending, write slots, memory of
responses); this class handles requests between the two. While the client does not read its responses, nothing more is
handled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from enum import Enum
from typing import Final

from ...errors import ProtocolError, describe_error
from ...protocol.frames import FrameLengthError, FrameSplitter
from ...protocol.messages import Buffer
from ...state_table import StateTable
from ...transport.address import Address
from ...transport.interface import Transport, TransportHandler
from ..delayed_reply import DelayedReply, Outcome, Reply, reply_of_task
from ..request import FIRST_ALLOWANCE, ConnectionContext, Dispatch
from .connections import Connections
from .limits import Limits
from .request_reader import RequestReader
from .response_writer import ResponseWriter
from .stall_timer import StallTimer

log = logging.getLogger(__name__)

_LAST_READ: Final = 1024 * 1024  # bytes that a stopping broker still reads from one connection
_TIGHT_SEND_S: Final = 10.0  # how long a client may read nothing while all connections together have too much unread
_READ_WHILE_CROWDED: Final = 4 * 1024
_BURST: Final = 16  # requests handled before the event loop serves other connections
_FETCH: Final = 1  # the second byte of a Fetch request: its API key
_PRODUCE: Final = 0
_MOST_DELAYED: Final = 256  # replies that wait for other brokers before no more is handled


class ConnectionState(Enum):
    OPEN = "open"
    DRAINING = "draining"
    FINISHING = "finishing"
    CLOSING = "closing"
    CLOSED = "closed"


_OPEN = ConnectionState.OPEN  # kept here: accessing an enum's attribute costs a call
_FINISHING = ConnectionState.FINISHING


class ConnectionEvent(Enum):
    STOP = "broker stops"
    INPUT_ENDED = "input ended"
    CLOSE = "close"
    LOST = "lost"


CONNECTION_STATES = StateTable(
    "connection", ConnectionState, ConnectionEvent,
    """
    state      event         next state
    open       broker stops  draining
    open       input ended   finishing
    draining   input ended   finishing
    finishing  input ended   finishing
    open       close         closing
    draining   close         closing
    finishing  close         closing
    closing    input ended   closing
    closing    close         closing
    open       lost          closed
    draining   lost          closed
    finishing  lost          closed
    closing    lost          closed
    """,
)  # fmt: skip

_REASONS = {
    "unfinished request": "its request did not come to its end within socket.receive.timeout.ms",
    "unhandled requests": "it sends no more, and what it sent was not handled within socket.receive.timeout.ms",
    "reads nothing": "it read nothing of what it asked for within socket.send.timeout.ms",
}


class Connection(TransportHandler):
    """Belongs to the event loop."""

    __slots__ = (
        "_clock",
        "_connections",
        "_delayed",
        "_finishing",
        "_memory",
        "_reader",
        "_sends_soon",
        "_state",
        "_task",
        "_transport",
        "_unreadable",
        "_writer",
        "address",
        "context",
        "last_active",
    )

    def __init__(
        self,
        context: ConnectionContext,
        splitter: FrameSplitter,
        dispatch: Dispatch,
        connections: Connections,
    ) -> None:
        self.context = context
        self.address = "?"
        self.last_active = connections.clock()
        context.dispatch = dispatch
        self._connections = connections
        self._clock = connections.clock
        self._memory = connections.memory
        self._reader = RequestReader(splitter, connections)
        context.throttle = self._reader.throttle
        self._writer = ResponseWriter(connections)
        self._state = CONNECTION_STATES.initial
        self._transport: Transport | None = None
        self._task: asyncio.Task[Reply] | None = None  # handles the oldest request if that takes a while
        self._delayed: deque[DelayedReply] = deque()  # replies in the order of their requests, all before the task's
        self._sends_soon = False
        self._unreadable: FrameLengthError | None = None  # the error of what arrived after the last request
        self._finishing = StallTimer()  # watches the requests that are left once nothing more is read

    # -- the transport's side

    def connected(self, transport: Transport) -> None:
        self._transport = transport
        self._reader.start(transport)
        self._writer.start(transport)
        peer = transport.peer
        if peer:
            self.address = peer[0]
            self.context.peer = str(Address(*peer))
        if not self._connections.admit(self):
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        room = self._reader.get_buffer()
        if (self._task is not None or self._delayed) and self._memory.crowded:
            return room[:_READ_WHILE_CROWDED]  # its requests will have to wait here; the rest may wait in the kernel
        return room

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._clock()
        if self._state is not _OPEN:
            nbytes = self._last_bytes(nbytes)
            if not nbytes:
                return
        try:
            complete = self._reader.received(nbytes)
        except FrameLengthError as error:
            self._unreadable = error
            self._end_input()
            self.context.end()
            self._pump()
            return
        if complete:
            self._pump()
        else:
            self._reader.update()

    def eof_received(self) -> bool:
        """Returns whether the connection stays open, for requests that are still to be handled."""
        self._end_input()
        self.context.end()
        if self.busy:
            return True
        self._close_when_done()
        return False

    def pause_writing(self) -> None:
        self._writer.block()

    def resume_writing(self) -> None:
        self._writer.unblock()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._take(ConnectionEvent.LOST)
        self._transport = None
        if self._task is not None:
            self._task.cancel()
        self._delayed.clear()
        self._writer.lost()
        self._reader.lost()
        self._connections.lost(self)
        if self.context.on_close is not None:
            self.context.on_close()

    # -- the broker's side

    @property
    def busy(self) -> bool:
        """True if a request is being handled, waits to be handled, or waits for its answer."""
        return self._task is not None or bool(self._delayed) or bool(self._reader.requests)

    def drain(self) -> None:
        """Accepts no requests that arrive later; closes once the earlier ones are answered."""
        if self._transport is None:
            return
        if self._state is ConnectionState.OPEN:
            if self._transport.expects_input():
                self._take(ConnectionEvent.STOP)
                self._reader.drain(_LAST_READ)
            else:
                self._end_input()
        self._close_when_done()

    def overdue(self, now: float, limits: Limits, *, tight: bool) -> str | None:
        """Returns the reason if the connection has to be closed, else None. Called at least twice in each of the
        limits' periods."""
        if self._transport is None:
            return None
        if self._writer.unread_bytes:
            patience = min(limits.send_s, _TIGHT_SEND_S) if tight else limits.send_s
            return "reads nothing" if self._writer.stalled_s(now) >= patience else None
        if self._state is not ConnectionState.OPEN and self.busy:
            stalled_s = self._finishing.stalled_s(now, len(self._reader.requests))
            return "unhandled requests" if stalled_s >= limits.frame_s else None
        if self._reader.is_unfinished:
            return "unfinished request" if self._reader.is_too_slow(now, limits.frame_s) else None
        quiet = self.last_active < now - limits.idle_s and not self.busy and not self._reader.paused_for
        return "idle" if quiet else None

    def expel(self, reason: str) -> None:
        """Closes at once, and logs why, at most once a second for each reason."""
        self._connections.metrics.connections_closed[reason] += 1
        where = f"{self.context.connection_id} of {self.context.peer}"
        level = logging.INFO if reason == "idle" else logging.WARNING
        text = "closed idle connection %s" if reason == "idle" else "closed connection %s: " + _REASONS[reason]
        more = self._connections.worth_saying(f"closed: {reason}")
        if more is not None:
            log.log(level, text + "%s", where, more, extra=self._fields())
        self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._take(ConnectionEvent.CLOSE)
            self._transport.abort()

    def use_slot(self) -> int:
        """Continues with the writes that waited for the write scheduler; returns how many bytes were written."""
        try:
            if self._writer.begin_slot():
                self._pump()
        finally:
            sent = self._writer.end_slot()
        return sent

    # -- requests

    def _pump(self) -> None:
        """Handles waiting requests, until one has to wait."""
        if self._transport is None:
            return
        writer, requests = self._writer, self._reader.requests
        for _ in range(_BURST):
            if self._task is not None or not requests or writer.paused or writer.awaits_slot:
                break
            if self._delayed and not self._goes_behind(requests[0]):
                break
            if requests[0][1] == _FETCH and self._must_wait_for_slot():
                writer.wait_for_slot(self)
                break
            self._handle(requests.popleft())
        else:
            asyncio.get_running_loop().call_soon(self._pump)
        writer.flush(self)
        if self._state is _FINISHING and not self.busy:
            self._close_when_done()
        else:
            self._reader.update()

    def _goes_behind(self, request: bytearray) -> bool:
        """Returns True if the request is handled while replies before it are delayed: a Produce, since followers
        copy many batches at the cost of one. Other requests may depend on the effect of those before them."""
        return request[1] == _PRODUCE and len(self._delayed) < _MOST_DELAYED

    def _must_wait_for_slot(self) -> bool:
        """Returns True if a Fetch must wait for a write slot: its response may be large, and others are ahead of it."""
        large = self.context.allowance > FIRST_ALLOWANCE
        return large and self._connections.write_scheduler.over and not self._writer.may_fetch

    def _handle(self, request: bytearray) -> None:
        context = self.context
        try:
            outcome = context.dispatch(context, request)
        except Exception as error:
            self._refuse(error)
            return
        if outcome is None:
            return
        if isinstance(outcome, list):
            self._reply(outcome)
        elif isinstance(outcome, DelayedReply):
            self._delay(outcome)
        else:
            self._task = asyncio.get_running_loop().create_task(outcome)
            self._task.add_done_callback(self._answered)
            self._reader.handling = len(request)

    def _answered(self, task: asyncio.Task[Reply]) -> None:
        self._take_answer(task)
        self._memory.give_back(self.context)

    def _take_answer(self, task: asyncio.Task[Reply]) -> None:
        self._task = None
        self._reader.handling = 0
        if task.cancelled():
            self._close()
            return
        error = task.exception()
        if error is not None:
            self._refuse(error)
            return
        self._reply(task.result())
        self._pump()

    def _reply(self, reply: Reply) -> None:
        """Sends a reply after the delayed replies before it."""
        if reply is None:
            return
        if self._delayed:
            self._delayed.append(DelayedReply(lambda: reply, is_ready=True))
        else:
            self._writer.add(reply, self)

    def _delay(self, reply: DelayedReply) -> None:
        self._delayed.append(reply)
        reply.on_ready = self._send_soon
        if reply.is_ready:
            self._send_soon()

    def _send_soon(self) -> None:
        """Sends the replies that become ready in one turn of the event loop together."""
        if not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send_delayed)

    def _send_delayed(self) -> None:
        self._sends_soon = False
        delayed = self._delayed
        if self._transport is None:
            return
        ready: list[Buffer] = []
        while delayed and delayed[0].is_ready:
            try:
                reply = delayed.popleft().take()
            except Exception as error:
                delayed.clear()
                self._writer.add(ready, self)
                self._refuse(error)
                return
            if isinstance(reply, list):
                ready += reply
            elif reply is not None:  # it is held back, and all behind it
                held = reply_of_task(asyncio.get_running_loop().create_task(reply))
                held.on_ready = self._send_soon
                delayed.appendleft(held)
        self._writer.add(ready, self)
        self._pump()

    # -- the end

    def _take(self, event: ConnectionEvent) -> None:
        self._state = CONNECTION_STATES.next(self._state, event)

    def _last_bytes(self, count: int) -> int:
        """Returns how many of the received bytes are still accepted, now that the connection is not open."""
        if self._state is not ConnectionState.DRAINING or self._transport is None:
            return 0
        taken = self._reader.take_last(count)
        if not self._reader.remaining or not self._transport.expects_input():
            self._end_input()
            asyncio.get_running_loop().call_soon(self._pump)  # which closes it, if no request has become complete
        return taken

    def _end_input(self) -> None:
        self._take(ConnectionEvent.INPUT_ENDED)
        self._reader.end()

    def _close_when_done(self) -> None:
        if self.busy or self._state is ConnectionState.DRAINING:
            return
        if self._unreadable is not None:
            self._refuse(self._unreadable)
        else:
            self._close()

    def _refuse(self, error: BaseException) -> None:
        """Closes once the responses are sent, and logs why in one line; nothing more is handled."""
        if self._delayed:
            self._refuse_after_delayed(error)
            return
        self._writer.flush(self)
        context = self.context
        where = f"connection {context.connection_id} of {context.peer} ({context.software_name or 'client unknown'})"
        if isinstance(error, ProtocolError):
            log.warning("closed %s: %s", where, error, extra=self._fields())
        else:
            log.error("closed %s: unexpected %s", where, describe_error(error), extra=self._fields())
        self._connections.metrics.connections_closed["bad request"] += 1
        self._reader.requests.clear()
        self._unreadable = None
        self._close()

    def _refuse_after_delayed(self, error: BaseException) -> None:
        """Refuses once the earlier requests are answered."""

        def fail() -> Outcome:
            raise error

        self._reader.requests.clear()
        self._unreadable = None
        self._end_input()
        self._delay(DelayedReply(fail, is_ready=True))

    def _close(self) -> None:
        """Closes once all responses are sent."""
        if self._transport is not None:
            self._take(ConnectionEvent.CLOSE)
            self._writer.write()
            self._transport.close()

    def _fields(self) -> dict[str, object]:
        """Returns the fields of a log line for programs."""
        context = self.context
        return {"event": "connection closed", "connection": context.connection_id, "client": context.peer}
