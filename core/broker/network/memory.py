"""The memory that all connections together hold: received requests, and responses that their clients have not read.

Rules: while `queued.max.request.bytes` are in use, a request larger than one network read waits for memory; one at a
time may proceed, so that there is always progress. A response may always use 64 KiB (or one batch, if that is
larger), and more while few bytes are unread. Its bytes are reserved before they are read from the log, and the
reservation is released once they count as unread. So requests use at most their limit and one small network read for
each connection. Responses use at most their limit and, for each connection whose client does not read, 64 KiB that
are not counted yet and one response of 64 KiB or one batch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from ..request import ConnectionContext
from .limits import Limits

LEAST_ROOM = 64 * 1024
_STEP = 1024 * 1024  # bytes by which a request may grow before it is examined again


class Waiter(Protocol):
    def review_reading(self) -> None:
        """Called when there may be memory for its request."""
        ...


class Memory:
    """`held`: bytes of requests. `unread`: bytes of responses that clients have not read. `taken`: bytes reserved for
    responses being built. `queued`: requests that wait behind another one of their connection."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.unread = 0
        self.taken = 0
        self.queued = 0
        self.freed = 0
        """Bytes of responses that were freed since the counter was set to 0."""
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        self._first: Waiter | None = None

    # -- requests

    @property
    def many_queued(self) -> bool:
        return self.queued > self.limits.queued_requests

    @property
    def crowded(self) -> bool:
        """True if too many requests, or too many bytes of them, wait to be handled."""
        return self.held > self.limits.request_bytes or self.many_queued

    def may_grow(self, request_of: Waiter) -> bool:
        """Returns whether more of a large request may be read; if not, `review_reading` is called later."""
        if self.held <= self.limits.request_bytes or self._first is request_of:
            self._waiting.pop(request_of, None)
            return True
        if self._first is None:
            self._first = request_of
            self._waiting.pop(request_of, None)
            return True
        self._waiting[request_of] = None
        return False

    def done(self, request_of: Waiter) -> None:
        """Ends a connection's wait or reservation: its large request is complete, or it is closed. Wakes others."""
        self._waiting.pop(request_of, None)
        if self._first is request_of:
            self._first = None
        self.wake()

    def wake(self) -> None:
        """Calls `review_reading` of waiting connections, the longest wait first, as far as there is memory."""
        room = self.limits.request_bytes - self.held
        for _ in range(min(len(self._waiting), max(room // _STEP, 0 if self._first else 1))):
            waiter, _ = self._waiting.popitem(last=False)
            waiter.review_reading()

    # -- responses

    @property
    def tight(self) -> bool:
        """True if clients have left too many bytes of responses unread."""
        return self.unread > self.limits.response_bytes

    def response_limit(self) -> int:
        """Returns how many bytes a response may have if it is built now."""
        left = self.limits.response_bytes - self.unread - self.taken
        return max(left // 4, LEAST_ROOM)

    def responses_released(self, size: int) -> None:
        """Records that so many bytes were read by their client, or that their connection is lost."""
        self.unread -= size
        self.freed += size

    def take(self, context: ConnectionContext) -> int:
        """Reserves the bytes that `response_limit` returns, for the response being built for a connection, until
        `give_back`; returns their number."""
        self.give_back(context)
        context.taken = self.response_limit()
        self.taken += context.taken
        return context.taken

    def give_back(self, context: ConnectionContext) -> None:
        """Releases the reservation: the response now counts as unread, or there is none."""
        self.taken -= context.taken
        context.taken = 0
