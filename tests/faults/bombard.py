"""Frames that nobody should send, at a real broker: each is answered or closes its connection, nothing else."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from harness import Result
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame
from klammtest.broker import RunningBroker
from klammtest.requests import batch, produce
from klammtest.wire import WireClient

ANSWER_S = 10.0
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

    def send(self, injection: object, frames: Iterable[bytes]) -> None:
        """A connection's worth of whole frames, or of what is none; behind them goes a request that must be answered
        where the connection lives on."""
        sent = list(frames)
        host, _, port = self.broker.bootstrap.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), ANSWER_S) as wire:
                wire.settimeout(ANSWER_S)
                try:
                    wire.sendall(b"".join([*sent, _SENTINEL]))
                    answers, closed = _answers(wire)
                except TimeoutError:
                    self.result.count("slow")
                    self.result.injected += 1
                    return
                except ConnectionError:
                    answers, closed = 0, True
        except OSError as error:
            self.result.wrong(injection, f"the broker takes no connection: {error}")
            return
        self.result.count("closed" if closed else "answered")
        self.result.injected += min(answers + 1, len(sent)) if closed else len(sent)

    def finish(self) -> None:
        """The broker lives, serves, has said nothing but refusals and holds no more memory than it may."""
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


def _answers(wire: socket.socket) -> tuple[int, bool]:
    """How many frames came back before the last one's answer, and whether the connection was closed instead."""
    count, data = 0, bytearray()
    while True:
        piece = wire.recv(1 << 16)
        if not piece:
            return count, True
        data += piece
        while len(data) >= 8 and len(data) >= 4 + (size := struct.unpack_from(">i", data)[0]):
            if struct.unpack_from(">i", data, 4)[0] == MARK:
                return count, False
            del data[: 4 + size]
            count += 1
