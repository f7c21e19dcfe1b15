"""A non-blocking connection from the sender to one broker, opened again with back-off when it breaks.

    state        event                                next state
    DOWN         prepare() after the back-off         DIALLING   (a thread of its own dials: DNS, connect may block)
    DIALLING     the dial succeeds                    UP         (ApiVersions goes out; `can_send` once answered)
    DIALLING     the dial fails                       DOWN       (longer back-off)
    UP           the broker answers ApiVersions       UP         (the back-off begins anew)
    UP           broken, protocol error, time-out     DOWN       (what was in flight is the owner's to send again)

One thread (the sender) calls everything; the dialling thread only leaves its result and wakes the sender.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from ...errors import ProtocolError
from ...protocol.apis import ApiKey
from ..errors import ConnectionFailedError
from .connection import Build, ClientConnection, ConnectionState, Response
from .pool import SETUP_TIMEOUT_S
from .request_router import Network
from .transport import Address, reason

_READS_PER_EVENT = 16
"""So that one broker's answers do not hold up the others'."""

_PIECES_PER_WRITE = 64
"""Far below what the kernel takes in one call (IOV_MAX, 1024): a Produce request has two for each partition."""

_MOST_UNSENT = 1 << 20
"""Bytes that wait for the kernel's buffer, from which on no request is added."""


class ChannelState(Enum):
    DOWN = "down"
    DIALLING = "dialling"
    UP = "up"


@dataclass(frozen=True, slots=True)
class _Dialled:
    """What the dialling thread leaves: one of the two is set."""

    socket: socket.socket | None
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
        self.state = ChannelState.DOWN
        self.retry_at_s = 0.0
        """When it may be dialled again (monotonic seconds)."""
        self._make_protocol = make_protocol
        self._network = network
        self._selector = selector
        self._wake = wake
        self._protocol = make_protocol()
        self._socket: socket.socket | None = None
        self._dialled: _Dialled | None = None
        self._lock = threading.Lock()  # of the two that the dialling thread also uses
        self._closed = False
        self._writing = False
        self._failures = 0
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._up_since_s = 0.0

    @property
    def can_send(self) -> bool:
        return self.state is ChannelState.UP and self._unsent_bytes < _MOST_UNSENT and self._protocol.can_send

    @property
    def written(self) -> bool:
        """The kernel has all that was sent."""
        return not self._unsent

    @property
    def negotiating_since_s(self) -> float | None:
        """When the connection came up, while ApiVersions is not answered."""
        negotiating = self.state is ChannelState.UP and self._protocol.state is ConnectionState.NEGOTIATING
        return self._up_since_s if negotiating else None

    def prepare(self) -> None:
        """Move towards UP, if it is time to. Raises `ConnectionFailedError` when a dial has failed."""
        if self.state is ChannelState.DOWN and self._network.clock() >= self.retry_at_s:
            self.state = ChannelState.DIALLING
            threading.Thread(target=self._dial, name=f"klamm-dial-{self.address}", daemon=True).start()
        elif self.state is ChannelState.DIALLING and self._dialled is not None:
            self._begin(self._dialled)

    def send(self, api: ApiKey, build: Build, *, answered: bool = True) -> int:
        """The correlation id; `ConnectionFailedError` when the connection breaks. Refused unless `can_send`."""
        correlation_id = self._protocol.send(api, build, answered=answered)
        self._push()
        return correlation_id

    def on_event(self, mask: int) -> list[Response]:
        """After the selector: read and write what can be. `ConnectionFailedError` or `ProtocolError` when it is over;
        the owner then calls `fail`."""
        responses: list[Response] = []
        if mask & selectors.EVENT_READ:
            responses = self._pull()
        self._push()
        return responses

    def fail(self) -> None:
        """Close; the next `prepare` after the back-off dials again."""
        self._hang_up()
        self._failures += 1
        self.state = ChannelState.DOWN
        self.retry_at_s = self._network.clock() + self._network.reconnect.delay(self._failures)

    def close(self) -> None:
        """For good; a dial under way is closed when it succeeds."""
        with self._lock:
            self._closed = True
            dialled, self._dialled = self._dialled, None
        if dialled is not None and dialled.socket is not None:
            dialled.socket.close()
        self._hang_up()

    def _hang_up(self) -> None:
        opened, self._socket = self._socket, None
        self._writing = False
        self._protocol.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        if opened is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(opened)
            opened.close()

    def _dial(self) -> None:
        try:
            opened = self._network.dial((self.address.host, self.address.port), SETUP_TIMEOUT_S)
        except OSError as error:
            self._dialled = _Dialled(None, error)
        else:
            with self._lock:
                if self._closed:
                    opened.close()
                    return
                self._dialled = _Dialled(opened, None)
        self._wake()

    def _begin(self, dialled: _Dialled) -> None:
        self._dialled = None
        if dialled.socket is None:
            raise ConnectionFailedError(f"cannot connect to {self.address}: {reason(dialled.error or OSError())}")
        self._socket = dialled.socket
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ, self)
        self._protocol = self._make_protocol()
        self._protocol.open()
        self.state = ChannelState.UP
        self._up_since_s = self._network.clock()
        self._push()

    def _pull(self) -> list[Response]:
        responses: list[Response] = []
        for _ in range(_READS_PER_EVENT):
            if self._socket is None:
                break
            try:
                count = self._socket.recv_into(self._protocol.get_buffer())
            except BlockingIOError:
                break
            except OSError as error:
                raise self._broken(error) from error
            if count == 0:
                raise ConnectionFailedError(f"{self.address} closed the connection")
            responses += self._protocol.received(count)
        if self._protocol.state is ConnectionState.READY:
            self._failures = 0
        return responses

    def _push(self) -> None:
        """Write what the kernel takes; the selector tells when it takes more."""
        if self._socket is None:
            return
        for piece in self._protocol.take_pieces():
            self._unsent.append(memoryview(piece))
            self._unsent_bytes += len(piece)
        try:
            while self._unsent:
                self._wrote(self._socket.sendmsg(islice(self._unsent, _PIECES_PER_WRITE)))
        except BlockingIOError:
            self._watch(self._socket, writing=True)
        except OSError as error:
            raise self._broken(error) from error
        else:
            self._watch(self._socket, writing=False)

    def _wrote(self, count: int) -> None:
        self._unsent_bytes -= count
        while self._unsent and count >= len(self._unsent[0]):
            count -= len(self._unsent.popleft())
        if count:
            self._unsent[0] = self._unsent[0][count:]

    def _watch(self, opened: socket.socket, *, writing: bool) -> None:
        if writing != self._writing:
            self._writing = writing
            self._selector.modify(opened, selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0), self)

    def _broken(self, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"the connection to {self.address} broke: {reason(error)}")


CHANNEL_ERRORS = (ConnectionFailedError, ProtocolError)
"""What ends a channel; a `KlammError` of another kind is about one request."""
