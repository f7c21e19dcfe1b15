"""The endpoint of operators: `GET /metrics` and `GET /health` on an address of its own, answered beside the event loop.

`/health/live` and `/health/ready` answer 200, or 503 if the broker is not live or not ready; `/health` answers 200
if it is both. The body of each is the whole health as JSON. There is no authentication: the address is loopback unless
configured.

A connection has a thread, so that no client delays the answer to a probe; metrics are collected for one at a time. A
connection is closed if its client does not send or read for `_PATIENCE_S`, or if it lasts longer than `_LONGEST_S`.
Above `_MOST` connections the oldest is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import make_wsgi_app

from ...http_service import HttpService
from ...transport.address import Address
from .counters import BrokerMetrics
from .health import BrokerHealth

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
_LONGEST_S = 60.0
_MOST: Final = 32
_HEALTH: Final[dict[str, Callable[[BrokerHealth], bool]]] = {
    "/health": lambda health: health.is_live and health.is_ready,
    "/health/live": lambda health: health.is_live,
    "/health/ready": lambda health: health.is_ready,
}
LAG_INTERVAL_S = 0.25
_LAG_WINDOW_S = 30.0


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S

    def log_message(self, format: str, *args: object) -> None:
        log.debug("%s: " + format, self.client_address[0], *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket) -> None:
        address = Address(*listening.getsockname()[:2])
        super().__init__((address.host, address.port), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        # what `server_bind` of the base classes sets, for IPv4 only and with a look-up of the host's name
        self.server_name, self.server_port = address.host, address.port
        self.setup_environ()
        self._opened: dict[socket.socket, float] = {}
        """When the open connections were accepted, the oldest first."""
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._opened[request] = time.monotonic()
        self._end_some()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called by `serve_forever` twice a second."""
        self._end_some()

    def _end_some(self) -> None:
        late = time.monotonic() - _LONGEST_S
        with self._lock:
            most = len(self._opened) - _MOST
            for number, (connection, at) in enumerate(self._opened.items()):
                if number < most or at < late:
                    with contextlib.suppress(OSError):  # its client has ended it
                        connection.shutdown(socket.SHUT_RDWR)  # its thread's read or write returns

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._opened.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Logs that a scraper disconnected, or was too slow."""
        log.debug("a scrape from %s failed", client_address, exc_info=True)


class MetricsServer:
    """Implements `klamm.core.http_service.HttpServer` without packages beyond prometheus-client."""

    grace_s = _PATIENCE_S

    def __init__(self, registry: CollectorRegistry, health: Callable[[], BrokerHealth]) -> None:
        self._metrics = make_wsgi_app(registry)
        self._collecting = threading.Lock()
        self._health = health
        self._server: _Server | None = None

    def bind(self, listening: socket.socket) -> None:
        self._server = _Server(listening)
        self._server.set_app(self._answer)

    def run(self) -> None:
        assert self._server is not None, "bind first"
        self._server.serve_forever()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"].rstrip("/")
        if path not in _HEALTH:
            with self._collecting:
                scrape: Iterable[bytes] = self._metrics(environ, start_response)
            return scrape
        health = self._health()
        status = "200 OK" if _HEALTH[path](health) else "503 Service Unavailable"
        body = health.to_json().encode() + b"\n"
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def metrics_service(address: Address, registry: CollectorRegistry, health: Callable[[], BrokerHealth]) -> HttpService:
    """Returns the service on `metrics.host` and `metrics.port`, to be started."""
    advice = "; give another metrics.port, or -1 for none"
    return HttpService("metrics", address, "metrics.port", MetricsServer(registry, health), advice)


async def sample_loop_lag(metrics: BrokerMetrics) -> None:
    """Measures until cancelled how late the event loop wakes, and the worst of the last 30 to 60 seconds."""
    worst, worst_before, since = 0.0, 0.0, time.monotonic()
    while True:
        begun = time.monotonic()
        await asyncio.sleep(LAG_INTERVAL_S)
        now = time.monotonic()
        metrics.loop_woke_at = now
        metrics.loop_lag_s = max(now - begun - LAG_INTERVAL_S, 0.0)
        worst = max(worst, metrics.loop_lag_s)
        metrics.loop_lag_max_s = max(worst, worst_before)
        if now - since >= _LAG_WINDOW_S:
            worst, worst_before, since = 0.0, worst, now
