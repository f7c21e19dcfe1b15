"""What the system has received of a connection, and nobody has read yet."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios

_INT = struct.Struct("i")


def arrived(transport: asyncio.BaseTransport | None) -> int:
    """Bytes; 0 where there is no socket any more."""
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is None or wire.fileno() < 0:
        return 0
    try:
        answer = fcntl.ioctl(wire.fileno(), termios.FIONREAD, bytes(_INT.size))
    except OSError:  # it has just been closed
        return 0
    return int(_INT.unpack(answer)[0])
