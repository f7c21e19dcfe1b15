"""What is asked of the audit topic, and the answer: the comparison as of now."""

from __future__ import annotations

from dataclasses import dataclass, replace

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import Settings
from klamm.core.errors import ConfigError
from klamm.plugins.audit.compare import TopicAudit, WindowAudit, compare, watermark
from klamm.plugins.audit.config import AuditConfig, expected_tier
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
    audits = compare(events, clock_ms(), (*configured, *question.expect), wanted)
    return Answer(tuple(_between(_only(audit, question.tiers), question) for audit in audits), log.unreadable)


def _only(audit: TopicAudit, names: tuple[str, ...]) -> TopicAudit:
    """Only the tiers asked for, each measured as before."""
    if not names:
        return audit
    tiers = tuple(tier for tier in audit.tiers if tier.tier in names or str(tier) in names)
    windows = tuple(
        WindowAudit(window.start_ms, {tier: window.cells[tier] for tier in tiers}) for window in audit.windows
    )
    problems = tuple(problem for problem in audit.problems if problem.tier in tiers)
    mark = watermark(windows, audit.window_ms) if tiers else None
    return replace(audit, tiers=tiers, windows=windows if tiers else (), problems=problems, watermark_ms=mark)


def _between(audit: TopicAudit, question: Question) -> TopicAudit:
    """Only the windows asked for; the watermark is that of all."""
    since, until = question.since_ms, question.until_ms
    if since is None and until is None:
        return audit
    windows = tuple(
        window
        for window in audit.windows
        if (since is None or window.start_ms >= since) and (until is None or window.start_ms < until)
    )
    return replace(audit, windows=windows)


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
