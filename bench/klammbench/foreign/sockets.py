"""A blocking socket that reads whole frames by length, for handshakes; bulk traffic uses the socket itself."""

from __future__ import annotations

import socket
import struct

TIMEOUT_S = 60.0  # limit of one send or receive; on a working broker none lasts this long
CHUNK = 1 << 20


class DriverError(Exception):
    """The peer sent something other than the protocol's next step."""


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        got = sock.recv_into(view[done:])
        if not got:
            raise DriverError(f"the broker closed the connection, {done} of {size} bytes into a frame")
        done += got
    return bytes(data)


def read_sized(sock: socket.socket) -> bytes:
    """Returns a frame that begins with its length in four bytes (RabbitMQ streams)."""
    (size,) = struct.unpack(">I", read_exactly(sock, 4))
    if size > 64 * CHUNK:
        raise DriverError(f"a frame of {size} bytes is larger than this driver accepts")
    return read_exactly(sock, size)
