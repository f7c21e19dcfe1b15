"""An HTTP server in front of a schema registry, or in its place: it answers as a test says, or passes requests on."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .registry import RunningRegistry

Answer = tuple[int, Any]
"""Status and body: bytes, or an object that is sent as JSON."""
Decide = Callable[[str, str, Mapping[str, str]], Answer | None]
"""Method, path, headers by their names in lower case → the answer; None to pass the request on."""


class RegistryFront:
    def __init__(self, decide: Decide, behind: RunningRegistry | None) -> None:
        self.decide = decide
        self.requests: list[tuple[str, str]] = []
        self._behind = behind
        self.url = ""

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.requests.append((method, path))
        found = self.decide(method, path, headers)
        if found is not None:
            return found
        assert self._behind is not None
        answered = self._behind.call(method, path, body or None, Content_Type=headers.get("content-type", ""))
        return answered.status, answered.body


@contextmanager
def registry_front(
    decide: Decide, behind: RunningRegistry | None = None, secure: ssl.SSLContext | None = None
) -> Iterator[RegistryFront]:
    front = RegistryFront(decide, behind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = front.answer(
                self.command, self.path, {name.lower(): value for name, value in self.headers.items()}, body
            )
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _serve

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if secure is not None:
        server.socket = secure.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    front.url = f"{'http' if secure is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield front
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
