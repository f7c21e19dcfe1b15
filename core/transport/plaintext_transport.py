"""`Transport` over a plain TCP socket: the event loop's own transport, which calls the handler directly.

The two calls of each request, `buffer_updated` and `writelines`, cross no code of this module.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from ..protocol.messages import Buffer
from . import socket_options
from .address import Address, plain_host
from .interface import TransportHandler


class PlaintextTransport:
    """Names the methods of asyncio's (or uvloop's) transport that `interface.Transport` has."""

    __slots__ = ("_transport", "writelines")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writelines: Callable[[list[Buffer]], None] = transport.writelines

    @property
    def peer(self) -> tuple[str, int] | None:
        peer = self._transport.get_extra_info("peername")
        return (plain_host(peer[0]), peer[1]) if peer else None

    def expects_input(self) -> bool:
        return socket_options.received_bytes(self._socket) > 0

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def grow_send_buffer(self) -> None:
        socket_options.grow_send_buffer(self._socket)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    @property
    def _socket(self) -> socket.socket | None:
        return cast("socket.socket | None", self._transport.get_extra_info("socket"))


class _Opening(asyncio.BufferedProtocol):
    """The event loop's protocol until the connection is made; then the handler is."""

    def __init__(self, handler: TransportHandler) -> None:
        self._handler = handler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = cast(asyncio.Transport, transport)
        opened.set_protocol(self._handler)
        self._handler.connected(PlaintextTransport(opened))


async def accept_plaintext(accepted: socket.socket, make_handler: Callable[[], TransportHandler]) -> None:
    """Implements `interface.Accept` without TLS."""
    await asyncio.get_running_loop().connect_accepted_socket(lambda: _Opening(make_handler()), accepted)


async def connect_plaintext(address: Address, make_handler: Callable[[], TransportHandler]) -> None:
    """Implements `interface.Connect` without TLS."""
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: _Opening(make_handler()), address.host, address.port)
