"""Frames that nobody should send, at a real broker: each is answered or closes its connection, nothing else."""

from __future__ import annotations

import re
import socket
import struct
from dataclasses import dataclass

import psutil

from harness import Result
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klammtest.broker import RunningBroker
from klammtest.requests import batch, produce
from klammtest.wire import WireClient

ANSWER_S = 2.0
MARK = 0x7A7A7A7A
MOST_MEMORY = 400 * 2**20
"""Bytes that the broker may have at the end; it has about 70 MB when it has started."""
_UNEXPECTED = re.compile(r" ERROR |Traceback|unexpected ")
_SENTINEL = request_frame(ApiKey.API_VERSIONS, 0, MARK, None, b"")


@dataclass
class Bombardment:
    """Sends frames to one broker and counts into `result`: answered, closed, slow (an answer that waits on purpose)."""

    broker: RunningBroker
    result: Result
    _wire: socket.socket | None = None

    def send(self, injection: object, frame: bytes) -> None:
        """One whole frame, or what is none; behind it goes a request that must be answered where the connection lives
        on. The connection is kept as long as that."""
        try:
            wire = self._connected()
        except OSError as error:
            self.result.wrong(injection, f"the broker takes no connection: {error}")
            return
        self.result.injected += 1
        try:
            wire.sendall(frame + _SENTINEL)
            outcome = "answered" if _answered(wire) else "closed"
        except TimeoutError:
            outcome = "slow"
        except ConnectionError:
            outcome = "closed"
        self.result.count(outcome)
        if outcome != "answered":
            self.hang_up()

    def _connected(self) -> socket.socket:
        if self._wire is None:
            host, _, port = self.broker.bootstrap.rpartition(":")
            self._wire = socket.create_connection((host, int(port)), ANSWER_S)
            self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._wire

    def hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def finish(self) -> None:
        """The broker lives, serves, has said nothing but refusals and holds no more memory than it may."""
        self.hang_up()
        try:
            with WireClient(self.broker.bootstrap) as wire:
                outcome = produce(wire, "control", batch(b"after"))
            if outcome.error_code != 0:
                self.result.wrong("the end", f"the broker answers {outcome.error_code.name}")
            else:
                self.result.acknowledged += 1
        except (OSError, AssertionError) as error:
            self.result.wrong("the end", f"the broker does not serve: {error}")
            return
        said = [line for line in self.broker.log().splitlines() if _UNEXPECTED.search(line)]
        for line in said[:5]:
            self.result.wrong("all", f"the broker said: {line}")
        memory = psutil.Process(self.broker.pid).memory_info().rss
        self.result.figures["rss-mb"] = memory >> 20
        if memory > MOST_MEMORY:
            self.result.wrong("all", f"the broker holds {memory >> 20} MB")


def _answered(wire: socket.socket) -> bool:
    """Whether the last request's answer came; else the connection was closed."""
    data = bytearray()
    while True:
        piece = wire.recv(1 << 16)
        if not piece:
            return False
        data += piece
        while len(data) >= 8 and len(data) >= 4 + (size := struct.unpack_from(">i", data)[0]):
            if struct.unpack_from(">i", data, 4)[0] == MARK:
                return True
            del data[: 4 + size]
