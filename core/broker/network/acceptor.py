"""Accepts connections from a listening socket, a few at a time.

Rules: of a burst of new connections `_AT_ONCE` are accepted per turn of the event loop, so that open connections are
served in between. Above `max.connection.creation.rate` (KIP-612) new ones wait in the kernel's queue. If the process
has no file descriptor left, accepting pauses, with a line in the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from ...transport.interface import Accept, TransportHandler
from .connections import Connections

log = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_PAUSE_S: Final = 0.2
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Belongs to the event loop. The socket is listening; its owner closes it."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        make_handler: Callable[[], TransportHandler],
        accept: Accept,
    ) -> None:
        self._socket = listening
        self._connections = connections
        self._make_handler = make_handler
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._later = None
        self._loop.add_reader(self._socket.fileno(), self._ready)

    def stop(self) -> None:
        """Accepts no more connections; open ones stay open."""
        self._loop.remove_reader(self._socket.fileno())
        if self._later is not None:
            self._later.cancel()

    def _ready(self) -> None:
        for _ in range(_AT_ONCE):
            wait_s = self._connections.creation.wait_s()
            if wait_s > 0:
                self._connections.throttled()
                self._pause(wait_s)
                return
            try:
                wire, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._connections.exhausted(error)
                    self._pause(_PAUSE_S)
                    return
                continue  # the client has given up meanwhile
            self._connections.creation.spend()
            self._enter(wire)

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._later = self._loop.call_later(seconds, self.start)

    def _enter(self, wire: socket.socket) -> None:
        wire.setblocking(False)
        if wire.family in (socket.AF_INET, socket.AF_INET6):
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(wire))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _connect(self, wire: socket.socket) -> None:
        try:
            await self._accept(wire, self._make_handler)
        except OSError:
            log.debug("a connection was closed before it was set up", exc_info=True)
            wire.close()
