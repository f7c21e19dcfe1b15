"""A non-blocking connection from the sender to one broker, opened again with back-off when it breaks.

- `prepare` starts a dial once the back-off is over, on a thread of its own: DNS and connect may block.
- An up channel sends ApiVersions first; `can_send` is True once it is answered, and the back-off is reset.
- "failed" is a failed dial, a broken stream, a protocol error or a time-out. The owner calls `fail`, and sends again
  what was in flight. The back-off grows with each failure in a row.

One thread (the sender) calls everything; the dialling thread only leaves its result and wakes the sender.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from ...errors import ProtocolError
from ...protocol.apis import ApiKey
from ...state_table import StateTable
from ...transport.address import Address
from ...transport.interface import ByteStream
from ..errors import ConnectionFailedError
from .blocking_connection import reason
from .connection import Build, ClientConnection, ClientConnectionState, Response
from .pool import SETUP_TIMEOUT_S
from .request_router import Network

_READS_PER_EVENT = 16
"""Bounds the reads per event, so that one broker's answers do not delay those of others."""

_PIECES_PER_WRITE = 64
"""Far below what the kernel accepts in one call (IOV_MAX, 1024): a Produce request has two pieces for each
partition.
"""

_MOST_UNSENT = 1 << 20
"""The bytes waiting for the kernel's buffer from which on no request is added."""


class ChannelState(Enum):
    DOWN = "down"
    DIALLING = "dialling"
    UP = "up"
    CLOSED = "closed"


class ChannelEvent(Enum):
    DIAL = "back-off over"
    CONNECTED = "dial succeeded"
    FAILED = "failed"
    CLOSE = "closed by owner"


