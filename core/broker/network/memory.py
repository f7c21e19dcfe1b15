"""What all connections together hold in memory: requests that came, and responses that their clients do not read.

Rules: a request larger than one network read waits for its place when `queued.max.request.bytes` are taken, except one
at a time, so that there is always one that goes on; a response may always have 64 KiB (or one batch, where that is
larger), and more while little waits unread. What a response may have is taken before it is read from the log, and given
back once it is counted as unread. So requests stay within their limit, and one small network read for each connection;
responses stay within theirs, and for each connection that does not read 64 KiB that are not counted yet and one
response of 64 KiB or one batch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from .context import ConnectionContext
from .limits import Limits

LEAST_ROOM = 64 * 1024
_STEP = 1024 * 1024  # by so much a request may grow before it is asked about again


class Waiter(Protocol):
    def review_reading(self) -> None:
        """There may be a place now."""
        ...


class Memory:
    """`held` bytes of requests, `unread` bytes of responses, `taken` bytes for responses that are being made, `queued`
    requests that wait behind another one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0
        self.unread = 0
        self.taken = 0
        self.queued = 0
        self.freed = 0
        """Bytes of responses that were held and are not any more; set back by whoever has seen to it."""
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()
        self._first: Waiter | None = None

    # -- requests

    @property
    def many_queued(self) -> bool:
        return self.queued > self.limits.queued_requests

    @property
    def crowded(self) -> bool:
        """Too much waits to be handled, in number or in bytes."""
        return self.held > self.limits.request_bytes or self.many_queued

    def may_grow(self, request_of: Waiter) -> bool:
        """Whether a large request may go on; if not, `review_reading` is called later."""
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
        """Its large request is whole, or its connection lost: others may have their turn."""
        self._waiting.pop(request_of, None)
        if self._first is request_of:
            self._first = None
        self.wake()

    def wake(self) -> None:
        """Ask the waiting ones again, the longest first, as many as there is room for."""
        room = self.limits.request_bytes - self.held
        for _ in range(min(len(self._waiting), max(room // _STEP, 0 if self._first else 1))):
            waiter, _ = self._waiting.popitem(last=False)
            waiter.review_reading()

    # -- responses

    @property
    def tight(self) -> bool:
        """Too much waits to be read by clients that do not read."""
        return self.unread > self.limits.response_bytes

    def room(self) -> int:
        """How many bytes a response may have that is made here and now, without anything else in between."""
        left = self.limits.response_bytes - self.unread - self.taken
        return max(left // 4, LEAST_ROOM)

    def responses_gone(self, size: int) -> None:
        """They were read, or their connection is lost."""
        self.unread -= size
        self.freed += size

    def take(self, context: ConnectionContext) -> int:
        """The same for the one response that is being made for a connection, which has it until `give_back`."""
        self.give_back(context)
        context.taken = self.room()
        self.taken += context.taken
        return context.taken

    def give_back(self, context: ConnectionContext) -> None:
        """Its response waits to be read and is counted so, or there will be none."""
        self.taken -= context.taken
        context.taken = 0
