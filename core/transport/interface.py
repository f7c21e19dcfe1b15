"""The operations that the broker's and the clients' connections require of their byte stream.

There are two interfaces, because there are two ways of working:

- `Transport`, under a connection of the broker: callbacks on an asyncio event loop. Methods that asyncio's transports
  have keep asyncio's names and meanings.
- `ByteStream`, under a connection of a client: blocking calls with a time-out, or non-blocking calls beside a selector.

Both promise only what holds for TLS too. So neither has a gathering write with the kernel's byte count (`sendmsg`), a
peek at unread bytes (`MSG_PEEK`), or the number of bytes that the kernel has received (`FIONREAD`): on TLS the first
two fail, and the third counts ciphertext. An implementation may use them inside.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ..protocol.messages import Buffer
from .address import Address

# -- under the broker


class Transport(Protocol):
    """A byte stream to one client. Belongs to the event loop.

    It may be called until its handler's `connection_lost` is; once it is closing, calls change nothing.
    """

    @property
    def peer(self) -> tuple[str, int] | None:
        """The client's address and port; None where it has none."""
        ...

    def expects_input(self) -> bool:
        """Returns whether bytes that the client has sent already are still to be delivered, as far as is known.

        After True, `buffer_updated` is called at least once more unless reading is paused: with 0 bytes if the
        received bytes hold none for the handler (half a TLS record).
        """
        ...

    def writelines(self, pieces: list[Buffer], /) -> None:
        """Sends the pieces in order. Never blocks: bytes that the kernel does not accept are kept until it does.

        May call the handler's `pause_writing` before it returns.
        """
        ...

    def get_write_buffer_size(self) -> int:
        """Returns the bytes of memory that hold data for the kernel, ciphertext included."""
        ...

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """Sets the limits at which the handler's `pause_writing` (over `high` bytes) and `resume_writing` (`low` or
        fewer) are called.
        """
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def grow_send_buffer(self) -> None:
        """Lets the kernel choose the size of the send buffer from now on. A hint."""
        ...

    def is_closing(self) -> bool: ...

    def close(self) -> None:
        """Closes once everything written is sent."""
        ...

    def abort(self) -> None:
        """Closes at once; what is not sent is dropped."""
        ...


class TransportHandler(asyncio.BufferedProtocol, ABC):
    """The methods that a transport calls, on the event loop: those of asyncio's `BufferedProtocol`, with `connected` in
    place of `connection_made`.

    `eof_received` returns True to keep the stream open for writing. `connection_lost` is the last call.
    """

    __slots__ = ()

    @abstractmethod
    def connected(self, transport: Transport) -> None:
        """The TCP connection is open. A transport that negotiates first (TLS) delivers nothing before it has done so,
        and bounds the time that this takes."""

    @abstractmethod
    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for the next bytes; `buffer_updated` receives their number."""


Accept = Callable[[socket.socket, Callable[[], TransportHandler]], Awaitable[None]]
"""Wraps an accepted, non-blocking TCP socket in a transport, and connects it to a new handler.

Raises `OSError` if the connection has been closed already. The transport owns the socket from then on.
"""

Connect = Callable[[Address, Callable[[], TransportHandler]], Awaitable[None]]
"""Connects to another broker, and wraps the connection in a transport with its handler. Raises `OSError`."""


# -- under a client


class ByteStream(Protocol):
    """A byte stream to one broker. Used by one thread at a time, except for `close`.

    It starts in blocking mode; `set_nonblocking` ends that for good. Failures are `OSError`; a time-out is
    `TimeoutError`.
    """

    def read_into(self, buffer: memoryview, timeout_s: float) -> int:
        """Blocking. Returns how many bytes were written into `buffer`, 0 at the end of the stream. A time-out loses
        no bytes: the next call continues."""
        ...

    def write_all(self, data: bytes, timeout_s: float) -> None:
        """Blocking. Returns when the kernel has accepted every byte."""
        ...

    def is_quiet(self) -> bool:
        """Returns whether the broker has neither closed the stream nor sent bytes that were not read.

        Blocking mode, but does not wait. It may consume what it finds: a stream that is not quiet is to be closed.
        """
        ...

    def set_nonblocking(self) -> None: ...

    def fileno(self) -> int:
        """Returns the descriptor to register with a selector."""
        ...

    def read_available(self, buffer: memoryview) -> int | None:
        """Non-blocking. Returns how many bytes were written into `buffer`, 0 at the end of the stream, None if nothing
        can be read now."""
        ...

    @property
    def has_buffered_input(self) -> bool:
        """Returns True if there are received bytes that a selector does not see; read until there are none."""
        ...

    def write_available(self, pieces: Iterable[memoryview]) -> int:
        """Non-blocking. Returns how many bytes, from the first piece on, were accepted; 0 if none can be accepted
        now.

        After 0, the same bytes must be offered again.
        """
        ...

    def events(self, *, writing: bool) -> int:
        """Returns the selector events to wait for; `writing`: there are bytes to write.

        At an event, read if it is `EVENT_READ` or if there is nothing to write, then write: TLS may have to write
        before it can read, and the other way round.
        """
        ...

    def close(self) -> None:
        """Ends a blocking call in another thread, which raises `OSError` or reads the end of the stream."""
        ...


Dial = Callable[[Address, float], ByteStream]
"""Connects to a broker within so many seconds, TLS handshake included, or raises `OSError`."""
