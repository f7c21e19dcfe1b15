"""`ByteStream` over a plain TCP socket."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterable

from .address import Address


class PlaintextStream:
    """Takes over a connected socket."""

    __slots__ = ("_socket",)

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def read_into(self, buffer: memoryview, timeout_s: float) -> int:
        self._socket.settimeout(timeout_s)
        return self._socket.recv_into(buffer)

    def write_all(self, data: bytes, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        self._socket.sendall(data)

    def is_quiet(self) -> bool:
        try:
            self._socket.setblocking(False)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def set_nonblocking(self) -> None:
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def read_available(self, buffer: memoryview) -> int | None:
        try:
            return self._socket.recv_into(buffer)
        except BlockingIOError:
            return None

    @property
    def has_buffered_input(self) -> bool:
        return False

    def write_available(self, pieces: Iterable[memoryview]) -> int:
        try:
            return self._socket.sendmsg(pieces)
        except BlockingIOError:
            return 0

    def events(self, *, writing: bool) -> int:
        return selectors.EVENT_READ | selectors.EVENT_WRITE if writing else selectors.EVENT_READ

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes a thread that is blocked in recv
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def dial_plaintext(address: Address, timeout_s: float, receive_buffer: int = -1) -> PlaintextStream:
    """Implements `interface.Dial` without TLS, and without Nagle's delay: requests are whole when they are written.
    `receive_buffer` in bytes; -1: the system's."""
    opened = socket.create_connection((address.host, address.port), timeout_s)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer > 0:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    return PlaintextStream(opened)
