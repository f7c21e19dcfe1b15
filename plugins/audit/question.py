"""What is asked of the audit topic, and the answer: the comparison as of now."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError
from klamm.plugins.audit.compare import TopicAudit, compare, settlement_counts
from klamm.plugins.audit.config import AuditConfig, expected_tier
from klamm.plugins.audit.event import SETTLEMENT, AuditEvent, EventWindow
from klamm.plugins.audit.publisher import ClusterPublisher
from klamm.plugins.audit.reader import read_audit_log
from klamm.plugins.audit.tiling import TierKey
from klamm.plugins.audit.windows import clock_ms


@dataclass(frozen=True)
class Question:
    """What is asked: topics and tiers (all when empty; a tier as `consumer` or `consumer/GROUP`), tiers that must have
    counted, instants in ms (None: no bound)."""

    topics: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    expect: tuple[TierKey, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True)
class Answer:
    audits: tuple[TopicAudit, ...]
    unreadable: tuple[str, ...]

    @property
    def complete(self) -> bool:
        return bool(self.audits) and not self.unreadable and all(audit.complete for audit in self.audits)


def ask(client: ClusterClient, config: AuditConfig, question: Question) -> Answer:
    """Read the audit topic and compare; `KlammError` when it cannot be read."""
    log = read_audit_log(client, config.topic)
    wanted = question.topics or config.topics
    events = [event for event in log.events if not question.topics or event.topic in question.topics]
    configured = tuple(TierKey(*expected_tier(name)) for name in config.expect)
    audits = compare(events, clock_ms(), (*configured, *question.expect), wanted, config.allowed_lateness_ms)
    return Answer(tuple(_narrowed(audit, question) for audit in audits), log.unreadable)


def _narrowed(audit: TopicAudit, question: Question) -> TopicAudit:
    """Only the tiers and the windows asked for, each measured as before."""
    if question.tiers:
        audit = audit.of_tiers([t for t in audit.tiers if t.tier in question.tiers or str(t) in question.tiers])
    if question.since_ms is not None or question.until_ms is not None:
        audit = audit.between(question.since_ms, question.until_ms)
    return audit


def settle(client: ClusterClient, config: AuditConfig, question: Question, who: str, why: str) -> tuple[int, int]:
    """Settles every unknown count of the topic, tiers and windows of the question, as an event of the audit topic; how
    many counts of how many windows. `ConfigError` when there is none."""
    [topic] = question.topics
    [audit] = ask(client, config, question).audits
    counts = settlement_counts(audit)
    if not counts:
        raise ConfigError(f"topic {topic}: no count is unknown there, so there is nothing to settle")
    now = clock_ms()
    windows = (
        EventWindow(start, records, 0, expected, source=tier) for (tier, start), (records, expected) in counts.items()
    )
    event = AuditEvent(
        tier=SETTLEMENT,
        owner=who,
        host=socket.gethostname(),
        application="klamm audit settle",
        topic=topic,
        partition=None,
        from_offset=now,
        to_offset=now + 1,
        window_ms=audit.window_ms,
        windows=tuple(windows),
        time_ms=now,
        note=why,
    )
    ClusterPublisher(client, config.topic)(*event.encode()).result()
    return len(counts), len({start for _, start in counts})


def audit_config(settings: Settings) -> AuditConfig:
    """`ConfigError` when the file configures no audit, or another system's."""
    if settings.audit is None or not isinstance(settings.audit.config, AuditConfig):
        raise ConfigError(f"{settings.source}: audit: this command needs a section `audit: {{plugin: klamm, …}}`")
    return settings.audit.config


def completeness_watermark(client: ClusterClient, config: AuditConfig, topic: str) -> int | None:
    """Up to which instant (ms since the epoch) all of a topic's tiers are complete; None when nothing is. What a
    downstream job waits for."""
    [audit] = ask(client, config, Question(topics=(topic,))).audits
    return audit.watermark_ms
