"""The HTTP server of the services: connections on which no request comes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from klamm.core.http_service import AsgiServer, HttpService
from klamm.core.transport.address import Address


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture(scope="module")
def service() -> Iterator[HttpService]:
    running = HttpService("test", Address("127.0.0.1", 0), "listeners", AsgiServer(answer, 1, head_s=0.2))
    running.start()
    yield running
    running.stop()


REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET", REQUEST, REQUEST + b"X: "])
def test_a_connection_without_a_request_is_closed(service: HttpService, sent: bytes) -> None:
    with socket.create_connection((service.address.host, service.address.port), 30) as wire:
        wire.sendall(sent)
        assert wire.recv(100) == b""


def test_a_connection_is_kept_while_requests_come(service: HttpService) -> None:
    with socket.create_connection((service.address.host, service.address.port), 30) as wire:
        for _ in range(3):
            wire.sendall(REQUEST + b"\r\n")
            assert wire.recv(1000).startswith(b"HTTP/1.1 204")
        wire.sendall(REQUEST)
        assert wire.recv(100) == b"", "a later head is bounded too"
