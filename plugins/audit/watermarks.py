"""The completeness watermarks of all topics, for the broker's metrics.

Only the broker that leads partition 0 of the audit topic computes them, so that one broker of a cluster bears the cost:
every `watermark.interval.ms`, a separate thread reads the new events and compares all of them. It keeps all events in
memory; so nothing is computed unless that interval is configured. A watermark that cannot be computed keeps its value:
it lags, which an alert detects.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from klamm import ClusterClient
from klamm.core.client.factory import open_client
from klamm.plugin import BrokerContext, KlammError, TopicPartition

from .config import AuditConfig
from .query import AuditQuery, AuditQueryRunner

log = logging.getLogger(__name__)

STOP_S: Final = 10.0
WATERMARK: Final = "audit_topicmetrics_completenesswatermark_seconds"
"""The metric's name, without the prefix of the endpoint."""

WATERMARK_DOC: Final = (
    "Up to where each window of the topic is complete at every tier of the audit, in seconds since the epoch; no "
    "series where nothing is."
)


class WatermarkWatch:
    """The thread that computes them. `watermarks_ms` and `problem` (why the last time failed, else None) may be read
    from any thread."""

    def __init__(
        self,
        config: AuditConfig,
        logs: BrokerContext,
        connect: Callable[[BrokerContext], AbstractContextManager[ClusterClient]],
    ) -> None:
        self._config = config
        self._logs = logs
        self._connect = connect
        self._found: Mapping[str, int] = {}
        self.problem: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="klamm-audit-watermarks", daemon=True)

    def start(self) -> None:
        if self._config.watermark_interval_ms > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def watermarks_ms(self) -> Mapping[str, int]:
        """The watermarks by topic, as of the last computation; topics without one are not in it."""
        return self._found

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._leads():
                try:
                    with self._connect(self._logs) as client:
                        self._follow(client)
                except Exception as error:  # the metrics lack a number; the broker continues
                    self.problem = repr(error)
                    log.exception("audit watermarks: restarting in %d ms", self._config.watermark_interval_ms)
            self._found = {}
            self._stopping.wait(self._config.watermark_interval_ms / 1000)

    def _follow(self, client: ClusterClient) -> None:
        """Runs for as long as this broker leads the audit topic."""
        runner = AuditQueryRunner(client, self._config)
        while self._leads() and not self._stopping.is_set():
            try:
                audits = runner.ask(AuditQuery()).audits
                self._found = {a.topic: a.watermark_ms for a in audits if a.watermark_ms is not None}
                self.problem = None
            except KlammError as error:
                self.problem = str(error)
                log.warning("audit watermarks: %s; trying again", error)
            self._stopping.wait(self._config.watermark_interval_ms / 1000)

    def _leads(self) -> bool:
        return TopicPartition(self._config.topic, 0) in self._logs.partitions()


def client_of_self(logs: BrokerContext) -> ClusterClient:
    """Returns a client of the broker itself, which connects as any client does."""
    return open_client(logs, "audit")