CHANNEL_STATES = StateTable(
    "channel", ChannelState, ChannelEvent,
    """
    state     event            next state
    down      back-off over    dialling
    dialling  dial succeeded   up
    down      failed           down
    dialling  failed           down
    up        failed           down
    down      closed by owner  closed
    dialling  closed by owner  closed
    up        closed by owner  closed
    closed    closed by owner  closed
    """,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Dialled:
    """The result of the dialling thread: one of the two is set."""

    stream: ByteStream | None
    error: OSError | None


class Channel:
    def __init__(
        self,
        address: Address,
        make_protocol: Callable[[], ClientConnection],
        network: Network,
        selector: selectors.BaseSelector,
        wake: Callable[[], None],
    ) -> None:
        self.address = address
        self.state = CHANNEL_STATES.initial
        self.retry_at_s = 0.0
        """When it may be dialled again (monotonic seconds)."""
        self._make_protocol = make_protocol
        self._network = network
        self._selector = selector
        self._wake = wake
        self._protocol = make_protocol()
        self._stream: ByteStream | None = None
        self._dialled: _Dialled | None = None
        self._lock = threading.Lock()  # guards `_dialled` and the change to CLOSED, which the dialling thread reads
        self._events = 0  # the events that the selector watches for
        self._failures = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._up_since_s = 0.0

    @property
    def can_send(self) -> bool:
        return self.state is ChannelState.UP and self._unsent_bytes < _MOST_UNSENT and self._protocol.can_send

    @property
    def written(self) -> bool:
        """True if the kernel has all bytes that were sent."""
        return not self._unsent

    @property
    def failing(self) -> bool:
        """True from a failure until the broker answers again."""
        return self._failures > 0

    @property
    def negotiating_since_s(self) -> float | None:
        """The time at which the connection came up, while ApiVersions is unanswered; otherwise None."""
        negotiating = self.state is ChannelState.UP and self._protocol.state is ClientConnectionState.NEGOTIATING
        return self._up_since_s if negotiating else None

    def prepare(self) -> None:
        """Starts to connect if the back-off is over, and takes over a finished dial. Raises `ConnectionFailedError`
        when a dial has failed or cannot start."""
        if self.state is ChannelState.DOWN and self._network.clock() >= self.retry_at_s:
            self._take(ChannelEvent.DIAL)
            try:
                threading.Thread(target=self._dial, name=f"klamm-dial-{self.address}", daemon=True).start()
            except RuntimeError as error:  # the system has no thread left for now
                raise ConnectionFailedError(f"cannot connect to {self.address}: {error}") from error
        elif self.state is ChannelState.DIALLING and self._dialled is not None:
            self._begin(self._dialled)

    def send(self, api: ApiKey, build: Build, *, answered: bool = True) -> int:
        """Sends a request and returns its correlation id. Raises `ConnectionFailedError` if the connection breaks.
        Refused unless `can_send`.
        """
        correlation_id = self._protocol.send(api, build, answered=answered)
        self._push()
        return correlation_id

    def on_event(self, mask: int) -> list[Response]:
        """Reads and writes after the selector's event. Raises `ConnectionFailedError` or `ProtocolError` if the
        connection has ended; the owner then calls `fail`.
        """
        responses: list[Response] = []
        if mask & selectors.EVENT_READ or not self._unsent:  # a write event without data to write: TLS requested it
            responses = self._pull()
        self._push()
        return responses

    def fail(self) -> None:
        """Closes the connection; the next `prepare` after the back-off dials again."""
        self._hang_up()
        self._failures += 1
        self._take(ChannelEvent.FAILED)
        self.retry_at_s = self._network.clock() + self._network.reconnect.delay(self._failures)

    def close(self) -> None:
        """Closes for good; a dial in progress is closed when it succeeds."""
        with self._lock:
            self._take(ChannelEvent.CLOSE)
            dialled, self._dialled = self._dialled, None
        if dialled is not None and dialled.stream is not None:
            dialled.stream.close()
        self._hang_up()

    def _take(self, event: ChannelEvent) -> None:
        self.state = CHANNEL_STATES.next(self.state, event)

    def _hang_up(self) -> None:
        opened, self._stream = self._stream, None
        self._events = 0
        self._protocol.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        if opened is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(opened)
            opened.close()

    def _dial(self) -> None:
        try:
            opened = self._network.dial(self.address, SETUP_TIMEOUT_S)
        except OSError as error:
            self._dialled = _Dialled(None, error)
        else:
            with self._lock:
                if self.state is ChannelState.CLOSED:
                    opened.close()
                    return
                self._dialled = _Dialled(opened, None)
        self._wake()

    def _begin(self, dialled: _Dialled) -> None:
        self._dialled = None
        if dialled.stream is None:
            raise ConnectionFailedError(f"cannot connect to {self.address}: {reason(dialled.error or OSError())}")
        self._stream = dialled.stream
        try:
            self._stream.set_nonblocking()
            self._events = self._stream.events(writing=False)
            self._selector.register(self._stream, self._events, self)
        except OSError as error:
            raise self._broken(error) from error
        self._protocol = self._make_protocol()
        self._protocol.open()
        self._take(ChannelEvent.CONNECTED)
        self._up_since_s = self._network.clock()
        self._push()

    def _pull(self) -> list[Response]:
        responses: list[Response] = []
        reads = 0
        while self._stream is not None and (reads < _READS_PER_EVENT or self._stream.has_buffered_input):
            try:
                count = self._stream.read_available(self._protocol.get_buffer())
            except OSError as error:
                raise self._broken(error) from error
            if count is None:
                break
            if count == 0:
                raise ConnectionFailedError(f"{self.address} closed the connection")
            responses += self._protocol.received(count)
            reads += 1
        if self._protocol.state is ClientConnectionState.READY:
            self._failures = 0
        return responses

    def _push(self) -> None:
        """Writes what the kernel accepts; the selector reports when it accepts more."""
        if self._stream is None:
            return
        for piece in self._protocol.take_pieces():
            if piece:
                self._unsent.append(memoryview(piece))
                self._unsent_bytes += len(piece)
        try:
            while self._unsent:
                count = self._stream.write_available(islice(self._unsent, _PIECES_PER_WRITE))
                if count == 0:
                    break
                self._wrote(count)
            self._watch(self._stream)
        except OSError as error:
            raise self._broken(error) from error

    def _wrote(self, count: int) -> None:
        self._unsent_bytes -= count
        while self._unsent and count >= len(self._unsent[0]):
            count -= len(self._unsent.popleft())
        if count:
            self._unsent[0] = self._unsent[0][count:]

    def _watch(self, stream: ByteStream) -> None:
        events = stream.events(writing=bool(self._unsent))
        if events != self._events:
            self._events = events
            self._selector.modify(stream, events, self)

    def _broken(self, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"the connection to {self.address} broke: {reason(error)}")


CHANNEL_ERRORS = (ConnectionFailedError, ProtocolError)
"""Errors that end a channel; a `KlammError` of another kind concerns one request."""
