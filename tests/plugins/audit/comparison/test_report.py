from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from klamm.plugins.audit.comparison.compare import TopicAudit, compare
from klamm.plugins.audit.comparison.report import as_json, print_report, ratio_text
from klamm.plugins.audit.comparison.tiers import LogEnd, Place, TierKey
from klamm.plugins.audit.event import AuditEvent
from klamm.plugins.audit.windows import Span
from klammtest.audits import WINDOW_MS, event

DAY = 144


def events(lake: dict[int, int]) -> list[AuditEvent]:
    windows = {0: 10, 1: 10, 40 * DAY: 10}
    return [
        event("producer", "p", 0, 1, windows),
        event("broker", "b", 0, 30, windows),
        event("hadoop", "lake", 0, 30, lake),
    ]


def printed(found: list[AuditEvent], span: Span, log_end: int = -1) -> list[str]:
    out, audits = StringIO(), compare(found, 10**12)
    logs = {audit.topic: {place: LogEnd(0, log_end) for place in places(audit)} for audit in audits}
    print_report(Console(width=160, file=out), audits, span, (), logs)
    return out.getvalue().splitlines()


def places(audit: TopicAudit) -> set[Place]:
    return {place for counts in audit.counts.values() for place in counts.ends}


def test_a_late_lake_says_how_far_behind_it_is() -> None:
    found = [
        event("producer", "p", 0, 1, {0: 10, 1: 10}),
        event("broker", "b", 0, 20, {0: 10, 1: 10}),
        event("hadoop", "lake", 0, 10, {0: 10}),
    ]
    line = "hadoop/lake is 10 records behind the end of the log: its windows are late, not missing"
    assert line in printed(found, Span.WINDOW, log_end=20)
    assert not any("behind the end" in each for each in printed(events({0: 10, 1: 10, 40 * DAY: 10}), Span.DAY, 30))


def test_counts_by_month_with_the_completeness_of_the_worst_window() -> None:
    lines = printed(events({0: 11, 1: 9, 40 * DAY: 10}), Span.MONTH)
    [january] = [line for line in lines if "1970-01" in line]
    [february] = [line for line in lines if "1970-02" in line]
    assert [cell.strip() for cell in january.split("│")[2:]][:4] == ["20", "20", "20", "20"]
    assert "0.9000 missing" in january
    assert "1.0000" in february
    assert "missing" not in february


def test_what_is_doubled_and_what_is_unknown_is_said() -> None:
    assert any("1.1000 duplicated" in line for line in printed(events({0: 11, 1: 10, 40 * DAY: 10}), Span.MONTH))
    broken = [*events({0: 10, 1: 10, 40 * DAY: 10}), event("hadoop", "lake", 31, 32, {})]
    lines = printed(broken, Span.DAY)
    assert any("hadoop/lake: gap: partition 0" in line for line in lines)
    assert sum("unknown" in line for line in lines) == 3


def test_nothing_counted_is_said() -> None:
    assert printed([], Span.WINDOW) == ["! nothing has been counted yet"]


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "1.0000"),
        (0.99999, "0.9999"),
        (1.00001, "1.0001"),
        (0.5, "0.5000"),
        (None, "unknown"),
        (float("inf"), "inf"),
    ],
)
def test_only_what_is_complete_reads_so(ratio: float | None, text: str) -> None:
    assert ratio_text(ratio) == text


def test_json_has_no_infinity() -> None:
    [topic] = as_json(compare([event("producer", "p", 0, 1, {}), event("broker", "b", 0, 1, {0: 1})], 0), Span.DAY, ())[
        "topics"
    ]
    assert (topic["lowest"], topic["rows"][0]["complete"]) == (None, None)
    assert (topic["complete"], topic["rows"][0]["state"]) == (False, "duplicated")


def test_json_says_the_same() -> None:
    audits = compare(events({0: 10, 1: 9, 40 * DAY: 10}), 10**12)
    said = json.loads(json.dumps(as_json(audits, Span.WINDOW, ["x"])))
    [topic] = said["topics"]
    assert said["unreadable"] == ["x"]
    assert (topic["complete"], topic["lowest"], topic["watermark_ms"]) == (False, 0.9, WINDOW_MS)
    assert [row["state"] for row in topic["rows"]] == ["complete", "missing", "complete"]
    assert topic["rows"][1]["tiers"]["hadoop/lake"] == {"records": 9, "bytes": 90, "state": "missing"}
    assert topic["rows"][1]["tiers"]["producer"]["attempted"] == 10


def test_latency_is_known_within_a_window() -> None:
    """90 of 100 records were counted 5 s after their window ended, 10 an hour later."""
    late_ms = 3_600_000
    found = [
        event("producer", "p", 0, 1, {0: 100}, time_ms=WINDOW_MS),
        event("broker", "b", 0, 90, {0: 90}, time_ms=WINDOW_MS + 5000),
        event("broker", "b", 90, 100, {0: 10}, time_ms=0, stored_ms=WINDOW_MS + late_ms),
    ]
    [audit] = compare(found, 10**12)
    assert audit.latency(TierKey("broker", "b"), 0.5) == (5, 605)
    assert audit.latency(TierKey("broker", "b"), 0.9) == (5, 605)
    assert audit.latency(TierKey("broker", "b"), 0.99) == (3600, 4200)
    assert audit.latency(TierKey("producer"), 0.99) == (0, 600)
    assert audit.between(WINDOW_MS, None).latency(TierKey("broker", "b"), 0.5) is None
    [topic] = json.loads(json.dumps(as_json([audit], Span.WINDOW, ())))["topics"]
    assert topic["latency_s"]["broker"] == {"p50": [5, 605], "p99": [3600, 4200]}
    assert "from record time to the count at broker: p50 5 s to 10.1 min, p99 60.0 min to 70.0 min" in printed(
        found, Span.WINDOW
    )


def test_a_record_that_is_ahead_of_its_count_has_no_age() -> None:
    found = [event("broker", "b", 0, 1, {5: 1}, time_ms=0), event("broker", "b", 1, 2, {}, time_ms=0)]
    [audit] = compare(found, 10**12)
    assert audit.latency(TierKey("broker", "b"), 0.5) == (0, 0)
    assert audit.latency(TierKey("producer"), 0.5) is None


def test_names_from_events_are_escaped() -> None:
    forged = "lag\n! forged\x1b[2K\u202e[bold]"
    found = [event("broker", "b", 0, 10, {0: 10}), event("consumer", forged, 0, 9, {0: 9}, application="\ud800")]
    lines = printed(found, Span.WINDOW)
    assert all(line.isprintable() for line in lines)
    assert any(r"consumer/lag\n! forged\x1b[2K\u202e[bold]" in line for line in lines)
