"""The listener: one listening socket, and the connections that came through it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import time
from dataclasses import dataclass

from klamm.core.broker.connection import Connection, Dispatch
from klamm.core.broker.context import ConnectionContext
from klamm.core.errors import ConfigError, ProtocolError
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.frames import FrameSplitter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """Frames in bytes: Produce may be as large as `socket.request.max.bytes`, all other requests 1 MiB unless
    configured. A connection idle for `idle_s` seconds is closed. Socket buffers in bytes, -1: the system's."""

    produce_frame: int = 100 * 1024 * 1024
    other_frame: int = 1024 * 1024
    idle_s: float = 600.0
    queued_requests: int = 64
    max_connections: int = 10_000
    send_buffer: int = -1
    receive_buffer: int = -1
    backlog: int = 128

    def of(self, api_key: int) -> int:
        return self.produce_frame if api_key == ApiKey.PRODUCE else self.other_frame


class Listener:
    """`bind` takes the port; set `dispatch`, then `start` accepts connections."""

    def __init__(self, name: str, host: str, port: int, limits: Limits) -> None:
        self.name, self.host, self.port = name, host, port
        self.dispatch: Dispatch = _nobody
        self._limits = limits
        self._ids = itertools.count(1)
        self._connections: set[Connection] = set()
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def bind(self) -> int:
        """Take the port, before anything else is started, and return it; `ConfigError` where it is in use."""
        try:
            found = socket.getaddrinfo(self.host or None, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family = min((row[0] for row in found), key=lambda kind: kind != socket.AF_INET)
            bound = socket.create_server((self.host, self.port), family=family, backlog=self._limits.backlog)
        except OSError as error:
            advice = f"stop what listens on port {self.port}, or give this broker another one"
            if error.errno != errno.EADDRINUSE:
                advice = "give an address of this host, and a port that this user may take"
            raise ConfigError(
                f"listeners: cannot listen on {self.host}:{self.port}: {error.strerror or error}; {advice}"
            ) from error
        bound.setblocking(False)
        if self._limits.send_buffer > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer)
        if self._limits.receive_buffer > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._limits.receive_buffer)
        self._socket = bound
        self.port = bound.getsockname()[1]
        return self.port

    async def start(self) -> None:
        """Accept connections on the bound socket."""
        assert self._socket is not None, "bind first"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=self._socket, backlog=self._limits.backlog)
        self._sweeper = loop.create_task(self._close_idle())

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept no more; let each connection answer the request it is at, for at most `grace_s`; close all."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.close()
        for connection in list(self._connections):
            connection.drain()
        deadline = time.monotonic() + grace_s
        while self._connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Give up the port."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _accept(self) -> Connection:
        context = ConnectionContext(next(self._ids), self.name, "?")
        splitter = FrameSplitter(max(self._limits.produce_frame, self._limits.other_frame), self._limits.of)
        connection = Connection(
            context, splitter, self.dispatch, time.monotonic, self._connections.discard, self._limits.queued_requests
        )
        if len(self._connections) >= self._limits.max_connections:
            log.warning("closed a new connection: max.connections=%d are open", self._limits.max_connections)
            connection.turn_away()
        self._connections.add(connection)
        return connection

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._limits.idle_s / 2, 30.0))
            oldest = time.monotonic() - self._limits.idle_s
            for connection in [c for c in self._connections if not c.busy and c.last_active < oldest]:
                log.info("closed idle connection %s of %s", connection.context.connection_id, connection.context.peer)
                connection.close()


def _nobody(context: ConnectionContext, _: bytearray) -> None:
    raise ProtocolError(f"connection {context.connection_id} came before the broker was ready")
