"""A mirror's events and logs by the topic ids of its source (docs/audit.md, R24), and what it lacks for good in words.
Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..event import BROKER, MIRROR, AuditEvent
from . import rules
from .compare import TopicAudit
from .tiers import LogEnd, Place, TierKey


def at_source(
    events: Iterable[AuditEvent], logs: Mapping[str, Mapping[Place, LogEnd]]
) -> tuple[list[AuditEvent], dict[str, dict[Place, LogEnd]]]:
    """Returns events and logs with the source's topic ids in place of the mirror's: offsets of both are equal.

    Left out are events of tier `mirror` of a topic that was mirrored again since, or whose mirror has ended, because a
    broker of this cluster has counted it after a promotion.
    """
    events = list(events)
    origins: dict[tuple[str, str], str] = {}
    newest: dict[tuple[str, str], AuditEvent] = {}
    for event in events:
        if event.tier == MIRROR:
            origins[event.topic, event.topic_id] = event.origin
            newest[event.topic, event.origin] = max(
                newest.get((event.topic, event.origin), event), event, key=lambda each: each.seen_ms
            )
    if not origins:
        return events, {topic: dict(ends) for topic, ends in logs.items()}
    promoted = {(e.topic, e.topic_id) for e in events if e.tier == BROKER and (e.topic, e.topic_id) in origins}

    def counts(event: AuditEvent) -> bool:
        current = event.tier != MIRROR or newest[event.topic, event.origin].topic_id == event.topic_id
        return current and (event.tier != MIRROR or (event.topic, event.topic_id) not in promoted)

    moved = [
        replace(event, topic_id=origin) if (origin := origins.get((event.topic, event.topic_id))) else event
        for event in events
        if counts(event)
    ]
    return moved, {
        topic: {
            place._replace(topic_id=origins.get((topic, place.topic_id), place.topic_id)): log
            for place, log in ends.items()
        }
        for topic, ends in logs.items()
    }


def losses(audit: TopicAudit) -> Iterator[str]:
    """Returns a line for each cut of the mirror, and one if the topic was created again and is not mirrored since."""
    mirror = audit.counts.get(TierKey(MIRROR))
    if mirror is None or mirror.tier not in audit.tiers:
        return
    broker = next((counts for tier, counts in audit.counts.items() if tier.tier == BROKER), None)
    never = set() if broker is None else rules.not_mirrored(mirror, broker, audit.topic_ids)
    for topic_id in audit.topic_ids[-1:]:
        if topic_id in never:
            yield (
                f"mirror: the topic was created again at the source, as {topic_id}, of which nothing is mirrored: "
                f"`klamm mirror resolve LINK --topic {audit.topic} --take-new` copies it in place of the former one"
            )
    for place, cuts in mirror.cuts.items():
        for event, unknown in cuts:
            records = sum(window.records for window in event.windows)
            some = f"at least {records:,}" if unknown else f"{records:,}"
            yield (
                f"mirror: partition {place.partition}: the source has lost {some} records of offsets "
                f"[{event.from_offset}, {event.to_offset}) that were mirrored: `klamm mirror status LINK` names the "
                "file with them"
            )
