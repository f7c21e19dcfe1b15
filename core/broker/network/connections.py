"""All connections of a broker, over all its listeners: which are admitted, and which have to be closed.

Rules: a connection above `max.connections` or its address's `max.connections.per.ip` is closed at once. A periodic
sweep closes connections without traffic for `connections.max.idle.ms`, those whose request stays unfinished and
those whose client does not read its responses. Above `max.connection.creation.rate` (KIP-612, over all listeners)
new ones wait in the kernel's queue. A repeated line is logged at most once a second. Freed memory of responses is
returned to the system once no more of it is being freed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ...protocol.apis import ApiKey
from ...protocol.frames import READ_SIZE
from ...token_bucket import TokenBucket
from ..metrics.counters import BrokerMetrics
from . import allocator
from . import file_descriptors as descriptors
from .limits import Limits
from .memory import Memory
from .write_scheduler import WriteScheduler

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger(__name__)

_PRODUCE: Final = int(ApiKey.PRODUCE)
_SWEEP_MAX_S: Final = 5.0
_SAID_EVERY_S: Final = 1.0
_WORTH_TRIMMING: Final = 16 * 1024 * 1024
"""The number of freed bytes of responses from which on memory is returned to the system."""
_SLICE: Final = 500
"""The number of connections that a sweep examines before it lets the event loop run."""
_FOR_ROOM: Final = 32
"""The most connections that one sweep closes to free memory of responses: if hundreds were closed together, they
would reconnect together."""


class Connections:
    """Belongs to the event loop; `len` and iteration work on any thread."""

    def __init__(
        self, limits: Limits, metrics: BrokerMetrics | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.memory = Memory(limits)
        self.write_scheduler = WriteScheduler()
        self.metrics = metrics or BrokerMetrics()
        self.clock = clock
        self.chunk = bytearray(READ_SIZE)
        """The buffer into which all connections read."""
        self._ids = itertools.count(1)
        self._open: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._sweeper: asyncio.Task[None] | None = None
        self.creation = TokenBucket(limits.creation_rate, clock=clock)
        self._unsaid: Counter[str] = Counter()
        self._said_at: dict[str, float] = {}
        self._freed_then = 0

    @property
    def limits(self) -> Limits:
        return self.memory.limits

    def apply(self, limits: Limits) -> None:
        """Replaces the limits; open connections stay open."""
        self.memory.limits = limits
        self.creation.change(limits.creation_rate)
        self.memory.wake()

    def frame_limit(self, api_key: int) -> int:
        limits = self.memory.limits
        return limits.produce_frame if api_key == _PRODUCE else limits.other_frame

    def next_id(self) -> int:
        return next(self._ids)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    # -- coming and going

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection and returns True; returns False if it must be closed."""
        self.metrics.connections_accepted += 1
        limits = self.memory.limits
        if len(self._open) >= limits.max_connections:
            return self._refuse("max.connections", f"max.connections={limits.max_connections} are open")
        address = connection.address
        most = limits.of_address(address)
        if self._by_address[address] >= most:
            return self._refuse("max.connections.per.ip", f"{address} has max.connections.per.ip={most} open")
        self._open[connection] = None
        self._by_address[address] += 1
        return True

    def _refuse(self, limit: str, why: str) -> bool:
        self.metrics.connections_rejected[limit] += 1
        self._say("connection refused", "closed a new connection", why)
        return False

    def throttled(self) -> None:
        """Counts and logs that new connections wait in the kernel's queue because of their rate."""
        self.metrics.connections_throttled += 1
        rate = self.memory.limits.creation_rate
        self._say("connections throttled", "new connections wait", f"max.connection.creation.rate={rate} is reached")

    def exhausted(self, error: OSError) -> None:
        """Counts and logs that new connections wait in the kernel's queue because no file descriptor is left."""
        self.metrics.connections_throttled += 1
        why = f"{error.strerror}; raise the limit of open files, or lower max.connections"
        self._say("connections throttled", "new connections wait", why)

    def held_up(self, limit: str) -> None:
        """Counts and logs that a connection has to wait because of a limit over all of them."""
        self.metrics.held_up[limit] += 1
        memory, limits = self.memory, self.memory.limits
        now = {
            "queued.max.requests": f"{memory.queued} requests wait, {limits.queued_requests} may",
            "queued.max.request.bytes": f"{memory.held} bytes of requests are held, {limits.request_bytes} may be",
            "queued.max.response.bytes": f"{memory.unread} bytes of answers are unread, {limits.response_bytes} may be",
        }
        self._say(f"{limit} reached", "connections wait", f"{limit}: {now[limit]}")

    def worth_saying(self, event: str) -> str | None:
        """Returns None if a line about this event was logged less than a second ago; else the text to append to it:
        how many lines were suppressed since, or ""."""
        self._unsaid[event] += 1
        if self.clock() - self._said_at.get(event, float("-inf")) < _SAID_EVERY_S:
            return None
        self._said_at[event] = self.clock()
        times = self._unsaid.pop(event, 1)  # worker threads log too
        return f" ({times} times since this was last logged)" if times > 1 else ""

    def _say(self, event: str, what: str, why: str) -> None:
        more = self.worth_saying(event)
        if more is not None:
            log.warning("%s: %s%s", what, why, more, extra={"event": event})

    def lost(self, connection: Connection) -> None:
        if connection in self._open:
            del self._open[connection]
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    # -- the sweep

    def start(self) -> None:
        descriptors.take_all()
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self, grace_s: float) -> int:
        """Lets connections answer the requests received, for at most `grace_s` seconds, then closes all of them.

        Returns how many were closed before they had answered.
        """
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in self:
            connection.drain()
        deadline = self.clock() + grace_s
        while self._open and self.clock() < deadline:
            await asyncio.sleep(0.01)
        cut_off = len(self._open)
        for connection in self:
            connection.abort()
        await asyncio.sleep(0)
        return cut_off

    async def _sweep(self) -> None:
        while True:
            limits = self.memory.limits
            await asyncio.sleep(min(limits.idle_s / 2, limits.frame_s / 2, limits.send_s / 2, _SWEEP_MAX_S))
            for_room = _FOR_ROOM
            for number, connection in enumerate(self, 1):
                tight = self.memory.tight and for_room > 0
                reason = connection.overdue(self.clock(), self.memory.limits, tight=tight)
                if reason is not None:
                    for_room -= tight
                    connection.expel(reason)
                if reason is not None or number % _SLICE == 0:  # freeing its responses may take a millisecond
                    await asyncio.sleep(0)
            await self._trim()

    async def _trim(self) -> None:
        """Returns freed memory to the system if none was freed since the last sweep: until then responses reuse it."""
        freed = self.memory.freed
        if freed >= _WORTH_TRIMMING and freed == self._freed_then:
            self.memory.freed = 0
            await asyncio.to_thread(allocator.trim)
        self._freed_then = self.memory.freed
