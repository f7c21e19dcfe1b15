"""Queries of the audit topic: a query, and the comparison as of now as its answer."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm import ClusterClient, Settings
from klamm.core.client.errors import nearest_of, unknown_topic
from klamm.core.client.event_publisher import EventPublisher
from klamm.plugin import AuditIdentity, ConfigError

from .comparison import rules
from .comparison.compare import TopicAudit, compare, settlement_counts
from .comparison.mirrors import at_source
from .comparison.tiers import LogEnd, Place, TierKey
from .config import AuditConfig, expected_tier
from .counting.ranges import KlammRangeAudit
from .event import BROKER, CONSUMER, HADOOP, MIRROR, SETTLEMENT, AuditEvent, EventSource, EventWindow
from .reader import AuditReader, read_log_ends, with_counted, with_kept
from .windows import clock_ms

REACH_S: Final = 1.0
LOOK_S: Final = 0.1
STEP_S: Final = 0.5


@dataclass(frozen=True)
class AuditQuery:
    """What is compared. `topics` and `tiers` (`consumer` or `consumer/GROUP`): all when empty. `expect`: tiers that
    must have counts. `since_ms` and `until_ms`: ms since the epoch; None is no bound."""

    topics: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()
    expect: tuple[TierKey, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True)
class Answer:
    """`counted`: all topics with counts, whatever the query. `events` and `logs`: the compared data, at `now_ms`."""

    audits: tuple[TopicAudit, ...]
    unreadable: tuple[str, ...]
    counted: frozenset[str] = frozenset()
    events: tuple[AuditEvent, ...] = ()
    logs: Mapping[str, Mapping[Place, LogEnd]] = field(default_factory=dict)
    now_ms: int = 0

    @property
    def complete(self) -> bool:
        return bool(self.audits) and not self.unreadable and all(audit.complete for audit in self.audits)


class AuditQueryRunner:
    """Runs queries one after another; each reads only the events stored since the previous one."""

    def __init__(
        self,
        client: ClusterClient,
        config: AuditConfig,
        reader: AuditReader | None = None,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """`reader`: one that has read before, or that keeps only a part of the events. `deadline_s`, on the
        monotonic clock: no query reads or waits beyond it; the client has its own deadline."""
        self._client = client
        self._deadline_s = deadline_s
        self._config = config
        self._reader = AuditReader(client, config.topic, mirrored=config.mirrored_topics) if reader is None else reader

    def ask(self, query: AuditQuery, more: Iterable[AuditEvent] = (), *, wait: bool = True) -> Answer:
        """Reads new events and compares; raises `KlammError` when the topic cannot be read, and the next query
        continues there. The ends of the logs are requested first, so that records stored meanwhile are not reported as
        missing; a broker tier that is counting gets the time of a pass or two to reach these ends, unless `wait` is
        False. `more`: events that are not stored yet and count as if they were."""
        config, reader = self._config, self._reader
        now_ms = clock_ms()
        logs = read_log_ends(self._client, lambda topic: config.audits(topic) and topic in (query.topics or (topic,)))
        reader.read(self._deadline_s)
        retained_ms = reader.retained_ms(now_ms, config.retention_ms)
        if retained_ms > -math.inf:  # the events that state up to where the broker tier has counted may be deleted
            logs = with_counted(self._client, logs)
        deadline = time.monotonic() + (2 * config.broker_interval_ms / 1000 + REACH_S if wait else 0)
        if self._deadline_s is not None:
            deadline = min(deadline, self._deadline_s)
        while not _reached(logs, reader.events) and time.monotonic() < deadline:
            time.sleep(min(config.broker_interval_ms / 1000, LOOK_S))
            reader.read(self._deadline_s)
        logs = with_kept(self._client, logs, reader.events, REACH_S)
        wanted = query.topics or config.topics
        told, logs = at_source((*reader.events, *more), logs)
        if config.mirrored_topics:  # the other cluster audits topics that are not mirrored here, too
            told = [event for event in told if config.audits(event.topic)]
        events = [event for event in told if not query.topics or event.topic in query.topics]
        expect = (*(TierKey(*expected_tier(name)) for name in config.expect), *query.expect)
        audits = compare(events, now_ms, expect, wanted, config.allowed_lateness_ms, logs, retained_ms)
        counted = frozenset(event.topic for event in reader.events)
        narrowed = tuple(narrow(audit, query) for audit in audits)
        return Answer(narrowed, tuple(reader.unreadable), counted, tuple(events), logs, now_ms)


def ask(client: ClusterClient, config: AuditConfig, query: AuditQuery, reader: AuditReader | None = None) -> Answer:
    """Runs one query of the audit topic; from its beginning, or from where `reader` stopped."""
    return AuditQueryRunner(client, config, reader).ask(query)


def ask_until_complete(client: ClusterClient, config: AuditConfig, query: AuditQuery, timeout_s: float) -> Answer:
    """Repeats a query until everything is complete, or `timeout_s` have passed; returns the last answer. Raises
    `UnknownTopicError` as `check_topics` does."""
    runner = AuditQueryRunner(client, config)
    deadline = time.monotonic() + timeout_s
    while True:
        answer = runner.ask(query)
        check_topics(client, query, answer)
        if answer.complete or time.monotonic() >= deadline:
            return answer
        time.sleep(STEP_S)


def check_topics(client: ClusterClient, query: AuditQuery, answer: Answer) -> None:
    """Raises `UnknownTopicError` for a topic of the query that is neither in the cluster nor counted; a deleted
    topic still has counts."""
    silent = [topic for topic in query.topics if topic not in answer.counted]
    if silent:
        there = client.metadata().topics
        for topic in silent:
            if topic not in there:
                raise unknown_topic(topic, {*there, *answer.counted}, wanted=False)


def absent_topics(config: AuditConfig, there: Collection[str]) -> list[str]:
    """Returns a line for each topic of `audit.topics` and `audit.mirrored.topics` that is not among `there`. It may be
    misspelt, or be created later."""
    named = {"audit.topics": config.topics, "audit.mirrored.topics": config.mirrored_topics}
    others = set(there).difference(*named.values())
    return [
        f"{key}: there is no topic {topic!r} in the cluster{nearest_of(topic, others)}"
        for key, topics in named.items()
        for topic in topics
        if topic not in there
    ]


def silent_tiers(tiers: Iterable[str], answer: Answer) -> list[str]:
    """Returns a line for each of these tiers with an owner, as `hadoop/lake`, that has no count in the comparison:
    it may not have started, or its name is wrong."""
    there = sorted({f"{event.tier}/{event.owner}" for event in answer.events if event.tier in (CONSUMER, HADOOP)})
    known = f"there are {', '.join(there)}" if there else "there is no consumer and no load that has"
    return [f"tier {tier} has counted nothing; {known}" for tier in tiers if "/" in tier and tier not in there]


def _reached(logs: Mapping[str, Mapping[Place, LogEnd]], events: Iterable[AuditEvent]) -> bool:
    """Returns True if the broker tier has counted everything that the query covers; a log that no broker serves is not
    waited for.
    """
    by_topic: dict[str, list[AuditEvent]] = {}
    for event in events:
        if event.tier in (BROKER, MIRROR):
            by_topic.setdefault(event.topic, []).append(event)
    counted: dict[str, dict[Place, int]] = {}
    for topic, told in by_topic.items():
        ends = counted[topic] = {}
        for event in told:
            if event.partition is not None:
                place = Place(event.topic_id, event.partition)
                ends[place] = max(ends.get(place, 0), event.to_offset)
    return not any(
        log.end >= 0 and rules.is_behind(place, log, counted.get(topic, {}))
        for topic, ends in logs.items()
        for place, log in ends.items()
    )


def narrow(audit: TopicAudit, query: AuditQuery) -> TopicAudit:
    """Restricts the audits to the tiers and windows of the query, each compared as before."""
    if query.tiers:
        audit = audit.of_tiers([t for t in audit.tiers if t.tier in query.tiers or str(t) in query.tiers])
    if query.since_ms is not None or query.until_ms is not None:
        audit = audit.between(query.since_ms, query.until_ms)
    return audit


def settle(client: ClusterClient, config: AuditConfig, query: AuditQuery, who: str, why: str) -> tuple[int, int]:
    """Settles every unknown count of the topic, tiers and windows of the query, as an event of the audit topic; returns
    how many counts of how many windows.

    Raises `ConfigError` if there is none, `UnknownTopicError` if the topic does not exist.
    """
    [topic] = query.topics
    answer = ask(client, config, query)
    check_topics(client, query, answer)
    [audit] = answer.audits
    counts = settlement_counts(audit)
    if not counts:
        why = "no count is unknown" if audit.windows else "nothing has been counted"
        where = " in what was asked for" if query.tiers or query.since_ms or query.until_ms else ""
        raise ConfigError(f"topic {topic}: {why}{where}, so there is nothing to settle")
    now = clock_ms()
    windows = (
        EventWindow(start, records, 0, expected, source=tier) for (tier, start), (records, expected) in counts.items()
    )
    identity = AuditIdentity(SETTLEMENT, who, socket.gethostname(), "klamm audit settle")
    event = EventSource(identity, audit.window_ms, lambda: now).event((topic, None), (now, now + 1), windows, note=why)
    EventPublisher(client, config.topic, clock_ms)(*event.encode()).result()
    return len(counts), len({start for _, start in counts})


def retire(
    client: ClusterClient,
    config: AuditConfig,
    tier: TierKey,
    topics: Collection[str],
    lake: str,
    who: str,
    why: str,
) -> list[str]:
    """Ends a group, a sink's lakes, or the one with the id `lake`: publishes for each of the topics (all that it has
    counted when empty) the event after which it is no longer compared. Returns the topics.

    Raises `ConfigError` if it has counted none of them.
    """
    reader = AuditReader(client, config.topic, mirrored=config.mirrored_topics)
    reader.read()
    counted = [each for each in reader.events if (each.tier, each.owner) == tier and not each.ends]
    there = sorted({each.topic for each in counted if lake in ("", each.lake)})
    wanted = sorted(topics) or there
    missing = [topic for topic in wanted if topic not in there]
    if missing or not wanted:
        what = f"lake {lake} of {tier}" if lake else str(tier)
        known = sorted({each.lake for each in counted}) if lake else {f"{e.tier}/{e.owner}" for e in reader.events}
        near = nearest_of(lake or str(tier), known)
        of = f" of topic {missing[0]}" if missing else ""
        raise ConfigError(f"{what} has counted nothing{of}, so there is nothing to end{near}")
    events = EventPublisher(client, config.topic, clock_ms)
    identity = AuditIdentity(*tier, socket.gethostname(), who)
    ranges = KlammRangeAudit(identity, events, window_ms=config.window_minutes * 60_000, clock_ms=clock_ms)
    ranges.end(wanted, why, lake)
    return wanted


def audit_config(settings: Settings) -> AuditConfig:
    """Returns the audit's configuration. Raises `ConfigError` if the file configures no audit, or another system's."""
    if settings.audit is None or not isinstance(settings.audit.config, AuditConfig):
        raise ConfigError(f"{settings.source}: audit: this command needs a section `audit: {{plugin: klamm, …}}`")
    return settings.audit.config


def completeness_watermark(client: ClusterClient, config: AuditConfig, topic: str) -> int | None:
    """Returns the instant (ms since the epoch) up to which all of a topic's tiers are complete; None if no window is. A
    downstream job waits for it.
    """
    [audit] = ask(client, config, AuditQuery(topics=(topic,))).audits
    return audit.watermark_ms
