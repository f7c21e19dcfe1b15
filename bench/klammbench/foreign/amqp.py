"""RabbitMQ's classic queues over AMQP 0-9-1, from frames that are built once.

Publishing sends the same persistent message (delivery mode 2) again and again, many to a system call; consuming counts
deliveries by their size, which is the same for all of them. The Kafka paper's section 5: asynchronous publishing,
automatic acknowledgement (`no-ack`). RabbitMQ does not bound the prefetch of such a consumer.
"""

from __future__ import annotations

import socket
import struct
from typing import Self

from klammbench.foreign.sockets import CHUNK, DriverError, connect, read_exactly

METHOD, HEADER, BODY, HEARTBEAT, END = 1, 2, 3, 8, b"\xce"
ACK, NACK = (60, 80), (60, 120)
CONFIRM_WINDOW = 20_000  # messages published but not confirmed


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def method(channel: int, number: tuple[int, int], arguments: bytes = b"") -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *number) + arguments)


def publication(queue: str, value: bytes) -> bytes:
    """Returns the three frames of one persistent message to the default exchange."""
    publish = method(1, (60, 40), struct.pack(">H", 0) + short("") + short(queue) + b"\0")
    header = frame(HEADER, 1, struct.pack(">HHQHB", 60, 0, len(value), 0x1000, 2))  # property: delivery mode 2
    return publish + header + frame(BODY, 1, value)


class AmqpChannel:
    """One connection with one open channel."""

    def __init__(self, port: int) -> None:
        self._sock = connect(port)
        self._sock.sendall(b"AMQP\x00\x00\x09\x01")
        self._expect((10, 10))
        answer = short("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest" + short("en_US")
        self._sock.sendall(method(0, (10, 11), struct.pack(">I", 0) + answer))
        tune = self._expect((10, 30))
        channels, frame_max, _ = struct.unpack(">HIH", tune[:8])
        self._sock.sendall(method(0, (10, 31), struct.pack(">HIH", channels, frame_max, 0)))  # no heartbeats
        self._call(0, (10, 40), short("/") + short("") + b"\0", (10, 41))
        self._call(1, (20, 10), short(""), (20, 11))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def declare(self, queue: str) -> None:
        """Declares a durable classic queue."""
        self._call(1, (50, 10), struct.pack(">H", 0) + short(queue) + b"\x02" + struct.pack(">I", 0), (50, 11))

    def depth(self, queue: str) -> int:
        """Returns how many messages are ready in the queue. The broker answers once it has handled earlier
        publications.
        """
        arguments = struct.pack(">H", 0) + short(queue) + b"\x01" + struct.pack(">I", 0)
        answer = self._call(1, (50, 10), arguments, (50, 11))
        ready: int = struct.unpack_from(">I", answer, 1 + answer[0])[0]
        return ready

    def delete(self, queue: str) -> None:
        self._call(1, (50, 40), struct.pack(">H", 0) + short(queue) + b"\0", (50, 41))

    def publish(self, queue: str, value: bytes, count: int, *, per_send: int = 50) -> None:
        """Publishes `count` messages; returns when the broker has handled them all (not: written them to disk)."""
        block = publication(queue, value) * per_send
        one = len(block) // per_send
        for _ in range(count // per_send):
            self._sock.sendall(block)
        self._sock.sendall(block[: count % per_send * one])
        self.depth(queue)

    def publish_confirmed(self, queue: str, value: bytes, count: int, *, per_send: int = 50) -> None:
        """Publishes `count` messages with publisher confirms; returns when the last one is confirmed."""
        self._call(1, (85, 10), b"\0", (85, 11))
        block = publication(queue, value) * per_send
        confirms = Confirms(self._sock)
        for sent in range(per_send, count + 1, per_send):
            self._sock.sendall(block)
            confirms.read(until=sent - CONFIRM_WINDOW)
        rest = count % per_send
        self._sock.sendall(block[: rest * (len(block) // per_send)])
        confirms.read(until=count)

    def consume(self, queue: str, value_size: int, count: int) -> None:
        """Receives `count` deliveries with automatic acknowledgement and counts them by their bytes."""
        tag = "c"
        arguments = struct.pack(">H", 0) + short(queue) + short(tag) + b"\x02" + struct.pack(">I", 0)
        self._call(1, (60, 20), arguments, (60, 21))
        deliver = 8 + 4 + len(short(tag)) + 8 + 1 + 1 + len(short(queue))
        wanted = (deliver + 8 + 15 + 8 + value_size) * count
        buffer = bytearray(CHUNK)
        last = 0
        while wanted > 0:
            got = self._sock.recv_into(buffer, min(CHUNK, wanted))
            if not got:
                raise DriverError(f"RabbitMQ closed the connection with {wanted} bytes of deliveries to come")
            wanted, last = wanted - got, buffer[got - 1]
        if last != END[0]:
            raise DriverError("deliveries from RabbitMQ are not all of one size: the count is wrong")

    def _call(self, channel: int, number: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        self._sock.sendall(method(channel, number, arguments))
        return self._expect(answer)

    def _expect(self, wanted: tuple[int, int]) -> bytes:
        kind, payload = self._frame()
        number = struct.unpack(">HH", payload[:4])
        if kind != METHOD or number != wanted:
            raise DriverError(f"RabbitMQ answered {number} where {wanted} was expected: {payload[4:200]!r}")
        return payload[4:]

    def _frame(self) -> tuple[int, bytes]:
        kind, _, size = struct.unpack(">BHI", read_exactly(self._sock, 7))
        if size > CHUNK:
            raise DriverError(f"RabbitMQ sent a frame of {size} bytes")
        return kind, read_exactly(self._sock, size + 1)[:-1]


class Confirms:
    """Reads basic.ack frames, which all have one size."""

    SIZE = 7 + 4 + 9 + 1

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""
        # RabbitMQ confirms out of order: `multiple` covers all tags up to its own, single confirms come in between.
        self._single = 0
        self._up_to = 0
        self._beyond: set[int] = set()

    def read(self, *, until: int) -> None:
        while self._up_to < until:
            data = self._rest + self._sock.recv(CHUNK)
            whole = len(data) // self.SIZE * self.SIZE
            for at in range(0, whole, self.SIZE):
                self._take(data[at : at + self.SIZE])
            self._rest = data[whole:]

    def _take(self, ack: bytes) -> None:
        cls, number, tag, multiple = struct.unpack(">HHQB", ack[7:20])
        if (cls, number) != ACK:
            raise DriverError(f"RabbitMQ sent {(cls, number)} where a confirm was expected")
        if multiple:
            self._up_to = max(self._up_to, tag)
        else:
            self._beyond.add(tag)
        while self._up_to + 1 in self._beyond:
            self._up_to += 1
            self._beyond.discard(self._up_to)
