"""What a round trip between two brokers costs the one that asks: `BrokerLink` beside the least that asyncio allows.

    PYTHONPATH=src .venv/bin/python bench/broker_link.py [--size 65536] [--trips 150] [--turns 300]

The other broker is another process, which answers each Fetch with `--size` bytes. The least is a connection
with a framing of its own that negotiates nothing and has no versions: it reads a length, then the frame. Both take
turns; printed is the CPU time of a round trip in this process, in the fastest turn of each and in the fastest
twentieth, and the ratio of those.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
import struct
import time
from collections.abc import Awaitable, Callable

import uvloop

from klamm.core.broker.replication.broker_link import BrokerLink
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klamm.core.transport.address import Address

VERSION = 12
BODY = b"\x00" * 90
HEADER = struct.Struct(">ihhi")
VERSIONS = b"\x00\x00\x02" + struct.pack(">hhh", ApiKey.FETCH, VERSION, VERSION) + b"\x00\x00\x00\x00\x00\x00"
"""The body of an ApiVersions response of version 3: no error, one API, no throttle, no tagged fields."""


def serve(listener: socket.socket, size: int) -> None:
    """Answers the requests of each connection in turn."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, connection.makefile("rb") as incoming:
            while head := incoming.read(HEADER.size):
                length, api, _, correlation_id = HEADER.unpack(head)
                incoming.read(length + 4 - HEADER.size)
                body = VERSIONS if api == ApiKey.API_VERSIONS else b"\x00" + bytes(size)
                connection.sendall(struct.pack(">ii", len(body) + 4, correlation_id) + body)


class Least(asyncio.BufferedProtocol):
    """One request at a time; each frame is received into a buffer of its own."""

    def __init__(self) -> None:
        self._head, self._frame, self._filled = bytearray(4), bytearray(), 0
        self._waiting: asyncio.Future[memoryview] | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def ask(self, frame: bytes) -> memoryview:
        self._waiting = self._loop.create_future()
        self._transport.write(frame)  # type: ignore[attr-defined]
        return await self._waiting

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return memoryview(self._frame or self._head)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if not self._frame:
            if self._filled == len(self._head):
                self._frame, self._filled = bytearray(int.from_bytes(self._head, "big")), 0
        elif self._filled == len(self._frame) and self._waiting is not None:
            frame, self._frame, self._filled = self._frame, bytearray(), 0
            self._waiting.set_result(memoryview(frame))


async def least(address: Address) -> Callable[[], Awaitable[memoryview]]:
    _, protocol = await asyncio.get_running_loop().create_connection(Least, address.host, address.port)
    asked = 0

    async def ask() -> memoryview:
        nonlocal asked
        asked += 1
        frame = await protocol.ask(request_frame(ApiKey.FETCH, VERSION, asked, "replica", BODY))
        assert struct.unpack_from(">i", frame)[0] == asked
        return frame

    return ask


async def link(address: Address) -> Callable[[], Awaitable[memoryview]]:
    opened = await BrokerLink.open(address, "replica", 30)

    async def ask() -> memoryview:
        return await opened.call(ApiKey.FETCH, lambda _: [BODY], decode=lambda frame, _: frame)

    return ask


async def measure(address: Address, size: int, trips: int, turns: int) -> None:
    ways = {"least": await least(address), "BrokerLink": await link(address)}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, ask in ways.items():
            begun = time.process_time()
            for _ in range(trips):
                assert len(await ask()) == size + 5
            if turn:  # the first one warms up
                spent[name].append((time.process_time() - begun) / trips * 1e6)
    for name, each in spent.items():
        print(f"{name:12}{min(each):8.2f} us in the fastest turn, {_twentieth(each):8.2f} in the fastest twentieth")
    ratio = _twentieth(spent["BrokerLink"]) / _twentieth(spent["least"])
    print(f"BrokerLink / least: {ratio:.3f}")


def _twentieth(spent: list[float]) -> float:
    return sorted(spent)[len(spent) // 20]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=65536)
    parser.add_argument("--trips", type=int, default=150)
    parser.add_argument("--turns", type=int, default=300)
    asked = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname()[:2])
        servers = [multiprocessing.Process(target=serve, args=(listener, asked.size), daemon=True) for _ in range(2)]
        for server in servers:
            server.start()
        uvloop.run(measure(address, asked.size, asked.trips, asked.turns))
        for server in servers:
            server.terminate()


if __name__ == "__main__":
    main()
