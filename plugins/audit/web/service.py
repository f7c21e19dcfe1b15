"""The audit's pages as a service: beside a broker where `pages.port` is set, and alone as `klamm audit serve`.

The server has its own thread, event loop and port. A page may wait seconds for the cluster: that delays neither the
broker's event loop nor its metrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from klamm import ClusterClient
from klamm.core.client.factory import open_client
from klamm.core.extras import missing_package
from klamm.core.http_service import AsgiServer, CountedApp, HttpService
from klamm.core.transport.address import Address
from klamm.plugin import BrokerContext, PluginError, ServiceMetric

from ..config import AuditConfig
from ..query import AuditQuery
from .source import ClusterSource, Source

GRACE_S: Final = 5
"""Seconds that requests may take to end after `stop`."""

REQUEST_TIMEOUT_S: Final = 10.0


class AuditPages:
    """Implements `klamm.core.interfaces.service.Service`: serves the pages of `source`, and closes it at the end. Port
    0 means a free one. `option`: the address's name in the error if it cannot be used."""

    def __init__(self, source: Source, host: str, port: int, option: str) -> None:
        self._source = source
        self._address = Address(host, port)
        self._option = option
        self._requests = Counter(dict.fromkeys((200, 304, 400, 404, 503), 0))  # exported before the first of each
        self._service: HttpService | None = None

    @property
    def url(self) -> str:
        """The address of the first page, once it has started."""
        return "" if self._service is None else self._service.url

    def start(self) -> None:
        """Starts the server. Raises `ConfigError` if the address cannot be used, `PluginError` without the extra
        `web`.
        """
        try:
            from .app import make_app

            server = AsgiServer(CountedApp(make_app(self._source), self._requests), GRACE_S)
        except ImportError as error:
            line = missing_package("the audit's page", error, "klamm[web]")
            if line is None:
                raise
            raise PluginError(line) from error
        service = HttpService("audit pages", self._address, self._option, server)
        service.start()
        self._service = service

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()
        self._source.close()

    def wait(self) -> None:
        """Returns once the server has ended."""
        if self._service is not None:
            self._service.wait()

    def health(self) -> str | None:
        """Returns None while the server runs, else its problem. A page that cannot be made is an answer with status
        503, which `metrics` counts.
        """
        return None if self._service is None else self._service.health()

    def metrics(self) -> Iterable[ServiceMetric]:
        doc = "Answers of the audit's pages and their JSON, by HTTP status."
        return [
            ServiceMetric("audit_pages_requests", doc, count, {"status": str(status)}, is_counter=True)
            for status, count in sorted(self._requests.copy().items())
        ]


def pages_of_broker(config: AuditConfig, context: BrokerContext) -> AuditPages:
    """Returns the pages beside a broker, as configured by `pages.*`. They read the cluster as any client does."""

    def connect() -> ClusterClient:
        return open_client(context, "audit-pages", request_timeout_s=REQUEST_TIMEOUT_S)

    source = ClusterSource(connect, config, AuditQuery(), max_events=config.pages_max_events)
    return AuditPages(source, config.pages_host, config.pages_port, "audit.pages.port")
