"""A blocking socket under the connection's state machine: one request out, its answer in, within a time limit.

Foreign errors (OSError) end here: a caller sees `ConnectionFailedError` or `RequestTimeoutError`, which name the
address. After either the connection is closed, since a late answer would be taken for the next request's.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import ProtocolError
from ...protocol.apis import ApiKey
from ..errors import ConnectionFailedError, RequestTimeoutError
from .connection import Build, ClientConnection, ConnectionState

Dial = Callable[[tuple[str, int], float], socket.socket]
"""Opens a TCP connection to (host, port) within seconds, or raises OSError."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def dial(address: tuple[str, int], timeout_s: float) -> socket.socket:
    """TCP without Nagle's delay: requests are whole when they are written."""
    opened = socket.create_connection(address, timeout_s)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


class BlockingConnection:
    """One socket to one broker, negotiated. Not thread-safe: the pool lends it to one caller at a time."""

    def __init__(
        self,
        address: Address,
        protocol: ClientConnection,
        *,
        timeout_s: float,
        dial: Dial = dial,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects and negotiates within `timeout_s`."""
        self.address = address
        self._protocol = protocol
        self._clock = clock
        try:
            self._socket = dial((address.host, address.port), timeout_s)
        except OSError as error:
            raise ConnectionFailedError(f"cannot connect to {address}: {reason(error)}") from error
        deadline = clock() + timeout_s
        protocol.open()
        with self._closing_on_error("ApiVersions"):
            self._write(deadline)
            while protocol.state is not ConnectionState.READY:
                self._read(deadline)
                self._write(deadline)

    def call(
        self, api: ApiKey, build: Build, timeout_s: float, *, answered: bool = True, max_version: int | None = None
    ) -> Any:
        """The response's message; None when `answered` is False (Produce with acks=0)."""
        deadline = self._clock() + timeout_s
        with self._closing_on_error(api.name):
            self._protocol.send(api, build, answered=answered, max_version=max_version)
            self._write(deadline)
            while answered:
                for response in self._read(deadline):
                    return response.message
        return None

    @property
    def usable(self) -> bool:
        """False when the broker has hung up since the last call, or sent what nobody asked for."""
        if self._protocol.state is not ConnectionState.READY:
            return False
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._protocol.close()
        with contextlib.suppress(OSError):  # wakes a caller that is blocked in recv on another thread
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @contextlib.contextmanager
    def _closing_on_error(self, what: str) -> Any:
        try:
            yield
        except TimeoutError as error:
            self.close()
            raise RequestTimeoutError(f"no answer to {what} from {self.address} in time") from error
        except OSError as error:
            self.close()
            raise ConnectionFailedError(f"the connection to {self.address} broke: {reason(error)}") from error
        except ProtocolError as error:
            self.close()
            raise ProtocolError(f"{self.address}: {error}") from error
        except BaseException:  # Ctrl-C while it waits
            self.close()
            raise

    def _write(self, deadline: float) -> None:
        output = self._protocol.take_output()
        if output:
            self._set_timeout(deadline)
            self._socket.sendall(output)

    def _read(self, deadline: float) -> list[Any]:
        self._set_timeout(deadline)
        count = self._socket.recv_into(self._protocol.get_buffer())
        if count == 0:
            raise ConnectionResetError("the broker closed it")
        return list(self._protocol.received(count))

    def _set_timeout(self, deadline: float) -> None:
        left = deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)


def reason(error: OSError) -> str:
    """The operating system's words, without number or class."""
    return (error.strerror or str(error) or type(error).__name__).lower()
