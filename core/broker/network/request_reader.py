"""The receiving half of a broker's connection: the requests that have arrived and are not handled yet.

Rules: at most `PIPELINED` requests wait behind the one being handled, fewer while all connections together hold too
much; then reading pauses. It resumes at half as many. A request larger than one network read may have to wait for
memory (`memory.py`). Reading pauses, too, while the client is throttled. Each reason for a pause ends by itself, and
reading resumes when the last has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from ...protocol.frames import FrameLengthError, FrameSplitter
from ...transport.interface import Transport
from .connections import Connections

PIPELINED: Final = 64
"""Requests of one connection that wait behind the one being handled."""

_CROWDED: Final = 1
_THROTTLED: Final = 2
_ENDED: Final = 4
"""Reasons for a pause, as bits: too many requests wait, the client is above its quota, the input has ended."""

_LEAST_PROGRESS: Final = 64 * 1024  # bytes of an unfinished request in one period


class RequestReader:
    """Belongs to the event loop. Owns the received bytes, and whether the transport reads. The connection removes
    requests from `requests`, oldest first."""

    __slots__ = (
        "_connections",
        "_held",
        "_memory",
        "_queued",
        "_splitter",
        "_throttle",
        "_transport",
        "_unfinished",
        "get_buffer",
        "handling",
        "paused_for",
        "remaining",
        "requests",
    )

    def __init__(self, splitter: FrameSplitter, connections: Connections) -> None:
        self._splitter = splitter
        self._connections = connections
        self._memory = connections.memory
        self._transport: Transport | None = None
        self.get_buffer = splitter.get_buffer
        self.requests: deque[bytearray] = deque()
        self.handling = 0
        """Bytes of the request that a task is handling."""
        self.paused_for = 0
        """The reasons for which reading is paused, as bits; 0 if it is not."""
        self.remaining = 0
        """The number of further bytes that are accepted after `drain` was called."""
        self._throttle: asyncio.TimerHandle | None = None
        self._held = 0  # bytes of requests that `Memory` counts for this connection
        self._queued = 0  # requests that it counts as waiting
        # the time since when a request is unfinished, and its bytes at that time
        self._unfinished: tuple[float, int] | None = None

    def start(self, transport: Transport) -> None:
        self._transport = transport

    def received(self, count: int) -> bool:
        """Takes `count` bytes that were written into `get_buffer()`; returns whether they completed a request.

        Raises `FrameLengthError` if what follows is no request; those ahead of it are in `requests`.
        """
        try:
            frames = self._splitter.received(count)
        except FrameLengthError as error:
            self.requests += error.ahead
            self._memory.done(self)
            raise
        if not frames:
            return False
        self._unfinished = None
        if self._held:
            self._memory.done(self)
        self.requests += frames
        return True

    def drain(self, most: int) -> None:
        """Limits the bytes that are still accepted to `most`; see `take_last`."""
        self.remaining = most

    def take_last(self, count: int) -> int:
        """Returns how many of `count` received bytes are still accepted."""
        taken = min(count, self.remaining)
        self.remaining -= taken
        return taken

    def end(self) -> None:
        """Reads nothing more."""
        self._pause(_ENDED)

    def throttle(self, seconds: float) -> None:
        """Reads nothing for that time; requests that have arrived are handled."""
        if self._throttle is not None:
            self._throttle.cancel()
        self._pause(_THROTTLED)
        self._throttle = asyncio.get_running_loop().call_later(seconds, self._resume, _THROTTLED)

    def lost(self) -> None:
        """Releases everything that the lost connection held."""
        self._transport = None
        if self._throttle is not None:
            self._throttle.cancel()
        self.requests.clear()
        self._memory.held -= self._held
        self._memory.queued -= self._queued
        self._held = self._queued = 0
        self._memory.done(self)

    @property
    def is_unfinished(self) -> bool:
        """True if a part of a request has arrived and its rest may follow."""
        return self._splitter.begun > 0 and not self.paused_for

    def is_too_slow(self, now: float, period_s: float) -> bool:
        """Returns True if the unfinished request brought less than 64 KiB in the last period. Called at least twice in
        each.
        """
        since, bytes_then = self._unfinished or (now, 0)
        self._unfinished = (since, bytes_then)
        if now - since < period_s:
            return False
        if self._splitter.begun - bytes_then < _LEAST_PROGRESS:
            return True
        self._unfinished = (now, self._splitter.begun)
        return False

    # -- flow control

    def update(self) -> None:
        """Counts the bytes held, and pauses or resumes reading; call it after each change of `requests`."""
        if self.requests or self._held or self._queued or self.paused_for or self._splitter.held:
            self._count()
            self.review_reading()

    def review_reading(self) -> None:
        """Pauses or resumes reading, by what waits on this connection and on all. `Memory` calls it too."""
        waiting = len(self.requests)
        crowded = self.paused_for & _CROWDED
        most = 0 if self._memory.many_queued else PIPELINED // 2 if crowded else PIPELINED
        full = self._splitter.held > 0 and not self._memory.may_grow(self)
        if waiting > most or full:
            if not crowded and (full or not most):
                self._connections.held_up("queued.max.request.bytes" if full else "queued.max.requests")
            self._pause(_CROWDED)
        elif crowded:
            self._resume(_CROWDED)

    def _count(self) -> None:
        memory = self._memory
        held = self._splitter.held + self.handling + sum(map(len, self.requests))
        shrunk = held < self._held
        memory.held += held - self._held
        memory.queued += len(self.requests) - self._queued
        self._held, self._queued = held, len(self.requests)
        if shrunk:
            memory.wake()

    def _pause(self, reason: int) -> None:
        if self._transport is None:
            return
        if not self.paused_for:
            self._unfinished = None
            self._transport.pause_reading()
        self.paused_for |= reason

    def _resume(self, reason: int) -> None:
        self.paused_for &= ~reason
        if not self.paused_for and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
