"""Socket options for which the kernel has a default, and the number of received bytes.

By default, Linux gives each connection a send buffer of ten packets at once. That is 1.3 MB on loopback, whose
packets are 64 KiB: to copy it for each of 500 peers that read nothing kept all others waiting for a second. So a
connection of the broker starts with `_INITIAL_SEND_BUFFER` bytes, as Kafka's do, and once its peer has read more
than that the kernel sizes the buffer. A size from `socket.send.buffer.bytes` does not change.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
from typing import Final

_INITIAL_SEND_BUFFER: Final = 102_400
_SO_BUF_LOCK: Final = 72  # Linux 5.14: which buffers keep the size they were given
_RECEIVE_LOCKED: Final = 2
_INT: Final = struct.Struct("i")


def set_send_buffer(listening: socket.socket, configured: int) -> None:
    """Sets the size for all connections that come through this socket; `configured` in bytes, -1: the kernel's."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, configured if configured > 0 else _INITIAL_SEND_BUFFER)


def grow_send_buffer(opened: socket.socket | None) -> None:
    """Lets the kernel choose the size. Before Linux 5.14, and on other systems, the size does not change."""
    if opened is not None:
        with contextlib.suppress(OSError):
            locked = opened.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
            opened.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, locked & _RECEIVE_LOCKED)


def received_bytes(opened: socket.socket | None) -> int:
    """Returns the number of bytes that the kernel has received and that were not read yet (FIONREAD); 0 if the
    socket is closed."""
    if opened is None or opened.fileno() < 0:
        return 0
    try:
        answer = fcntl.ioctl(opened.fileno(), termios.FIONREAD, bytes(_INT.size))
    except OSError:  # it has just been closed
        return 0
    return int(_INT.unpack(answer)[0])
