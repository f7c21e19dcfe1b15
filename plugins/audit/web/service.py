"""The audit's pages as a service: beside a broker where `pages.port` is set, and alone as `klamm audit serve`.

The server has its own thread, event loop and port. A page may wait seconds for the cluster: that delays neither the
broker's event loop nor its metrics.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm import ClusterClient
from klamm.core.extras import missing_package
from klamm.core.transport.address import Address, listen, why_not
from klamm.plugin import BrokerContext, ConfigError, PluginError, ServiceMetric

from ..config import AuditConfig
from ..query import AuditQuery
from .source import ClusterSource, Source

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

GRACE_S: Final = 5
"""Seconds that requests may take to end once the service was told to stop."""

REQUEST_TIMEOUT_S: Final = 10.0

log = logging.getLogger(__name__)


class AuditPages:
    """`klamm.core.interfaces.service.Service`: serves the pages of `source`, and closes it at the end. Port 0 takes a
    free one. `option`: the address's name in the error if it cannot be used.
    """

    def __init__(self, source: Source, host: str, port: int, option: str) -> None:
        self.url = ""
        """The address of the first page, once it has started."""
        self._source = source
        self._address = Address(host, port)
        self._option = option
        self._requests = Counter(dict.fromkeys((200, 304, 400, 404, 503), 0))  # exported before the first of each
        self._server: uvicorn.Server | None = None
        self._ended = threading.Event()
        self._problem: str | None = None

    def start(self) -> None:
        """Starts the server. Raises `ConfigError` if the address cannot be used, `PluginError` without the extra
        `web`.
        """
        try:
            import uvicorn

            from .app import make_app
        except ImportError as error:
            line = missing_package("the audit's page", error, "klamm[web]")
            if line is None:
                raise
            raise PluginError(line) from error
        config = uvicorn.Config(
            _Counted(make_app(self._source), self._requests),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        listening = self._listen()
        self._server = uvicorn.Server(config)
        threading.Thread(
            target=self._run, args=(self._server, listening), name="klamm-audit-pages", daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._ended.wait(GRACE_S + 2)
        self._source.close()

    def wait(self) -> None:
        """Returns once the server has ended."""
        self._ended.wait()

    def health(self) -> str | None:
        """Returns None while the server runs, else its problem. A page that cannot be made is an answer with status
        503, which `metrics` counts.
        """
        return self._problem

    def metrics(self) -> Iterable[ServiceMetric]:
        doc = "Answers of the audit's pages and their JSON, by HTTP status."
        return [
            ServiceMetric("audit_pages_requests", doc, count, {"status": str(status)}, is_counter=True)
            for status, count in sorted(self._requests.copy().items())
        ]

    def _listen(self) -> socket.socket:
        try:
            listening = listen(self._address)
        except OSError as error:
            raise ConfigError(f"{self._option}: cannot listen on {self._address}: {why_not(error)}") from error
        self.url = f"http://{replace(self._address, port=listening.getsockname()[1])}/"
        return listening

    def _run(self, server: uvicorn.Server, listening: socket.socket) -> None:
        try:
            with listening:
                server.run(sockets=[listening])
            if not server.should_exit:
                self._problem = "the server of the audit's pages has ended"
        except Exception as error:  # the pages are unavailable; the broker continues
            self._problem = f"the server of the audit's pages has ended: {error!r}"
            log.exception("the server of the audit's pages has ended")
        finally:
            self._ended.set()


class _Counted:
    """An ASGI application that counts the answers of another one by their status."""

    def __init__(self, app: ASGIApp, requests: Counter[int]) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._requests[message["status"]] += 1
            await send(message)

        await self._app(scope, receive, counted)


def pages_of_broker(config: AuditConfig, context: BrokerContext) -> AuditPages:
    """Returns the pages beside a broker, as configured by `pages.*`. They read the cluster as any client does."""

    def connect() -> ClusterClient:
        return ClusterClient(
            context.bootstrap_servers,
            codecs=context.codecs,
            client_id="klamm-audit-pages",
            request_timeout_s=REQUEST_TIMEOUT_S,
        )

    source = ClusterSource(connect, config, AuditQuery(), max_events=config.pages_max_events)
    return AuditPages(source, config.pages_host, config.pages_port, "audit.pages.port")
