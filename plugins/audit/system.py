"""The built-in audit system: makes the auditors of each tier."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from klamm import ClusterClient
from klamm.plugin import (
    AuditIdentity,
    BrokerContext,
    ConfigError,
    Counted,
    Headers,
    ProducerAudit,
    Publish,
    RangeAudit,
    RangeCount,
    Service,
    ServiceMetric,
    TopicPartition,
)

from .config import AuditConfig
from .counting.broker_tier import BrokerTier, connect_to_self
from .counting.origins import MAX_OWNER_BYTES, mark, owner_bytes
from .counting.producer import KlammProducerAudit
from .counting.ranges import KlammRangeAudit, range_events
from .event import EventSource
from .query import AuditQuery, AuditQueryRunner, absent_topics
from .watermarks import WATERMARK, WATERMARK_DOC, WatermarkWatch, client_of_self
from .web.service import AuditPages, pages_of_broker
from .windows import clock_ms

log = logging.getLogger(__name__)


class KlammAudit:
    """Implements `klamm.core.interfaces.audit.Audit`, as configured."""

    def __init__(self, config: AuditConfig) -> None:
        self._config = config

    @property
    def topic(self) -> str:
        return self._config.topic

    @property
    def window_ms(self) -> int:
        return self._config.window_minutes * 60_000

    def audits(self, topic: str) -> bool:
        return self._config.audits(topic)

    def mark(self, identity: AuditIdentity, partition: TopicPartition, counted: Counted) -> Headers:
        return mark(identity, partition, counted, self.window_ms)

    def producer(self, identity: AuditIdentity, publish: Publish) -> ProducerAudit:
        if (size := owner_bytes(identity.owner)) > MAX_OWNER_BYTES:
            own = owner_bytes(identity.application)
            most = own + MAX_OWNER_BYTES - size
            raise ConfigError(
                f"producer.client.id has {own} bytes in UTF-8; with an audit it has at most {most}, "
                f"because the producer's id, which begins with it, has at most {MAX_OWNER_BYTES}"
            )
        interval_s = self._config.publish_interval_ms / 1000
        return KlammProducerAudit(identity, publish, window_ms=self.window_ms, interval_s=interval_s, clock_ms=clock_ms)

    def ranges(self, identity: AuditIdentity, publish: Publish) -> RangeAudit:
        return KlammRangeAudit(identity, publish, window_ms=self.window_ms, clock_ms=clock_ms)

    def watermark_ms(
        self, client: ClusterClient, topic: str, identity: AuditIdentity, ranges: Iterable[RangeCount]
    ) -> int | None:
        """Returns the instant (ms since the epoch) up to which each tier of a topic is complete, assuming that `ranges`
        are stored too as events of `identity`; None if no window is. It does not wait for a broker tier that is behind.
        """
        events = range_events(EventSource(identity, self.window_ms, clock_ms), ranges)
        runner = AuditQueryRunner(client, self._config)
        [audit] = runner.ask(AuditQuery(topics=(topic,)), events, wait=False).audits
        return audit.watermark_ms

    def broker(self, context: BrokerContext) -> Service:
        connect = connect_to_self(self._config.topic)

        def absent() -> list[str]:
            if not (self._config.topics or self._config.mirrored_topics):
                return []
            with client_of_self(context) as client:
                return absent_topics(self._config, client.metadata().topics)

        tier = BrokerTier(self.audits, self.window_ms, self._config, context, connect, clock_ms, absent)
        pages = pages_of_broker(self._config, context) if self._config.pages_port >= 0 else None
        return AuditService(tier, WatermarkWatch(self._config, context, client_of_self), pages)


class AuditService:
    """Implements `klamm.core.interfaces.service.Service`: counts what the broker stored and, if configured, computes
    the watermarks and serves the pages."""

    def __init__(self, tier: BrokerTier, watch: WatermarkWatch, pages: AuditPages | None) -> None:
        self._tier = tier
        self._watch = watch
        self._pages = pages

    def start(self) -> None:
        """Starts the pages first: their address may be in use, and then nothing else has to be stopped."""
        if self._pages is not None:
            self._pages.start()
            log.info("the audit's pages are on %s", self._pages.url)
        self._tier.start()
        self._watch.start()

    def stop(self) -> None:
        """Stops the tier last: it counts everything that the broker has stored."""
        if self._pages is not None:
            self._pages.stop()
        self._watch.stop()
        self._tier.stop()

    def health(self) -> str | None:
        return self._tier.problem or self._watch.problem or (self._pages.health() if self._pages is not None else None)

    def metrics(self) -> Iterable[ServiceMetric]:
        watermarks = [
            ServiceMetric(WATERMARK, WATERMARK_DOC, mark_ms / 1000, {"topic": topic})
            for topic, mark_ms in self._watch.watermarks_ms().items()
        ]
        return watermarks if self._pages is None else [*watermarks, *self._pages.metrics()]
