"""RabbitMQ's stream protocol, with frames that are built once: a frame has `batch` messages, and the broker confirms
each.

Messages carry no publisher reference, so the broker does not look for duplicates and the same ids may be sent again.
"""

from __future__ import annotations

import select
import struct
from typing import Self

from klammbench.foreign.sockets import CHUNK, DriverError, connect, read_exactly, read_sized

DECLARE_PUBLISHER, PUBLISH, CONFIRM, SUBSCRIBE, DELIVER, CREDIT = 1, 2, 3, 7, 8, 9
CREATE, DELETE, PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN = 13, 14, 17, 18, 19, 20, 21
OK = 1
CREDITS = 20  # most chunks under way to a consumer
WINDOW = 20_000  # messages published but not confirmed
CONFIRM_HEAD = struct.Struct(">HHBI")


def string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def command(key: int, payload: bytes) -> bytes:
    return struct.pack(">IHH", len(payload) + 4, key, 1) + payload


def publication(value: bytes, batch: int) -> bytes:
    entry = struct.pack(">QI", 0, len(value)) + value
    return command(PUBLISH, struct.pack(">BI", 0, batch) + entry * batch)


class StreamConnection:
    def __init__(self, port: int) -> None:
        self._sock = connect(port)
        self._call(PROPERTIES, struct.pack(">I", 0))
        self._call(HANDSHAKE, b"")
        self._call(AUTHENTICATE, string("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest")
        tune = read_sized(self._sock)
        # the frame size of the broker, no heartbeats
        self._sock.sendall(command(TUNE, tune[4:8] + struct.pack(">I", 0)))
        self._call(OPEN, string("/"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def create(self, stream: str) -> None:
        self._call(CREATE, string(stream) + struct.pack(">I", 0))

    def delete(self, stream: str) -> None:
        self._call(DELETE, string(stream))

    def publish(self, stream: str, value: bytes, count: int, *, batch: int) -> None:
        """Publishes `count` messages (a multiple of `batch`); returns when the last one is confirmed."""
        if count % batch:
            raise ValueError(f"{count} is not a multiple of {batch}")
        self._call(DECLARE_PUBLISHER, b"\0" + string("") + string(stream))
        per_send = max(1, 50 // batch)  # frames per system call
        one = publication(value, batch)
        frames, confirmed = count // batch, 0
        for sent in range(0, frames, per_send):
            now = min(per_send, frames - sent)
            self._sock.sendall(one * now)
            while (sent + now) * batch - confirmed > WINDOW or self._readable():
                confirmed += self._confirmed()
        while confirmed < count:
            confirmed += self._confirmed()

    def consume(self, stream: str, count: int) -> None:
        """Receives chunks from the stream's beginning until `count` messages have arrived."""
        start = struct.pack(">H", 1)  # the first offset
        self._call(SUBSCRIBE, b"\0" + string(stream) + start + struct.pack(">HI", CREDITS, 0))
        seen = 0
        while seen < count:
            delivery = read_sized(self._sock)
            (key,) = struct.unpack_from(">H", delivery)
            if key != DELIVER:
                raise DriverError(f"RabbitMQ sent {key:#x} where a delivery was expected")
            seen += struct.unpack_from(">I", delivery, 5 + 4)[0]
            self._sock.sendall(command(CREDIT, struct.pack(">BH", 0, 1)))

    def _readable(self) -> bool:
        return bool(select.select([self._sock], [], [], 0)[0])

    def _confirmed(self) -> int:
        said = read_sized(self._sock)
        key, _, _, confirmed = CONFIRM_HEAD.unpack_from(said)
        if key != CONFIRM:
            raise DriverError(f"RabbitMQ sent {key:#x} where a confirm was expected")
        return int(confirmed)

    def _call(self, key: int, payload: bytes) -> bytes:
        """Sends a command and returns its response after the code; skips deliveries and announcements that come before
        it.
        """
        self._sock.sendall(command(key, struct.pack(">I", 1) + payload))
        (size,) = struct.unpack(">I", read_exactly(self._sock, 4))
        if size > CHUNK:
            raise DriverError(f"RabbitMQ answered {key} with a frame of {size} bytes")
        answer = read_exactly(self._sock, size)
        got, _, _, code = struct.unpack_from(">HHIH", answer)
        if got != 0x8000 | key or code != OK:
            raise DriverError(f"RabbitMQ answered {key} with {got:#x}, code {code}")
        return answer[10:]
