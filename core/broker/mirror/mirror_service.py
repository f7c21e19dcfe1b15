"""Runs the links that the coordination names, each while it is there and with its newest definition."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ...cluster.mirrors import LinkNode, read_links
from ...errors import KlammError, describe_failure
from ...interfaces.service import BrokerContext, ServiceMetric
from ..services import Services

if TYPE_CHECKING:
    from .link_control import LinkControl

__all__ = ["MirrorService"]

log = logging.getLogger(__name__)
_INTERVAL_S: Final = 0.5


class MirrorService:
    """`klamm.core.interfaces.service.Service`. Made on the event loop."""

    def __init__(self, services: Services, context: BrokerContext) -> None:
        self._services = services
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, LinkControl] = {}
        self._problem: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-mirrors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)
        for link in list(self._links.values()):
            link.stop()

    def health(self) -> str | None:
        return self._problem or next((said for link in list(self._links.values()) if (said := link.health())), None)

    def metrics(self) -> Iterable[ServiceMetric]:
        return [sample for link in list(self._links.values()) for sample in link.metrics()]

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow(read_links(self._context.coordination))
                self._problem = None
            except KlammError as error:
                self._problem = f"mirrors: {describe_failure(error)}"
            except Exception as error:  # the broker continues; it is tried again
                if self._problem is None:
                    log.exception("mirrors")
                self._problem = f"mirrors: {describe_failure(error)}"
            self._stopping.wait(_INTERVAL_S)

    def _follow(self, links: dict[str, LinkNode]) -> None:
        for name in [name for name in self._links if name not in links]:
            self._links.pop(name).stop()
            log.info("mirror %s has ended", name)
        for name, node in links.items():
            from .link_control import LinkControl  # a broker without links imports no client

            known = self._links.get(name)
            if known is not None and known.node.config == node.config:
                known.node = node
                continue
            if known is not None:
                self._links.pop(name).stop()
            link = LinkControl(name, node, self._services, self._context, self._loop)
            self._links[name] = link
            link.start()
            log.info("mirror %s follows %s", name, ",".join(link.config.bootstrap_servers))
