"""One client connection: frames in, handled one after the other, responses out in the same order.

Rules: at most `queued_requests` requests wait behind the one that is being handled, then reading pauses; while the
client does not read its responses, nothing more is handled; what a request is waiting for (a parked Fetch) is cancelled
with the connection; a request that cannot be read closes the connection with one line in the log. The answers to
requests that came together go out together: one write to the socket costs as much as handling a small request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from klamm.core.broker.context import ConnectionContext
from klamm.core.errors import ProtocolError
from klamm.core.protocol.frames import FrameSplitter
from klamm.core.protocol.messages import Buffer

log = logging.getLogger(__name__)

Reply = list[Buffer] | None
"""The pieces of a response frame; None: there is no response (acks=0)."""

Dispatch = Callable[[ConnectionContext, bytearray], "Reply | Coroutine[Any, Any, Reply]"]

WRITE_BUFFER_HIGH = 4 * 1024 * 1024
_BURST = 16  # requests handled before other connections get their turn
_GATHERED = 64 * 1024  # bytes of answers that may wait for the next one


class Connection(asyncio.BufferedProtocol):
    def __init__(
        self,
        context: ConnectionContext,
        splitter: FrameSplitter,
        dispatch: Dispatch,
        clock: Callable[[], float],
        on_lost: Callable[[Connection], None],
        queued_requests: int,
    ) -> None:
        self.context = context
        self._splitter = splitter
        self._dispatch = dispatch
        self._clock = clock
        self._on_lost = on_lost
        self._queued_requests = queued_requests
        self._transport: asyncio.Transport | None = None
        self._requests: deque[bytearray] = deque()
        self._task: asyncio.Task[Reply] | None = None
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        self._reading_paused = False
        self._writing_paused = False
        self._draining = False
        self._unwelcome = False
        self.last_active = clock()

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        peer = transport.get_extra_info("peername")
        self.context.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        if self._unwelcome:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._splitter.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._clock()
        if self._draining:
            return
        try:
            self._requests += self._splitter.received(nbytes)
        except ProtocolError as error:
            self._refuse(error)
            return
        self._pump()
        if len(self._requests) > self._queued_requests:
            self._pause_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._requests.clear()
        if self._task is not None:
            self._task.cancel()
        self._on_lost(self)

    # -- the broker's side

    @property
    def busy(self) -> bool:
        """A request is being handled, or waits to be."""
        return self._task is not None or bool(self._requests)

    def turn_away(self) -> None:
        """Close as soon as it is there."""
        self._unwelcome = True

    def drain(self) -> None:
        """Take no more requests; close once the one being handled is answered."""
        self._draining = True
        self._requests.clear()
        if self._task is None:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -- the work

    def _pump(self) -> None:
        """Handle what is waiting, until something has to be waited for."""
        for _ in range(_BURST):
            if self._transport is None or self._task is not None or self._writing_paused or not self._requests:
                break
            self._handle(self._requests.popleft())
        else:
            asyncio.get_running_loop().call_soon(self._pump)
        self._send()
        if self._reading_paused and len(self._requests) <= self._queued_requests // 2:
            self._resume_reading()

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

    def _answered(self, task: asyncio.Task[Reply]) -> None:
        self._task = None
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
        if self._draining:
            self._send()
            self.close()
        else:
            self._pump()

    def _gather(self, reply: list[Buffer]) -> None:
        self._gathered += reply
        self._gathered_bytes += sum(map(len, reply))
        if self._gathered_bytes >= _GATHERED:
            self._send()

    def _send(self) -> None:
        """Write what was gathered; may call `pause_writing`."""
        if self._gathered:
            pieces, self._gathered, self._gathered_bytes = self._gathered, [], 0
            if self._transport is not None:
                self._transport.writelines(pieces)

    def _refuse(self, error: BaseException) -> None:
        """Close, once what is answered is sent, and say why in one line."""
        self._send()
        context = self.context
        where = f"connection {context.connection_id} of {context.peer} ({context.software_name or 'client unknown'})"
        if isinstance(error, ProtocolError):
            log.warning("closed %s: %s", where, error)
        else:
            log.error("closed %s: unexpected %s", where, describe(error))
        self._requests.clear()
        self._draining = True
        self.close()

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._reading_paused = False


def describe(error: BaseException) -> str:
    """An unexpected error in one line: its kind, its message and where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
