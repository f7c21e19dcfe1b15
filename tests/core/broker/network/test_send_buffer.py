"""The kernel's send buffer: small until the peer has read, then sized by the kernel; or as configured."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable

import pytest
import uvloop

from klamm.core.broker.network.connections import Connections
from klamm.core.broker.network.limits import Limits
from klamm.core.broker.network.listener import Listener
from klamm.core.transport.interface import TransportHandler
from klamm.core.transport.plaintext_transport import accept_plaintext

LARGE = 8 * 1024 * 1024
LOCK, SEND_LOCKED = 72, 1
REQUEST = (20).to_bytes(4, "big") + b"." * 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the socket option is Linux's")


class ListenerUnderTest:
    """A listener that answers every request with `LARGE` bytes, and the sockets that it has taken in."""

    def __init__(self, limits: Limits) -> None:
        self.accepted: list[socket.socket] = []
        self.listener = Listener("L", "127.0.0.1", 0, Connections(limits), self._accept)
        self.listener.bind()
        self.listener.dispatch = lambda _context, _frame: [bytes(LARGE)]

    async def ask(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port, limit=LARGE)
        writer.write(REQUEST)
        await reader.readexactly(1)
        return reader, writer

    async def _accept(self, accepted: socket.socket, make_handler: Callable[[], TransportHandler]) -> None:
        self.accepted.append(accepted)
        await accept_plaintext(accepted, make_handler)


async def _sizes_before_and_after(limits: Limits) -> tuple[int, int, int, int]:
    """Size and lock while the peer reads nothing more; the same once it has read all."""
    under_test = ListenerUnderTest(limits)
    await under_test.listener.start()
    reader, writer = await under_test.ask()
    (wire,) = under_test.accepted
    before = wire.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), wire.getsockopt(socket.SOL_SOCKET, LOCK)
    await reader.readexactly(LARGE - 1)
    writer.write(REQUEST)
    await reader.readexactly(LARGE)
    after = wire.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF), wire.getsockopt(socket.SOL_SOCKET, LOCK)
    writer.close()
    under_test.listener.close()
    return *before, *after


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_peer_that_reads_has_the_system_s_buffer(loop: object) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:  # type: ignore[arg-type]
        small, locked, large, locked_then = runner.run(_sizes_before_and_after(Limits()))
    assert small == 2 * 102_400, "Linux counts its own overhead too"
    assert locked & SEND_LOCKED
    assert not locked_then & SEND_LOCKED
    assert large > small


def test_a_configured_size_stays() -> None:
    assert asyncio.run(_sizes_before_and_after(Limits(send_buffer=65_536))) == (131_072, 1, 131_072, 1)


def test_a_receive_buffer_keeps_its_size() -> None:
    *_, locked_then = asyncio.run(_sizes_before_and_after(Limits(receive_buffer=65_536)))
    assert locked_then == 2
