"""Many connections that send invalid frames, several in flight on each, in one thread that never blocks.

After every frame comes a request that must be answered if the connection survives. So each frame's effect is known:
*answered*, *closed* the connection, or *slow* (a response that is delayed on purpose). Frames after one that closed its
connection are sent again on a new one: each frame is counted once, and the broker has read it.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import request_frame

ANSWER_S = 2.0
LANES = 48
PIPELINED = 8
_PIECE = 1 << 18
_MARK = 0x7A00_0000
_SENTINEL = request_frame(ApiKey.API_VERSIONS, 0, _MARK, None, b"")


@dataclass(frozen=True, slots=True)
class Shot:
    """A frame with its length. `alone`: its length is false, so no other frame may be in flight with it."""

    number: int
    frame: bytes
    alone: bool = False

    @property
    def mark(self) -> int:
        return _MARK | self.number & 0xFF_FFFF

    @property
    def sent(self) -> bytes:
        return self.frame + _SENTINEL[:8] + self.mark.to_bytes(4, "big") + _SENTINEL[12:]


@dataclass(slots=True)
class Lane:
    """Successive connections to one broker."""

    address: tuple[str, int]
    wire: socket.socket | None = None
    waiting: deque[Shot] = field(default_factory=deque)  # in flight; the first one is answered next
    again: deque[Shot] = field(default_factory=deque)  # to be sent again, before any other
    unsent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)
    moved: float = 0.0
    blocked: bool = False
    ending: bool = False

    def marks(self) -> Iterator[int]:
        """Yields the correlation ids of the complete responses received."""
        position, data = 0, self.received
        while len(data) - position >= 8:
            size, mark = struct.unpack_from(">ii", data, position)
            if len(data) - position < 4 + size:
                break
            position += 4 + size
            yield mark
        del data[:position]


class Swarm:
    """`tell` is called with the effect of each shot. `address`: one broker, or several that share the shots."""

    def __init__(self, addresses: Iterable[tuple[str, int]], tell: Callable[[Shot, str], None]) -> None:
        self._tell = tell
        self._selector = selectors.DefaultSelector()
        places = list(addresses)
        self._lanes = [Lane(place) for place in places for _ in range(LANES // len(places))]
        self._shots: Iterator[Shot] = iter(())

    def send(self, shots: Iterable[Shot], go_on: Callable[[], bool] = lambda: True) -> None:
        """Sends all shots, or as many as possible while `go_on` (asked ten times a second); `OSError` if a broker
        accepts no connection."""
        self._shots = iter(shots)
        try:
            for lane in self._lanes:
                self._fill(lane)
            asked = time.monotonic()
            while any(lane.wire is not None for lane in self._lanes):
                for key, events in self._selector.select(0.1):
                    lane = key.data
                    if events & selectors.EVENT_READ:
                        self._read(lane)
                    else:
                        self._write(lane)
                now = time.monotonic()
                if now - asked > 0.1:
                    asked = now
                    self._review(now)
                    if not go_on():
                        return
        finally:
            for lane in self._lanes:
                self._hang_up(lane)

    def _fill(self, lane: Lane) -> None:
        """Keeps enough shots in flight, on a live connection; without further shots the connection ends."""
        while len(lane.waiting) < PIPELINED and not lane.ending:
            shot = lane.again.popleft() if lane.again else next(self._shots, None)
            if shot is None:
                break
            # the broker would close the connection before it handles the frames in flight
            if shot.alone and lane.waiting:
                lane.again.appendleft(shot)
                break
            lane.waiting.append(shot)
            lane.unsent += shot.sent
            lane.ending = shot.alone
        if not lane.waiting:
            self._hang_up(lane)
            return
        if lane.wire is None:
            lane.wire = socket.create_connection(lane.address, 10)
            lane.wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            lane.wire.setblocking(False)
            lane.moved = time.monotonic()
            self._selector.register(lane.wire, selectors.EVENT_READ, lane)
        self._write(lane)

    def _write(self, lane: Lane) -> None:
        if lane.wire is None:
            return
        try:
            while lane.unsent:
                del lane.unsent[: lane.wire.send(lane.unsent)]
            if lane.ending:  # the broker stops waiting for the rest of it
                lane.wire.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            self._selector.modify(lane.wire, selectors.EVENT_READ | selectors.EVENT_WRITE, lane)
            lane.blocked = True
            return
        except OSError:
            lane.unsent.clear()  # closed: reading returns the earlier responses first
        if lane.blocked:
            self._selector.modify(lane.wire, selectors.EVENT_READ, lane)
            lane.blocked = False

    def _read(self, lane: Lane) -> None:
        if lane.wire is None:
            return
        try:
            piece = lane.wire.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        lane.received += piece
        for mark in lane.marks():
            if lane.waiting and mark == lane.waiting[0].mark:
                self._tell(lane.waiting.popleft(), "answered")
                lane.moved = time.monotonic()
        if not piece:
            self._over(lane, "closed")
        elif len(lane.waiting) <= PIPELINED // 2:
            if lane.ending and not lane.waiting:  # its length was correct after all
                self._hang_up(lane)
            self._fill(lane)

    def _review(self, now: float) -> None:
        for lane in self._lanes:
            if lane.wire is not None and now - lane.moved > ANSWER_S:
                self._over(lane, "slow")

    def _over(self, lane: Lane, outcome: str) -> None:
        """Reports the effect of the first shot in flight; the others are sent again on a new connection."""
        if lane.waiting:
            self._tell(lane.waiting.popleft(), outcome)
        lane.again.extendleft(reversed(lane.waiting))
        lane.waiting.clear()
        self._hang_up(lane)
        self._fill(lane)

    def _hang_up(self, lane: Lane) -> None:
        if lane.wire is not None:
            self._selector.unregister(lane.wire)
            lane.wire.close()
        lane.wire, lane.blocked, lane.ending = None, False, False
        lane.unsent.clear()
        lane.received.clear()
