"""A TCP proxy on threads: it carries connections to a server on this machine, and a `Link` may watch, change, hold or
drop the data.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType

_CHUNK = 65_536
DIAL_S = 60.0
_WAIT_S = 60.0


class Link:
    """One connection; this class passes all bytes unchanged.

    `requests` and `answers` each run in a thread of their own. They receive one side's data, piece by piece, and yield
    what the other side receives. When either returns or raises `OSError`, both sides are closed.
    """

    def requests(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yields what the server receives, given what the client sends."""
        return pieces

    def answers(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yields what the client receives, given what the server sends."""
        return pieces

    def closed(self) -> None:
        """Called once, when both sides are closed."""


class TcpProxy:
    """Listens on `port` of `host` inside its `with` block, and carries to 127.0.0.1; `link` is called for each
    connection. If the server cannot be reached, the client's connection is closed.
    """

    def __init__(self, port: int, server_port: int, link: Callable[[], Link] = Link, host: str = "127.0.0.1") -> None:
        self.port = port
        self.bootstrap = f"{host}:{port}"
        self._host = host
        self._server_port = server_port
        self._link = link
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._closing = False

    def listen(self) -> socket.socket:
        return socket.create_server((self._host, self.port))

    def dial(self) -> socket.socket:
        """Connects to the server."""
        return socket.create_connection(("127.0.0.1", self._server_port), DIAL_S)

    def __enter__(self) -> TcpProxy:
        self._listener = self.listen()
        self._accepting = threading.Thread(target=self._accept, name=f"proxy-{self.port}", daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _cut(self._listener)
        self._accepting.join(_WAIT_S)
        self._listener.close()
        with self._lock:
            self._closing = True
            _cut(*self._open)
            threads = list(self._threads)
        for thread in threads:
            thread.join(_WAIT_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # the listener is shut down
                return
            thread = threading.Thread(target=self._serve, args=(client,), name=f"requests-{self.port}", daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client, self.dial() as server:
                server.settimeout(None)
                self._join(client, server)
        except OSError:  # the server is down
            return
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        """Carries data both ways until one side ends."""
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            if self._closing:
                return
            self._open |= {client, server}
        link = self._link()
        answers = threading.Thread(
            target=_carry, args=(link.answers, server, client), name=f"answers-{self.port}", daemon=True
        )
        answers.start()
        try:
            _carry(link.requests, client, server)
        finally:
            answers.join()
            with self._lock:
                self._open -= {client, server}
            link.closed()


def _carry(passed: Callable[[Iterator[bytes]], Iterator[bytes]], source: socket.socket, sink: socket.socket) -> None:
    try:
        with contextlib.suppress(OSError):
            for data in passed(_pieces(source)):
                sink.sendall(data)
    finally:
        _cut(source, sink)


def _pieces(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(_CHUNK):
        yield data


def _cut(*ends: socket.socket) -> None:
    """Shuts the sockets down, which wakes the threads that read from them or write to them."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
