"""The gate of downstream jobs: when it opens, and what it says while it is closed."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from klamm import Producer
from klamm.core.cli.main import app
from klamm.core.client.errors import ConnectionFailedError
from klamm.core.errors import ConfigError, KlammError
from klamm.plugins.audit.comparison.compare import Settlement, TopicAudit, compare, settlement_counts
from klamm.plugins.audit.comparison.tiers import LogEnd, Place, TierKey
from klamm.plugins.audit.event import SETTLEMENT, AuditEvent, EventWindow
from klamm.plugins.audit.gate import Gate, NotCompleteError, obstacle, wait_complete
from klamm.plugins.audit.query import Answer
from klamm.plugins.audit.windows import parse_instant
from klammtest.audits import WINDOW_MS, event, readers_of
from klammtest.brokers.inprocess import broker_thread
from klammtest.pages.audit_page import check_document
from klammtest.ports import free_port

LONG_AFTER = 10**12


def pipeline(lake: dict[int, int] | None = None) -> list[AuditEvent]:
    """30 records in three windows, which every tier has counted; `lake`: what the load has instead."""
    windows = {0: 10, 1: 10, 2: 10}
    return [
        event("producer", "p", 0, 1, windows),
        event("broker", "b", 0, 30, {}, sources={"p": windows}),
        event("consumer", "readers", 0, 30, windows),
        event("hadoop", "lake", 0, 30, windows if lake is None else lake),
    ]


def audit(events: list[AuditEvent], now_ms: int = LONG_AFTER, **more: Any) -> TopicAudit:
    [found] = compare(events, now_ms, topics=["flights"], **{"expect": readers_of(events)} | more)
    return found


def closed(events: list[AuditEvent], until: float, **gate: Any) -> str | None:
    return obstacle(audit(events), Gate("flights", int(until * WINDOW_MS), **gate))


def test_the_gate_opens_with_the_watermark_and_where_nothing_follows() -> None:
    found = audit(pipeline())
    assert found.watermark_ms == 3 * WINDOW_MS
    for until in (1, 2.5, 3, 4, 1000):
        assert closed(pipeline(), until) is None


def test_a_lost_record_closes_it_from_its_window_on() -> None:
    events = pipeline({0: 10, 1: 8, 2: 10})
    assert closed(events, 1) is None
    assert closed(events, 1.1) == "window 1970-01-01T00:10Z at hadoop/lake lacks 2 of 10 records, ratio 0.8"
    assert closed(events, 3, tiers=("producer", "broker", "consumer/readers")) is None
    assert closed(events, 3, since_ms=2 * WINDOW_MS) is None
    assert closed(events, 3, since_ms=2 * WINDOW_MS - 1) is not None


def test_doubled_records_and_further_windows_are_said() -> None:
    assert closed(pipeline({0: 11, 1: 8, 2: 9}), 3) == (
        "window 1970-01-01T00:00Z at hadoop/lake has 1 records more than the 10 expected, ratio 1.1; and 2 more windows"
    )


def test_a_threshold_opens_it_where_each_window_has_the_ratio() -> None:
    events = pipeline({0: 10, 1: 8, 2: 9})
    assert closed(events, 3, threshold=0.8) is None
    told = closed(events, 3, threshold=0.9)
    assert told == "window 1970-01-01T00:10Z at hadoop/lake lacks 2 of 10 records, ratio 0.8"
    assert closed(events, 3) is not None


def test_unknown_says_why_and_no_threshold_opens_it() -> None:
    events = [*pipeline({0: 10}), event("hadoop", "lake", 40, 41, {2: 1})]
    told = closed(events, 3, threshold=0.01)
    assert told is not None
    assert told.startswith(
        "window 1970-01-01T00:00Z at hadoop/lake is unknown (10 of 10 records counted): hadoop/lake:"
    )
    assert "nothing counted in offsets [30, 40)" in told


def test_a_log_that_the_broker_tier_has_not_counted_closes_it() -> None:
    logs = {"flights": {Place("", 0): LogEnd(0, 31)}}
    told = obstacle(audit(pipeline(), logs=logs), Gate("flights", 3 * WINDOW_MS, tiers=("hadoop/lake",)))
    assert told is not None
    assert "counted up to offset 30, and its log ends at 31" in told


def test_nothing_counted_is_not_complete() -> None:
    assert "producer: absent" in (closed([], 3) or "")
    assert closed(pipeline(), 3, tiers=("consumer/nobody",)) == "consumer/nobody has counted nothing"
    found = audit(pipeline()[:3], expect=[TierKey("hadoop", "lake")])
    told = obstacle(found, Gate("flights", WINDOW_MS, tiers=("hadoop/lake",)))
    assert told is not None
    assert "hadoop/lake: absent: hadoop/lake has counted nothing" in told


def test_an_instant_that_the_allowed_lateness_has_not_passed_is_waited_for() -> None:
    now_ms = 3 * WINDOW_MS
    found = audit(pipeline(), now_ms, lateness_ms=WINDOW_MS)
    assert obstacle(found, Gate("flights", 2 * WINDOW_MS)) is None
    told = obstacle(found, Gate("flights", 3 * WINDOW_MS))
    assert told is not None
    assert told.startswith("records from 1970-01-01T00:20Z on may still arrive")


def test_a_window_in_which_a_live_producer_counted_lately_is_open() -> None:
    """It sends old records: they are far behind the allowed lateness, and more of them may come."""
    events = pipeline()
    now_ms = 1000 * WINDOW_MS
    events[0] = event("producer", "p", 0, 1, {0: 10, 1: 10, 2: 10}, final=False, time_ms=now_ms)
    found = audit(events, now_ms)
    assert obstacle(found, Gate("flights", 3 * WINDOW_MS)) == (
        "window 1970-01-01T00:00Z may still get records: a producer counted in it recently (alive: p)"
    )


def test_records_with_an_invalid_timestamp_block_nothing_before_them() -> None:
    """Those without a timestamp (-1, or before 1970) have a window of their own, which lacks a record here; one of the
    year 300000 has a window in the future."""
    no_window, far = -1, 300_000 * 365 * 86_400_000 // WINDOW_MS
    windows = {no_window: 2, 0: 10, 1: 10, 2: 10, far: 1}
    events = [
        event("producer", "p", 0, 1, windows),
        event("broker", "b", 0, 33, {}, sources={"p": windows}),
        event("hadoop", "lake", 0, 33, {**windows, no_window: 1}),
    ]
    found = audit(events)
    assert (found.windows[0].start_ms, found.windows[0].complete) == (-1, False)
    assert found.watermark_ms == 3 * WINDOW_MS
    assert obstacle(found, Gate("flights", 3 * WINDOW_MS)) is None
    assert obstacle(found, Gate("flights", 1000 * WINDOW_MS)) is None


def test_what_somebody_settled_opens_it() -> None:
    events = pipeline()[:3]
    expect = [TierKey("hadoop", "lake")]
    counts = settlement_counts(audit(events, expect=expect))
    windows = tuple(EventWindow(start, n, 0, of, source=tier) for (tier, start), (n, of) in counts.items())
    settlement = event(SETTLEMENT, "anna", 0, 1, {}, note="burnt")
    object.__setattr__(settlement, "windows", windows)
    found = audit([*events, settlement], expect=expect)
    assert isinstance(found.settled[0], Settlement)
    assert obstacle(found, Gate("flights", 3 * WINDOW_MS)) is None


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.now_s += seconds


def waited(answers: Iterator[Answer | KlammError], clock: Clock, cost_s: float = 0.0) -> str:
    def ask() -> Answer:
        clock.now_s += cost_s
        answer = next(answers)
        if isinstance(answer, KlammError):
            raise answer
        return answer

    gate = Gate("flights", 3 * WINDOW_MS)
    return wait_complete(ask, gate, 10, clock_s=clock, sleep=clock.sleep)


def test_it_waits_until_the_gate_opens_and_for_a_cluster_that_is_away() -> None:
    late, done = (Answer((audit(events),), ()) for events in (pipeline({0: 10}), pipeline()))
    told = waited(iter([late, ConnectionFailedError("no broker"), done]), Clock())
    assert told == (
        "topic flights is complete before 1970-01-01T00:30Z: 3 windows; records: producer 30, broker 30, "
        "consumer/readers 30, hadoop/lake 30"
    )


def test_it_gives_up_after_the_timeout_with_one_line() -> None:
    clock = Clock()
    late = Answer((audit(pipeline({0: 10, 1: 8, 2: 10})),), ())
    with pytest.raises(NotCompleteError) as told:
        waited(iter(lambda: late, None), clock, cost_s=3.0)
    assert str(told.value) == (
        "topic flights is not complete before 1970-01-01T00:30Z after 10 s: window 1970-01-01T00:10Z at hadoop/lake "
        "lacks 2 of 10 records, ratio 0.8"
    )
    assert clock.slept == [3.0, 1.0], "as long as a question took, and not beyond the timeout"


def test_a_query_that_the_timeout_interrupts_does_not_hide_what_is_missing() -> None:
    clock = Clock()
    late = Answer((audit(pipeline({0: 10, 1: 8, 2: 10})),), ())
    with pytest.raises(NotCompleteError, match="lacks 2 of 10 records"):
        waited(iter([late, ConnectionFailedError("no time left")]), clock, cost_s=5.0)
    with pytest.raises(NotCompleteError, match="cannot be queried: no broker"):
        waited(iter([late, *[ConnectionFailedError("no broker")] * 3]), Clock(), cost_s=2.0)


def test_the_timeout_bounds_a_command_that_reaches_no_broker(tmp_path: Path) -> None:
    config = tmp_path / "klamm.yaml"
    servers = f"127.0.0.1:{free_port()}"
    config.write_text(yaml.safe_dump({"producer": {"bootstrap.servers": servers}, "audit": {"plugin": "klamm"}}))
    began = time.monotonic()
    done = CliRunner().invoke(
        app, ["audit", "-c", str(config), "--wait-complete", "t", "--until", "2013-01-02", "--timeout", "1s"]
    )
    assert time.monotonic() - began < 20, "it was 31 s: the time-out of a request on top of its own"
    assert isinstance(done.exception, NotCompleteError)
    said = str(done.exception)
    assert said.startswith(
        "topic t is not complete before 2013-01-02T00:00Z after 1 s: the audit cannot be queried: no broker answers at "
        f"{servers} ("
    )
    assert "\n" not in said


def test_records_that_are_no_events_close_it() -> None:
    with pytest.raises(NotCompleteError, match="1 records of the audit topic cannot be read: x"):
        waited(iter(lambda: Answer((audit(pipeline()),), ("x",)), None), Clock())


def test_the_command(tmp_path: Path) -> None:
    """Against a broker: usage, an unknown topic, a gate that stays closed and one that opens."""
    own = {"plugin": "klamm", "topics": ["trips"], "publish.interval.ms": 200, "broker.interval.ms": 20}
    port = free_port()
    coordination = {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}
    keys = {"num.partitions": 1, "metrics.port": port}
    with broker_thread(tmp_path, coordination, keys, audit={**own, "watermark.interval.ms": 100}) as broker:
        address = broker.advertised[0]
        servers = f"{address.host}:{address.port}"
        config = tmp_path / "klamm.yaml"
        sections = {"producer": {"bootstrap.servers": servers}, "coordination": coordination, "audit": own}
        config.write_text(yaml.safe_dump(sections))

        def gate(*options: str) -> Any:
            return CliRunner().invoke(app, ["audit", "--config", str(config), "--timeout", "6s", *options])

        start = parse_instant("2013-01-01")
        assert CliRunner().invoke(app, ["topics", "create", "trips", "-b", servers]).exit_code == 0
        with Producer(config) as producer:
            for n in range(30):
                producer.send("trips", b"value", timestamp_ms=start + n * 60_000)
        opened = gate("--wait-complete", "trips", "--until", "2013-01-01T01:15+01:00", "--timeout", "2m")
        assert (opened.exit_code, opened.exception) == (0, None)
        assert opened.stdout == (
            "topic trips is complete before 2013-01-01T00:15Z: 2 windows; records: producer 20, broker 20\n"
        )
        assert gate("--wait-complete", "trips", "--until", "2013-01-02", "--threshold", "0.9",
                    "--timeout", "2m").exit_code == 0  # fmt: skip
        late = gate("--wait-complete", "trips", "--until", "2013-01-01", "--tier", "broker", "--since", "2012-01-01",
                    "--timeout", "2m")  # fmt: skip
        assert "0 windows" in late.stdout, "nothing was there, and nothing comes any more"
        lake = gate("--wait-complete", "trips", "--until", "2013-01-02", "--tier", "hadoop/lake")
        assert isinstance(lake.exception, NotCompleteError)
        assert "klamm: tier hadoop/lake has counted nothing; there is no consumer and no load that has" in lake.stderr
        assert "hadoop/lake is unknown (0 of 10 records counted): hadoop/lake: absent" in str(lake.exception)
        future = gate("--wait-complete", "trips", "--until", "2999-01-01")
        assert "on may still arrive (allowed.lateness.ms" in str(future.exception)
        unknown = gate("--wait-complete", "tripss", "--until", "2013-01-02")
        assert str(unknown.exception) == (
            "UNKNOWN_TOPIC_OR_PARTITION: there is no topic 'tripss'; did you mean 'trips'?"
        )
        page = tmp_path / "audit.html"
        said = CliRunner().invoke(app, ["audit", "--config", str(config), "--json", "--html", str(page)])
        [topic] = json.loads(said.stdout)["topics"]
        check_document(page.read_text())
        assert '<h2 id="audit-1-heading">Topic trips</h2>' in page.read_text()
        assert set(topic["latency_s"]) == {"producer", "broker"}
        mark = f'klamm_audit_topicmetrics_completenesswatermark_seconds{{topic="trips"}} {(start + 30 * 60_000) / 1000}'
        deadline = time.monotonic() + 60
        while mark not in scraped(port):
            assert time.monotonic() < deadline, scraped(port)
            time.sleep(0.1)


def scraped(port: int) -> str:
    """The series of the watermark, with their values as plain numbers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if "watermark_seconds{" in line]
    return "\n".join(f"{name} {float(value)}" for name, value in lines)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--wait-complete", "trips"], "--wait-complete: expected --until INSTANT"),
        (["--wait-complete", "trips", "--until", "soon"], "--until: expected a date or time in ISO 8601"),
        (
            ["--wait-complete", "trips", "--until", "2013-01-02", "--since", "2013-01-02"],
            "--since: expected an instant",
        ),
        (["--wait-complete", "trips", "--until", "2013-01-02", "--threshold", "2"], "--threshold: expected a ratio"),
        (["--wait-complete", "trips", "--until", "2013-01-02", "--timeout", "soon"], "--timeout: expected an interval"),
        (
            ["--wait-complete", "trips", "--until", "2013-01-02", "--json"],
            "--json cannot be combined with --wait-complete",
        ),
        (["--wait-complete", "trips", "--until", "2013-01-02", "--topic", "x"], "--topic cannot be combined with"),
        (["--wait-complete", "trips", "--until", "2013-01-02", "--tier", "lake"], "--tier: expected producer, broker"),
        (["--wait-complete", "trips", "--until", "2013-01-02", "--html", "x"], "--html cannot be combined with"),
        (["--wait-complete", "", "--until", "2013-01-02"], "--wait-complete: expected the name of a topic"),
        (["--wait", "nan"], "--wait: expected a number of seconds, got nan"),
        (["--wait", "-1"], "--wait: expected a number of seconds, got -1"),
        (
            ["--tier", "lake"],
            "--tier: expected producer, broker, mirror, consumer, consumer/GROUP, hadoop or hadoop/SINK, got",
        ),
        (["--html", "/nowhere/at/all/x.html"], "--html: there is no directory /nowhere/at/all"),
        (["--html", "/"], "--html: / is a directory"),
        (["--timeout", "10m"], "--timeout applies only with --wait-complete"),
        (["--threshold", "0.9"], "--threshold applies only with --wait-complete"),
    ],
)
def test_wrong_usage_is_one_line(options: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["audit", *options])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith(told)
    assert "\n" not in str(done.exception)
