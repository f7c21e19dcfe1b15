"""A proxy between one client and ZooKeeper, which knows the client's session and can end it as the service does."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from kazoo.protocol.serialization import Close, Connect

from klammtest.proxies.tcp import Link, TcpProxy

_CONNECTED = struct.Struct(">iiqi16s")
"""The body of ZooKeeper's answer to a connection: protocol version, time-out, session id, password with its length."""
_ANSWER_S = 5.0
"""A follower that checks one session for two connections at once answers only one of them."""


def close_session(port: int, session_id: int, password: bytes) -> None:
    """Ends a session by its id and password: connects with them and closes at once."""
    connect = Connect(0, 0, 10_000, session_id, password, False).serialize()
    close = struct.pack(">ii", 1, Close.type)
    with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_S) as connection, contextlib.suppress(OSError):
        connection.sendall(b"".join(struct.pack(">i", len(part)) + bytes(part) for part in (connect, close)))
        while connection.recv(4096):
            pass


class _Listening(Link):
    def __init__(self, proxy: SessionProxy) -> None:
        self._proxy = proxy

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        first = next(pieces, b"")
        if len(first) >= 4 + _CONNECTED.size:
            _, _, session_id, _, password = _CONNECTED.unpack_from(first, 4)
            if session_id:
                self._proxy.session = (session_id, password)
        if first:
            yield first
        yield from pieces


class SessionProxy(TcpProxy):
    """A proxy on `port` of `host` for one client of the ZooKeeper on `server_port`."""

    def __init__(self, port: int, server_port: int, host: str = "127.0.0.1") -> None:
        self.session: tuple[int, bytes] | None = None
        """Id and password of the client's newest session."""
        self._zookeeper = server_port
        super().__init__(port, server_port, lambda: _Listening(self), host)

    def expire(self) -> int:
        """Ends the client's session; returns its id. The client learns of it at its next request."""
        assert self.session is not None, "the client has no session yet"
        close_session(self._zookeeper, *self.session)
        return self.session[0]
