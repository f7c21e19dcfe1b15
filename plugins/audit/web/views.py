"""The content of the pages and of the REST endpoint as data: each view is a dictionary that can be serialized to JSON,
and that a template renders. Instants are in ms since the epoch. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.core.client.errors import nearest_of, unknown_topic
from klamm.plugin import ConfigError, KlammError

from ..comparison.compare import TopicAudit
from ..comparison.mirrors import losses
from ..comparison.report import Row, as_json, few_rows, lags, rows
from ..comparison.tiers import PRODUCERS, LogEnd, Place, ProducerLife, State, TierCounts, TierKey, wide
from ..event import BROKER, HADOOP, MIRROR, UNATTRIBUTED, AuditEvent
from ..query import Answer, AuditQuery, narrow
from ..windows import Span, parse_span
from .chart import missing_records

Json = dict[str, Any]
NOTHING: Final = "nothing counted"


class NotFoundError(KlammError):
    """The topic, tier or page does not exist."""


@dataclass(frozen=True)
class Filters:
    """The filters of a request. `by` None: the shortest span that gives few rows."""

    by: Span | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tiers: tuple[str, ...] = ()

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> Filters:
        """Parses a query string; raises `ConfigError` in one line."""
        by = query.get("by", "")
        if by not in ("", *Span):
            raise ConfigError(f"by: expected month, day, hour or window, got {by!r}")
        tier = query.get("tier", "")
        since_ms, until_ms = parse_span(query.get("since", ""), query.get("until", ""))
        return cls(Span(by) if by else None, since_ms, until_ms, (tier,) if tier else ())


def find_topic(answer: Answer, name: str) -> TopicAudit:
    """Returns the topic; `NotFoundError` names the nearest one."""
    for audit in answer.audits:
        if audit.topic == name:
            return audit
    raise NotFoundError(unknown_topic(name, [audit.topic for audit in answer.audits], wanted=False).words)


def find_tier(audit: TopicAudit, name: str) -> TierKey:
    """Returns the tier; `NotFoundError` names the nearest one."""
    for tier in audit.tiers:
        if str(tier) == name:
            return tier
    near = nearest_of(name, map(str, audit.tiers))
    raise NotFoundError(f"topic {audit.topic!r} has no tier {name!r}{near}")


# -- the views


def overview(answer: Answer) -> Json:
    """Returns one row for every topic."""
    return {
        "read_ms": answer.now_ms,
        "unreadable": list(answer.unreadable),
        "topics": [
            {
                "topic": audit.topic,
                "state": topic_state(audit),
                "complete": audit.complete,
                "lowest": Row("", audit.windows).completeness() if audit.windows else None,
                "watermark_ms": audit.watermark_ms,
                "lag": lags(audit, answer.logs.get(audit.topic, {})),
                "problems": len(audit.problems),
                "live_producers": len(audit.live_producers),
            }
            for audit in answer.audits
        ],
    }


def topic(answer: Answer, name: str, filters: Filters) -> tuple[Json, TopicAudit, list[Row]]:
    """Returns one topic with its tiers side by side, and the data of the chart."""
    whole = find_topic(answer, name)
    for tier in filters.tiers:
        find_tier(whole, tier)
    audit = narrow(whole, AuditQuery(tiers=filters.tiers, since_ms=filters.since_ms, until_ms=filters.until_ms))
    span = filters.by or few_rows(audit)
    shown = rows(audit, span)
    [said] = as_json([audit], span, ())["topics"]
    for row, entry in zip(shown, said["rows"], strict=True):
        entry["completeness"] = row.completeness()
        for tier_key in audit.tiers:
            entry["tiers"][str(tier_key)]["missing"] = missing_records(row, tier_key)
    said |= {
        "read_ms": answer.now_ms,
        "by": span,
        "since_ms": filters.since_ms,
        "until_ms": filters.until_ms,
        "state": topic_state(audit),
        "tiers": [str(tier) for tier in audit.tiers],
        "lag": lags(audit, answer.logs.get(audit.topic, {})),
    }
    return said, audit, shown


def producers(answer: Answer, name: str, filters: Filters, host: str | None, application: str | None) -> Json:
    """Returns the producers of the topic `name`, by host and application, and how many records of each the broker has
    stored, according to the records' headers. `host` and `application` select some of them; None: all.
    """
    entries = [
        each
        for each in _entries(answer, name, filters)
        if host in (None, each["host"]) and application in (None, each["application"])
    ]
    one = host is not None or application is not None
    if one and not entries:
        raise NotFoundError(f"topic {name!r} has no producers on host {host!r} in application {application!r}")
    return {
        "topic": name,
        "read_ms": answer.now_ms,
        "host": host,
        "application": application,
        "applications": _by_application(entries),
        "producers": _newest_first(entries) if one else [],
    }


def all_producers(answer: Answer, name: str, filters: Filters) -> tuple[Json, list[Json]]:
    """Returns the rows of `producers`: in total, and for each application."""
    entries = _entries(answer, name, filters)
    each = [
        {"host": host, "application": application, "producers": _newest_first(group)}
        for (host, application), group in _grouped(entries)
    ]
    return {"topic": name, "read_ms": answer.now_ms, "applications": _by_application(entries)}, each


def tier(answer: Answer, name: str, tier_name: str, filters: Filters) -> Json:
    """Returns one group, load job or the broker: its counts by time, its progress in each partition, and the ranges of
    its events (for a load job the published ones).
    """
    whole = find_topic(answer, name)
    key = find_tier(whole, tier_name)
    audit = narrow(whole, AuditQuery(tiers=(tier_name,), since_ms=filters.since_ms, until_ms=filters.until_ms))
    span = filters.by or few_rows(audit)
    tiles = whole.counts[key].tiles
    ends = answer.logs.get(name, {})
    return {
        "topic": audit.topic,
        "tier": tier_name,
        "what": {HADOOP: "load job", BROKER: "broker", MIRROR: "mirror"}.get(key.tier, "consumer group"),
        "read_ms": answer.now_ms,
        "by": span,
        "state": topic_state(audit),
        "lag": lags(whole, ends).get(tier_name),
        "problems": [{"kind": problem.kind, "text": problem.text} for problem in audit.problems],
        "losses": list(losses(audit)),
        "rows": [
            {
                "label": row.label,
                "records": row.records(key),
                "expected": sum(cell.expected for cell in row.cells(key)),
                "bytes": row.size(key),
                "missing": missing_records(row, key),
                "state": row.state(key),
            }
            for row in rows(audit, span)
        ],
        "partitions": [_partition(place, events, ends.get(place)) for place, events in sorted(tiles.items())],
        "ranges": [
            _range(event)
            for event in sorted(
                (each for events in tiles.values() for each in events if not each.begins and _in_span(each, filters)),
                key=lambda event: (-event.seen_ms, event.partition, -event.from_offset),
            )
        ],
    }


def topic_state(audit: TopicAudit) -> str:
    """Returns the worst state of its counts; a problem without a counted window makes it unknown too."""
    faulty = any(problem.tier in audit.expected for problem in audit.problems)
    if not audit.windows:
        return State.UNKNOWN if faulty else NOTHING
    worst = Row("", audit.windows).state() if audit.tiers else State.UNKNOWN
    return State.UNKNOWN if faulty and worst.passes else worst


# -- drill-down


def _within(start_ms: int, filters: Filters) -> bool:
    after = filters.since_ms is None or start_ms >= filters.since_ms
    return after and (filters.until_ms is None or start_ms < filters.until_ms)


def _in_span(event: AuditEvent, filters: Filters) -> bool:
    return not event.windows or any(_within(window.start_ms, filters) for window in event.windows)


def _stored_by_source(found: Iterable[TierCounts], filters: Filters) -> dict[str, int]:
    stored: dict[str, int] = {}
    for counts in found:
        if counts.tier.tier == BROKER:
            for start, sources in counts.sources.items():
                for source, records in sources.items() if _within(start, filters) else ():
                    stored[source] = stored.get(source, 0) + records
    return stored


def _entries(answer: Answer, name: str, filters: Filters) -> list[Json]:
    """Returns all producers of a topic."""
    audit = find_topic(answer, name)
    found = audit.counts
    stored = _stored_by_source(found.values(), filters)
    lives = found.get(PRODUCERS, TierCounts(PRODUCERS)).lives
    return [_producer(life, stored, audit.window_ms, filters) for life in lives]


def _newest_first(entries: Iterable[Json]) -> list[Json]:
    return sorted(entries, key=lambda each: (-each["last_told_ms"], each["producer"]))


def _producer(life: ProducerLife, stored: Mapping[str, int], window_ms: int, filters: Filters) -> Json:
    windows = [
        window
        for event in life.events
        for window in event.windows
        if _within(wide(window.start_ms, window_ms), filters)
    ]
    acknowledged = sum(window.records for window in windows)
    held = None if UNATTRIBUTED in stored else stored.get(life.owner, 0)
    status = "killed" if life.killed else "live" if life.live else "closed"
    if held is None:
        state = State.UNKNOWN
    elif held < acknowledged:
        state = State.MISSING
    else:
        state = State.COMPLETE if held == acknowledged and not life.killed else State.UNKNOWN
    return {
        "producer": life.owner,
        "host": life.last.host,
        "application": life.last.application,
        "status": status,
        "attempted": sum(window.attempted for window in windows),
        "acknowledged": acknowledged,
        "stored": held,
        "missing": max(acknowledged - held, 0) if held is not None else None,
        "state": state,
        "last_told_ms": life.last.seen_ms,
    }


def _grouped(entries: Iterable[Json]) -> list[tuple[tuple[str, str], list[Json]]]:
    """Returns the producers of each host and application."""
    grouped: dict[tuple[str, str], list[Json]] = {}
    for entry in entries:
        grouped.setdefault((entry["host"], entry["application"]), []).append(entry)
    return sorted(grouped.items())


def _by_application(entries: Iterable[Json]) -> list[Json]:
    order = list(State)
    return [
        {
            "host": host,
            "application": application,
            "producers": len(group),
            "live": sum(each["status"] == "live" for each in group),
            "killed": sum(each["status"] == "killed" for each in group),
            "attempted": sum(each["attempted"] for each in group),
            "acknowledged": sum(each["acknowledged"] for each in group),
            "stored": None if any(each["stored"] is None for each in group) else sum(e["stored"] for e in group),
            "missing": None if any(each["missing"] is None for each in group) else sum(e["missing"] for e in group),
            "state": max((each["state"] for each in group), key=order.index),
            "last_told_ms": max(each["last_told_ms"] for each in group),
        }
        for (host, application), group in _grouped(entries)
    ]


def _partition(place: Place, events: Sequence[AuditEvent], log: LogEnd | None) -> Json:
    end = None if log is None or log.end < 0 else log.end
    told = events[-1].to_offset
    return {
        "partition": place.partition,
        "topic_id": place.topic_id,
        "from": events[0].from_offset,
        "to": told,
        "log_end": end,
        "lag": None if end is None else max(end - told, 0),
        "last_told_ms": max(event.seen_ms for event in events),
    }


def _range(event: AuditEvent) -> Json:
    starts = [window.start_ms for window in event.windows]
    return {
        "partition": event.partition,
        "topic_id": event.topic_id,
        "from": event.from_offset,
        "to": event.to_offset,
        "records": sum(window.records for window in event.windows),
        "first_window_ms": min(starts, default=None),
        "last_window_ms": max(starts, default=None),
        "lossy": event.lossy,
        "host": event.host,
        "application": event.application,
        "load": event.load,
        "told_ms": event.seen_ms,
    }
