"""How much the system holds of what a peer has not read yet.

Left alone it gives each connection room for ten packets at once. That is 1.3 MB on loopback, whose packets are 64 KiB:
to copy it for each of 500 peers that read nothing kept all others waiting for a second. Rule: a connection begins with
`_START` bytes, as Kafka's do, and once its peer has read more than that the system sizes the buffer as it thinks best.
A size from `socket.send.buffer.bytes` stays what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

_START: Final = 102_400
_SO_BUF_LOCK: Final = 72  # Linux 5.14: which buffers keep the size they were given
_RECEIVE_LOCKED: Final = 2


def begin(listening: socket.socket, configured: int) -> None:
    """For all connections that will come through it; `configured` in bytes, -1 where the system may choose."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, configured if configured > 0 else _START)


def let_grow(transport: asyncio.BaseTransport | None) -> None:
    """Its peer reads. Where the system cannot be told (before Linux 5.14, not Linux), the buffer stays as it began."""
    wire = transport.get_extra_info("socket") if transport is not None else None
    if wire is not None:
        with contextlib.suppress(OSError):
            locked = wire.getsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK)
            wire.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, locked & _RECEIVE_LOCKED)
