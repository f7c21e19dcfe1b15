"""A raw client: one socket, whole frames, any bytes, including those that no real client sends."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from klamm.core.protocol import messages
from klamm.core.protocol.apis import ApiKey
from klamm.core.protocol.headers import read_response_header, request_frame

TIMEOUT_S = 60.0
_LARGEST_FRAME = 128 * 1024 * 1024


class WireClient:
    """A blocking client. `call` builds, sends and reads one request; the other methods deal in raw bytes."""

    def __init__(self, bootstrap: str, timeout_s: float = TIMEOUT_S) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, api: ApiKey, version: int, **fields: Any) -> Any:
        """Sends a request and returns the decoded response; `fields` are those of Kafka's definition, nested structs by
        `part`."""
        self.send(api, version, **fields)
        return self.receive(api, version)

    def send(self, api: ApiKey, version: int, **fields: Any) -> int:
        """Sends a request without waiting for the response; returns the correlation id."""
        schema = messages.request(api, version)
        return self.send_body(api, version, schema.encode(schema.build(**fields)))

    def send_body(self, api: ApiKey, version: int, body: bytes) -> int:
        self._correlation_id += 1
        self.send_raw(request_frame(api, version, self._correlation_id, "wire", body))
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end_sending(self) -> None:
        """Shuts down the sending side; responses can still be read."""
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self, api: ApiKey, version: int) -> Any:
        frame = self.receive_frame()
        assert frame is not None, "the broker closed the connection"
        _, offset = read_response_header(frame, api, version)
        return messages.response(api, version).decode(frame, offset)

    def receive_frame(self) -> bytes | None:
        """Returns the next frame without its length; None if the broker has closed the connection."""
        length = self._read(4)
        return None if length is None else self._read(struct.unpack(">i", length)[0])

    def peek(self) -> None:
        """Waits for the first byte of a response and leaves it unread."""
        self._socket.recv(1, socket.MSG_PEEK)

    def closed(self) -> bool:
        """Returns True if the broker closes the connection without sending a further byte."""
        return self._read(1) is None

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not piece:
                return None
            data += piece
        return data


def part(api: ApiKey, version: int, type_name: str, **fields: Any) -> Any:
    """Makes a nested struct of a request."""
    return messages.request(api, version).part(type_name, **fields)


def frames(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Splits pieces of bytes into Kafka's frames, without their lengths; ends at an impossible length."""
    data = bytearray()
    for piece in pieces:
        data += piece
        while len(data) >= 4:
            (size,) = struct.unpack_from(">i", data)
            if not 0 <= size <= _LARGEST_FRAME:
                return
            if len(data) < 4 + size:
                break
            yield bytes(data[4 : 4 + size])
            del data[: 4 + size]


def framed(*bodies: bytes) -> bytes:
    """Returns frames: each body with its length in front."""
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)
