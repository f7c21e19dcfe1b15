"""The report of a made-up run of the demo, from which the broker lost a flight.

`python -m klammtest.pages.demo_report docs` makes the pictures of docs/demo.md.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from klamm.plugins.audit.windows import parse_instant
from klamm.plugins.demo.report.report import Report
from klamm.plugins.demo.report.timeline import MarkKind, Timeline
from klamm.plugins.demo.steps.load import Published, Range
from klamm.plugins.demo.verdict import Verdict
from klammtest.audits import WINDOW_MS, event
from klammtest.pages.audit_page import HandMade, picture

_FIRST: Final = parse_instant("2013-01-01") // WINDOW_MS
_WALL_S: Final = 1_790_000_000.0


def report_of_a_run() -> Report:
    """Returns the report of a run of 90 seconds."""
    days = {_FIRST + 144 * day: 14 + day % 3 for day in range(365)}
    kept = {**days, _FIRST: days[_FIRST] - 1}
    sent, stored = sum(days.values()), sum(kept.values())
    now_ms = round(_WALL_S * 1000) + 90_000
    told = {"stored_ms": now_ms, "time_ms": now_ms}
    events = [
        event("producer", "demo-1", 0, 1, days, **told),
        event("broker", "b", 0, stored, {}, sources={"demo-1": kept}, **told),
        event("mirror", "b", 0, stored, kept, **told),
        event("consumer", "departures", 0, stored, kept, **told),
        event("hadoop", "lake", 0, stored, kept, **told),
    ]
    answer = HandMade(events, {"flights": stored}, now_ms=now_ms).answer()
    verdict = Verdict(
        expected=sent, produced=sent, consumed=stored, mirrored=stored, loaded=stored, missing=1, duplicated=0,
        lowest=0.9285, audited=False, seconds=90.0,
    )  # fmt: skip
    loads = [_load(1, 1000, 21_000), _load(2, 2500, 49_000), _load(3, stored - 3500, 68_000)]
    planted = "the brokers lose 2013-1-1/UA/1545/EWR"
    return Report(verdict, _timeline(sent), loads, "hdfs://127.0.0.1:20003/lake", answer, planted)


def _timeline(sent: int) -> Timeline:
    now = [0.0]
    timeline = Timeline(lambda: now[0], wall_s=lambda: _WALL_S)
    for step in range(400):
        now[0] = step / 5
        produced = round(sent * min(max(now[0] - 8, 0) / 40, 1.0))
        stalled = min(max(now[0] - 10, 0), 18) if now[0] < 34 else now[0] - 15
        consumed = round(sent * min(stalled / 40, 1.0))
        loaded = 0 if now[0] < 21 else 1000 if now[0] < 49 else 3500 if now[0] < 68 else sent - 1
        timeline.sample(produced, consumed, loaded)
    marks = (
        (7.8, MarkKind.NEWS, "planted: the brokers lose 2013-1-1/UA/1545/EWR"),
        (21.0, MarkKind.LOAD, "load 1 is published: 1,000 rows in 31 files"),
        (28.0, MarkKind.KILL, "member-0 is killed with -9 after 1,100 records of the group"),
        (28.6, MarkKind.KILL, "broker 0 is killed with -9 while it leads partitions 0 and 3 of flights"),
        (28.9, MarkKind.NEWS, "the other brokers lead them 0.3 s later; broker 0 stays dead for now"),
        (31.2, MarkKind.KILL, "the broker that mirrors is killed with -9 after 3,120 flights, and started again"),
        (34.1, MarkKind.NEWS, "it copies on at the end of its log 2.9 s after the kill"),
        (29.5, MarkKind.KILL, "a load is killed with -9 between staging and publishing: 1 staged, nothing published"),
        (33.4, MarkKind.REBALANCE, "member-1 takes over partitions 0, 1"),
        (49.0, MarkKind.LOAD, "load 2 is published: 2,500 rows in 31 files"),
        (53.1, MarkKind.NEWS, "broker 0 is back: all replicas are in sync 3.4 s after its new start"),
        (56.0, MarkKind.NEWS, "the 15 flights of 3 January have arrived late"),
        (68.0, MarkKind.LOAD, "load 3 is published: 1,974 rows in 31 files"),
    )
    for at_s, kind, text in marks:
        timeline.mark(kind, text, _WALL_S + at_s)
    phases = (
        ("ZooKeeper", 0.2, 2.4), ("HDFS, beside all else", 0.3, 9.0), ("three brokers", 2.4, 5.1),
        ("klamm topics create", 5.1, 6.9),
        ("producing", 7.9, 48.0), ("load 1, with the start of Spark", 9.1, 21.0),
        ("the load that is killed", 21.0, 29.5), ("load 2, with the start of Spark", 29.6, 49.0),
        ("load 3", 60.1, 68.0),
        ("Spark reads the lake back", 69.0, 88.0), ("the group commits and ends", 69.0, 70.5), ("audit", 70.5, 73.0),
    )  # fmt: skip
    for name, from_s, to_s in phases:
        timeline.add_phase(name, from_s, to_s)
    return timeline


def _load(number: int, rows: int, at_ms: int) -> Published:
    before = {1: 0, 2: 1000, 3: 2250}[number]
    ranges = tuple(Range(partition, before, before + rows // 2) for partition in range(2))
    return Published(number, rows, 31, round(_WALL_S * 1000) + at_ms, 31, ranges)


def main(folder: Path) -> None:
    """Writes the pictures."""
    with tempfile.TemporaryDirectory() as profile:
        whole = report_of_a_run().html()
        audit = re.sub(r'<section id="(?!audit-1").*?</section>', "", whole, flags=re.DOTALL)
        for name, text, size in (("demo-report", whole, "1150,1440"), ("demo-report-audit", audit, "1150,1000")):
            page = Path(profile, f"{name}.html")
            page.write_text(text)
            picture(folder, name, f"file://{page}", size, profile=Path(profile))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
