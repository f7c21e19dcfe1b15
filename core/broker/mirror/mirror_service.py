"""Runs each link of the coordination, from its creation to its deletion, with its newest definition."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from ...cluster.mirrors import LinkNode, ReportNode, read_links, report_path, update
from ...config.problems import problems_of
from ...config.sections.mirror import MirrorConfig
from ...errors import ConfigError, KlammError, describe_failure
from ...interfaces.service import BrokerContext, ServiceMetric
from ..services import Services

if TYPE_CHECKING:
    from .link_control import LinkControl

log = logging.getLogger(__name__)
_INTERVAL_S: Final = 0.5


class MirrorService:
    """Implements `klamm.core.interfaces.service.Service`. Made on the event loop."""

    def __init__(self, services: Services, context: BrokerContext) -> None:
        self._services = services
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, LinkControl] = {}
        self._problem: str | None = None
        self._invalid: dict[str, str] = {}
        """Links that cannot be started, with the reason."""
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
        invalid = [f"mirror {name}: {why}" for name, why in list(self._invalid.items())]
        failing = [problem for link in list(self._links.values()) if (problem := link.health())]
        return self._problem or "; ".join((*invalid, *failing)) or None

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
        self._services.mirror_sources = {name: node.source_cluster_id for name, node in links.items()}
        self._invalid = {name: why for name, why in self._invalid.items() if name in links}
        for name, node in links.items():
            from .link_control import LinkControl  # a broker without links imports no client

            known = self._links.get(name)
            if known is not None and (known.node.link_id, known.node.config) == (node.link_id, node.config):
                known.node = node
                continue
            if known is not None:
                self._links.pop(name).stop()
            try:
                link = LinkControl(name, node, self._services, self._context, self._loop)
            except (ConfigError, ValidationError) as error:  # as of a later version; the other links go on
                self._refuse(name, node, error)
                continue
            self._invalid.pop(name, None)
            self._links[name] = link
            link.start()
            log.info("mirror %s follows %s", name, ",".join(link.config.bootstrap_servers))

    def _refuse(self, name: str, node: LinkNode, error: ConfigError | ValidationError) -> None:
        """Stores why a link cannot be started, for `klamm mirror status`."""
        if isinstance(error, ValidationError):
            found = "; ".join(map(str, problems_of(error, MirrorConfig, node.config)))
        else:
            found = str(error)
        words = f"its stored definition is invalid: {found}; correct the file and run `klamm mirror create {name}`"
        if self._invalid.get(name) != words:
            log.error("mirror %s: %s", name, words)
            path, own = report_path(name, self._services.broker_id), self._services.cluster.own_registration
            report = {"problem": words, "broker_epoch": -1 if own is None else own.epoch}
            update(
                self._context.coordination, path, ReportNode,
                lambda node: (node or ReportNode()).model_copy(update={**report, "partitions": {}}),
            )  # fmt: skip
            self._invalid[name] = words
