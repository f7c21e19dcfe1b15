"""Connections to brokers, lent to one caller at a time and kept for the next.

Concurrent callers get separate connections, so that a long poll or a waiting JoinGroup delays no other call;
consecutive calls use the same one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from ...transport.address import Address
from ...transport.interface import Dial
from ...transport.plaintext_stream import dial_plaintext
from ..errors import ClientClosedError
from .blocking_connection import BlockingConnection
from .connection import ClientConnection

MAX_IDLE = 4
"""Idle connections kept per broker; more are closed when they are returned."""

SETUP_TIMEOUT_S = 10.0
"""`socket.connection.setup.timeout.ms` with the default of Kafka's clients."""


class ConnectionPool:
    """Thread-safe. `software_version` declares the client's codecs to the broker."""

    def __init__(
        self,
        client_id: str,
        software_version: str,
        *,
        dial: Dial = dial_plaintext,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_id = client_id
        self._software_version = software_version
        self._dial = dial
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[Address, list[BlockingConnection]] = {}
        self._lent: set[BlockingConnection] = set()
        self._closed = False

    @contextlib.contextmanager
    def lend(self, address: Address, timeout_s: float) -> Iterator[BlockingConnection]:
        """Yields a negotiated connection; it returns to the pool unless the body raises."""
        connection = self._take(address) or self._open(address, timeout_s)
        try:
            yield connection
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection)

    def close(self) -> None:
        """Closes all connections; callers that wait for an answer get `ConnectionFailedError`."""
        with self._lock:
            self._closed = True
            all_of_them = [c for idle in self._idle.values() for c in idle] + list(self._lent)
            self._idle.clear()
            self._lent.clear()
        for connection in all_of_them:
            connection.close()

    def _take(self, address: Address) -> BlockingConnection | None:
        while True:
            with self._lock:
                if self._closed:
                    raise ClientClosedError("the client is closed")
                idle = self._idle.get(address)
                if not idle:
                    return None
                connection = idle.pop()
                self._lent.add(connection)
            if connection.usable:
                return connection
            self._drop(connection)

    def _open(self, address: Address, timeout_s: float) -> BlockingConnection:
        connection = BlockingConnection(
            address,
            ClientConnection(self._client_id, self._software_version),
            timeout_s=min(timeout_s, SETUP_TIMEOUT_S),
            dial=self._dial,
            clock=self._clock,
        )
        with self._lock:
            if not self._closed:
                self._lent.add(connection)
                return connection
        connection.close()
        raise ClientClosedError("the client is closed")

    def _give_back(self, connection: BlockingConnection) -> None:
        with self._lock:
            self._lent.discard(connection)
            idle = self._idle.setdefault(connection.address, [])
            if not self._closed and len(idle) < MAX_IDLE:
                idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: BlockingConnection) -> None:
        with self._lock:
            self._lent.discard(connection)
        connection.close()
