"""A TCP proxy before a NameNode that loses the answer of one call: the call is carried out, its connection is cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from klammtest.ports import free_port

_CHUNK = 65_536


class AnswerLostProxy:
    """Carries bytes both ways until a request names `method` (Hadoop's RPC sends it as text): from then on that
    connection's answers are swallowed. `lost` counts the calls."""

    def __init__(self, port: int, method: bytes) -> None:
        self.port = free_port()
        self.lost = 0
        self._upstream = port
        self._method = method
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="answer-lost-proxy", daemon=True)

    def __enter__(self) -> AnswerLostProxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._upstream))
            self._open += [client, server]
            swallow = threading.Event()
            answered = threading.Event()
            threading.Thread(target=self._carry, args=(client, server, swallow, answered), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client, swallow, answered), daemon=True).start()

    def _carry(
        self, client: socket.socket, server: socket.socket, swallow: threading.Event, answered: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                if self._method in data and not self.lost:
                    self.lost += 1
                    swallow.set()
                    server.sendall(data)
                    answered.wait(60)
                    break
                server.sendall(data)
        _cut(client, server)

    def _answer(
        self, server: socket.socket, client: socket.socket, swallow: threading.Event, answered: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                if swallow.is_set():
                    answered.set()
                    break
                client.sendall(data)
        answered.set()


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
