"""The listener: one listening socket, the connections accepted from it, and the address that is advertised to
clients."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping, Sequence

from ...config.address import ListenerAddress
from ...errors import ConfigError
from ...protocol.frames import FrameSplitter
from ...transport import socket_options
from ...transport.address import Address, listen, why_not
from ...transport.interface import Accept
from ..request import ConnectionContext, Dispatch, not_ready
from .acceptor import Acceptor
from .connection import Connection
from .connections import Connections


class Listener:
    """`bind` binds the port; set `dispatch`, then `start` accepts connections."""

    def __init__(self, name: str, host: str, port: int, connections: Connections, accept: Accept) -> None:
        """`accept` wraps each accepted socket in the transport of the listener's security protocol."""
        self.name, self.host, self.port = name, host, port
        self.dispatch: Dispatch = not_ready
        self._connections = connections
        self._accept = accept
        self._socket: socket.socket | None = None
        self._acceptor: Acceptor | None = None

    def bind(self) -> int:
        """Binds the port before any other part is started, and returns it. Raises `ConfigError` if it is in use."""
        limits = self._connections.limits
        try:
            bound = listen(address := Address(self.host, self.port), limits.backlog)
        except OSError as error:
            advice = f"stop what listens on port {self.port}, or give this broker another one"
            if error.errno != errno.EADDRINUSE:
                advice = "give an address of this host, and a port that this user may take"
            raise ConfigError(f"listeners: cannot listen on {address}: {why_not(error)}; {advice}") from error
        bound.setblocking(False)
        # inherited by connections, so that dead peers are found
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        socket_options.set_send_buffer(bound, limits.send_buffer)
        if limits.receive_buffer > 0:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer)
        self._socket = bound
        self.port = bound.getsockname()[1]
        return self.port

    async def start(self) -> None:
        """Accepts connections on the bound socket."""
        assert self._socket is not None, "bind first"
        self._acceptor = Acceptor(self._socket, self._connections, self._connection, self._accept)
        self._acceptor.start()

    def close(self) -> None:
        """Releases the port."""
        if self._acceptor is not None:
            self._acceptor.stop()
        if self._socket is not None:
            self._socket.close()
            self._socket = self._acceptor = None

    def _connection(self) -> Connection:
        limits = self._connections.limits
        context = ConnectionContext(self._connections.next_id(), self.name, "?")
        largest = max(limits.produce_frame, limits.other_frame)
        splitter = FrameSplitter(largest, self._connections.frame_limit, self._connections.chunk)
        return Connection(context, splitter, self.dispatch, self._connections)


def advertised(addresses: Sequence[ListenerAddress], bound_ports: Mapping[str, int]) -> list[ListenerAddress]:
    """Returns the advertised addresses with their real ports: port 0 is replaced by the port that the listener got."""
    return [ListenerAddress(a.name, a.host, a.port or bound_ports[a.name]) for a in addresses if a.name in bound_ports]
