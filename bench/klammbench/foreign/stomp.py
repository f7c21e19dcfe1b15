"""ActiveMQ over STOMP 1.1, with frames that are built once.

Persistent messages without a receipt are ActiveMQ's asynchronous sends. The consumer has `ack:auto` and a prefetch of
1,000, as in the Kafka paper's section 5. Frames end with a zero byte, which none of our values contains, so deliveries
are counted by these bytes.
"""

from __future__ import annotations

from typing import Self

from klammbench.foreign.sockets import CHUNK, DriverError, connect

PREFETCH = 1000


def frame(command: str, headers: dict[str, object], body: bytes = b"") -> bytes:
    lines = [command, *(f"{name}:{value}" for name, value in headers.items()), "", ""]
    return "\n".join(lines).encode() + body + b"\0"


class StompConnection:
    def __init__(self, port: int) -> None:
        self._sock = connect(port)
        self._rest = b""
        self._sock.sendall(frame("CONNECT", {"accept-version": "1.1", "host": "localhost", "heart-beat": "0,0"}))
        self._expect("CONNECTED")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def publish(self, queue: str, value: bytes, count: int, *, per_send: int = 50) -> None:
        """Publishes `count` persistent messages; returns when the broker has handled them all (the last one has a
        receipt).
        """
        headers = {"destination": f"/queue/{queue}", "persistent": "true", "content-length": len(value)}
        one = frame("SEND", headers, value)
        block, unreceipted = one * per_send, count - 1
        for _ in range(unreceipted // per_send):
            self._sock.sendall(block)
        self._sock.sendall(one * (unreceipted % per_send))
        self._sock.sendall(frame("SEND", {**headers, "receipt": "last"}, value))
        self._expect("RECEIPT")

    def consume(self, queue: str, count: int) -> None:
        """Receives `count` messages with automatic acknowledgement."""
        headers = {"destination": f"/queue/{queue}", "id": "1", "ack": "auto", "activemq.prefetchSize": PREFETCH}
        self._sock.sendall(frame("SUBSCRIBE", headers))
        buffer = bytearray(CHUNK)
        seen = 0
        while seen < count:
            got = self._sock.recv_into(buffer)
            if not got:
                raise DriverError(f"ActiveMQ closed the connection after {seen} of {count} messages")
            seen += buffer.count(0, 0, got)
        if seen > count:
            raise DriverError(f"ActiveMQ delivered {seen} messages of {count}")

    def _expect(self, command: str) -> None:
        data = b""
        while not data.endswith(b"\0\n") and not data.endswith(b"\0"):
            got = self._sock.recv(CHUNK)
            if not got or len(data) > CHUNK:
                raise DriverError(f"ActiveMQ ended where {command} was expected: {data[-500:]!r}")
            data += got
        if not data.lstrip(b"\n").startswith(command.encode()):
            raise DriverError(f"ActiveMQ answered where {command} was expected: {data[:500]!r}")
