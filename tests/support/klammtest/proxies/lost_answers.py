"""A TCP proxy before a NameNode that loses one call or its answer; in the latter case the call is carried out."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from klammtest.ports import free_port

_CHUNK = 65_536


def _nothing() -> None:
    return


class AnswerLostProxy:
    """Carries bytes both ways until a request holds all of `words`, as a method's name (Hadoop's RPC sends it as text):
    from then on that connection's answers are swallowed. `lost` counts the calls. Once, or once for each `arm`."""

    def __init__(self, port: int, *words: bytes, armed: bool = True) -> None:
        self.port = free_port()
        self.lost = 0
        self._upstream = port
        self._words = words
        self._armed = armed
        self._passes = True
        self._before: Callable[[], object] = _nothing
        self._after: Callable[[], object] = _nothing
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="answer-lost-proxy", daemon=True)

    def arm(
        self, *, passes: bool = True, before: Callable[[], object] = _nothing, after: Callable[[], object] = _nothing
    ) -> None:
        """For the next such call: whether it still reaches the NameNode, and what is done before it would, and when its
        answer is lost."""
        with self._lock:
            self._armed, self._passes, self._before, self._after = True, passes, before, after

    def disarm(self) -> None:
        with self._lock:
            self._armed = False

    def __enter__(self) -> AnswerLostProxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _cut(self._listener)
        self._thread.join(60)  # before the rest: it may be opening a connection
        _cut(*self._open)
        for each in (self._listener, *self._open):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:  # it is down
                client.close()
                continue
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
                if self._is_the_call(data):
                    swallow.set()
                    self._before()
                    if self._passes:
                        server.sendall(data)
                        answered.wait(60)
                    self.lost += 1
                    self._after()
                    break
                server.sendall(data)
        _cut(client, server)

    def _is_the_call(self, data: bytes) -> bool:
        with self._lock:
            found = self._armed and all(word in data for word in self._words)
            self._armed &= not found
        return found

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
