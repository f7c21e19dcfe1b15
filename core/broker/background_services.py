"""The services beside a broker: the audit's follower, and those that `broker.services` names.

Started in order once the broker serves, stopped in the opposite order while it still does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from ..interfaces.service import Service, ServiceMetric
from .workers import Workers

__all__ = ["BackgroundServices"]

log = logging.getLogger(__name__)


class BackgroundServices:
    """`start` and `stop` run on the event loop; `health` and `metrics` may be called from any thread."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._services: dict[str, Service] = {}

    async def start(self, name: str, service: Service) -> None:
        """Starts it. What it raises is the caller's; `stop` stops it even then."""
        while name in self._services:  # the same plugin twice
            name += "'"
        self._services[name] = service
        await self._workers.coordination(service.start)

    async def stop(self) -> None:
        """Stops all of them, the last one first. One that raises does not keep the others from being stopped."""
        while self._services:
            name, service = self._services.popitem()
            try:
                await self._workers.coordination(service.stop)
            except Exception:  # a third party's service may raise anything
                log.exception("service %s did not stop in order", name)

    def health(self) -> Mapping[str, str | None]:
        """By service: None while it does its work, else one line that says what is wrong."""
        return {name: _health(service) for name, service in list(self._services.items())}

    def metrics(self) -> Iterator[ServiceMetric]:
        """The samples of all of them. A service that raises has none."""
        for name, service in list(self._services.items()):
            try:
                yield from list(service.metrics())
            except Exception:  # a third party's service may raise anything; a scrape shows the rest
                log.exception("service %s: no metrics", name)


def _health(service: Service) -> str | None:
    try:
        return service.health()
    except Exception as error:  # a third party's service may raise anything
        return repr(error)
