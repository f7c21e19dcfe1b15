"""The pages and the REST endpoint, on hand-made events: every view, every error; and one page in a real browser."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")
from klamm.core.errors import KlammError
from klamm.core.records.partition import TopicPartition
from klamm.plugins.audit.config import AuditConfig
from klamm.plugins.audit.query import Answer, AuditQuery
from klamm.plugins.audit.web import source as source_module
from klamm.plugins.audit.web.app import make_app
from klamm.plugins.audit.web.axis import nice, ticks
from klamm.plugins.audit.web.source import ClusterSource
from klammtest.audits import event
from klammtest.pages.audit_page import (
    BROWSER,
    GROUP,
    NO_BROWSER,
    NOW,
    HandMade,
    Page,
    chromium,
    hand_made,
    pipeline,
    served,
)


class Got:
    def __init__(self, status: int, headers: dict[str, str], text: str) -> None:
        self.status, self.headers, self.text = status, headers, text

    def json(self) -> Any:
        return json.loads(self.text)


def get(hand: HandMade, target: str, **headers: str) -> Got:
    """One request to the application, without a network."""
    path, _, query = target.partition("?")
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(),
        "query_string": query.encode(), "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("t", 80),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        asyncio.run(make_app(hand)(scope, receive, send))
    except RuntimeError:  # told the client, and raised for the server's log
        assert sent
    said = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Got(sent[0]["status"], said, b"".join(each.get("body", b"") for each in sent[1:]).decode())


TIER = f"/topics/flights/tiers/consumer%2F{quote(GROUP, safe='')}"
PAGES = ["/", "/topics/flights", "/topics/flights/producers", "/topics/flights/producers?host=web-1&application=shop",
         TIER, "/topics/flights/tiers/hadoop%2Flake", "/topics/flights/tiers/broker"]  # fmt: skip
BACKWARDS = "since=2013-01-02&until=2013-01-01T12:00"


@pytest.mark.parametrize("clock_ms", [10**15, 2**62])
def test_a_clock_beyond_the_calendar_breaks_no_page(clock_ms: int) -> None:
    """As of a producer or a broker whose clock counts microseconds."""
    told = [replace(each, time_ms=clock_ms, stored_ms=clock_ms) for each in pipeline()]
    assert [get(hand_made(told), target).status for target in PAGES] == [200] * len(PAGES)


@pytest.mark.parametrize("target", PAGES)
def test_every_page_is_complete_escaped_and_fit_for_a_screen_reader(target: str) -> None:
    got = get(hand_made(), target)
    assert (got.status, got.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<b>till" not in got.text
    assert "a/b <i>" not in got.text
    assert "://" not in got.text, "a page names nothing outside of its server"
    page = Page(got.text)
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(cell.get("scope") in ("col", "row") for cell in page.all("th"))
    assert all("style" not in attributes for _, attributes in page.tags), "the content security policy forbids it"
    assert all(region.get("tabindex") == "0" for region in page.all("div") if region.get("role") == "region")


@pytest.mark.parametrize("target", PAGES)
def test_every_link_of_a_page_leads_somewhere(target: str) -> None:
    hand = hand_made()
    links = {link["href"] for link in Page(get(hand, target).text).all("a")}
    for link in links:
        assert link is not None
        assert link.startswith("#") or get(hand, link).status == 200, link


def test_the_overview_has_completeness_and_lag_of_each_topic() -> None:
    [topic] = get(hand_made(), "/api/topics").json()["topics"]
    assert (topic["topic"], topic["state"], topic["lowest"]) == ("flights", "missing", "0.9000 missing")
    assert topic["lag"] == {"broker": 5, f"consumer/{GROUP}": 5, "hadoop/lake": 5}
    text = get(hand_made(pipeline(), unreadable=("<x>",)), "/").text
    assert "Unreadable: &lt;x&gt;" in text
    assert "hadoop/lake: 5" in text


def test_a_topic_shows_its_tiers_side_by_side_and_what_is_missing_in_words_and_in_the_picture() -> None:
    text = get(hand_made(), "/topics/flights").text
    for tier in ("acknowledged", "broker", "consumer/a/b &lt;i&gt;", "hadoop/lake"):
        assert tier in text
    assert "1 missing" in text
    assert text.count('class="gap"') == 2, "one bar and its key"
    [chart] = [each for each in Page(text).all("svg") if each.get("role") == "img"]
    assert chart["aria-labelledby"] == "chart-title chart-desc"
    assert "1970-01-01 00:10 is missing" in text


def test_the_ticks_of_a_picture_divide_a_round_number() -> None:
    found = ticks(200, 80, nice(1230), 4)
    assert [(tick.y, tick.text) for tick in found] == [
        (200, "0"),
        (180, "500"),
        (160, "1,000"),
        (140, "1,500"),
        (120, "2,000"),
    ]
    assert [nice(value) for value in (0, 4, 5, 41, 1201, 10**9 + 1)] == [4, 4, 8, 80, 2000, 1_200_000_000]


def test_a_topic_that_is_complete_has_no_gap() -> None:
    text = get(hand_made(pipeline({0: 10, 1: 10, 2: 1}), log_end=30), "/topics/flights").text
    assert text.count('class="gap"') == 1
    assert "All are complete" in text
    assert 'class="problem"' not in text


def test_unknown_counts_are_hatched_and_problems_are_listed() -> None:
    broken = [each for each in pipeline() if each.to_offset != 20]
    text = get(hand_made(broken), "/topics/flights").text
    assert '<strong>gap</strong> at <a href="/topics/flights/tiers/hadoop%2Flake">' in text
    assert text.count("over unknown") > 1


def test_filters_of_time_tier_and_span() -> None:
    hand = hand_made()
    said = get(hand, "/api/topics/flights?since=1970-01-01T00:10&until=1970-01-01T00:20&tier=hadoop/lake").json()
    assert (said["tiers"], [row["label"] for row in said["rows"]]) == (["hadoop/lake"], ["1970-01-01 00:10"])
    assert said["rows"][0]["tiers"]["hadoop/lake"] == {"records": 9, "bytes": 90, "state": "missing", "missing": 1}
    by_day = get(hand, "/api/topics/flights?by=day").json()
    assert [(row["label"], row["completeness"]) for row in by_day["rows"]] == [("1970-01-01", "0.9000 missing")]


def test_many_windows_are_grouped_and_a_long_table_is_cut() -> None:
    windows = dict.fromkeys(range(1200), 1)
    events = [event("producer", "p", 0, 1, windows), event("broker", "b", 0, 1200, windows)]
    hand = hand_made(events, log_end=1200)
    assert get(hand, "/api/topics/flights").json()["by"] == "day"
    cut = get(hand, "/topics/flights?by=window").text
    assert "The newest 500 of 1200 rows are listed" in cut
    assert "The newest 500 rows are drawn" in cut
    assert cut.count('class="name"') == 2, "a strip for each tier"
    assert len(get(hand, "/api/topics/flights?by=window").json()["rows"]) == 1200


def test_producers_by_host_and_application_with_what_is_stored_of_each() -> None:
    events = pipeline()
    events[2] = event("broker", "b", 0, 30, {}, sources={"p1": {0: 4, 1: 5, 2: 5}, "p2": {0: 6, 1: 4, 2: 5}})
    hand = hand_made(events)
    said = get(hand, "/api/topics/flights/producers").json()
    rows = {row["application"]: row for row in said["applications"]}
    assert (rows["shop"]["acknowledged"], rows["shop"]["stored"], rows["shop"]["missing"]) == (15, 14, 1)
    assert (rows["shop"]["state"], rows["<b>till</b>"]["state"]) == ("missing", "complete")
    one = get(hand, "/api/topics/flights/producers?host=web-1&application=shop&since=1970-01-01T00:20").json()
    assert [(p["producer"], p["status"], p["stored"]) for p in one["producers"]] == [("p1", "closed", 5)]


def test_a_killed_and_a_live_producer_are_told_apart() -> None:
    events = pipeline()
    events[0] = event("producer", "p1", 0, 1, {0: 4}, final=False, time_ms=0)
    events[1] = event("producer", "p2", 0, 1, {0: 6}, final=False, time_ms=NOW)
    said = get(hand_made(events), "/api/topics/flights/producers?application=tests").json()
    assert {p["producer"]: p["status"] for p in said["producers"]} == {"p1": "killed", "p2": "live"}


def test_a_load_job_shows_its_ranges_and_its_partitions() -> None:
    said = get(hand_made(), "/api/topics/flights/tiers/hadoop%2Flake").json()
    assert (said["what"], said["lag"], said["state"]) == ("load job", 5, "missing")
    assert [(r["from"], r["to"], r["records"], r["load"]) for r in said["ranges"]] == [
        (20, 30, 9, 2),
        (0, 20, 20, None),
    ]
    text = get(hand_made(), "/topics/flights/tiers/hadoop%2Flake").text
    assert '<td class="n">2</td><td>' in text
    assert '<td class="n">not told</td>' in text
    assert '<th scope="col" class="n">Load</th>' not in get(hand_made(), TIER).text
    assert [(p["partition"], p["to"], p["log_end"], p["lag"]) for p in said["partitions"]] == [(0, 30, 35, 5)]
    assert [(r["records"], r["expected"]) for r in said["rows"]] == [(10, 10), (9, 10), (10, 10)]


def test_a_log_that_no_broker_serves_has_an_unknown_lag() -> None:
    said = get(hand_made(pipeline(), log_end=-1), "/api/topics").json()
    assert set(said["topics"][0]["lag"].values()) == {None}


def test_nothing_counted_is_said() -> None:
    hand = hand_made([])
    assert get(hand, "/api/topics/flights").json()["rows"] == []
    assert "Nothing has been counted" in get(hand, "/topics/flights").text


@pytest.mark.parametrize(
    ("target", "status", "said"),
    [
        ("/topics/flihgts", 404, "there is no topic 'flihgts'; did you mean 'flights'?"),
        ("/topics/flights/tiers/hadoop/lak", 404, "has no tier 'hadoop/lak'; did you mean 'hadoop/lake'?"),
        ("/topics/flights?tier=hadoop/lak", 404, "did you mean 'hadoop/lake'?"),
        ("/topics/flights/producers?host=nobody", 404, "no producers on host 'nobody'"),
        ("/nothing", 404, "there is no page"),
        ("/topics/flights?by=year", 400, "by: expected month, day, hour or window, got 'year'"),
        ("/topics/flights?since=soon", 400, "since: expected a date or time in ISO 8601, got 'soon'"),
        (f"/topics/flights?{BACKWARDS}", 400, "since: expected an instant before until, got '2013-01-02'"),
        (f"/topics/flights/producers?{BACKWARDS}", 400, "since: expected an instant before until, got '2013-01-02'"),
        (f"{TIER}?{BACKWARDS}", 400, "since: expected an instant before until, got '2013-01-02'"),
        (
            "/topics/flights?since=1970-01-01&until=1970-01-01",
            400,
            "since: expected an instant before until, got '1970",
        ),
    ],
)
def test_what_is_wrong_is_one_line_on_the_page_and_in_json(target: str, status: int, said: str) -> None:
    page, api = get(hand_made(), target), get(hand_made(), f"/api{target}")
    assert (page.status, api.status) == (status, status)
    assert said in html.unescape(page.text)
    assert said in api.json()["error"]


def test_names_from_events_are_escaped_on_pages_and_in_json() -> None:
    forged = "lag\n\x1b[2K\u202e<b>\ud800"
    hand = hand_made([event("broker", "b", 0, 10, {0: 10}), event("consumer", forged, 0, 9, {0: 9})])
    for target in ("/", "/topics/flights"):
        page = get(hand, target)
        assert page.status == 200
        assert r"consumer/lag\n\x1b[2K\u202e&lt;b&gt;\ud800" in page.text
        assert all(line.isprintable() for line in page.text.split("\n"))
        api = get(hand, f"/api{target.rstrip('/') or '/topics'}")
        assert api.text.isascii()
        assert json.dumps(f"consumer/{forged}").strip('"') in api.text


def test_a_cluster_that_cannot_be_asked_is_503_and_the_server_lives_on() -> None:
    hand = hand_made()
    hand.error = KlammError("no broker at <127.0.0.1:1>\nanswers")
    page = get(hand, "/")
    assert page.status == 503
    assert r"no broker at &lt;127.0.0.1:1&gt;\nanswers" in page.text
    assert get(hand, "/api/topics").json() == {"error": r"no broker at <127.0.0.1:1>\nanswers"}
    hand.error = None
    assert get(hand, "/").status == 200


def test_a_fault_of_the_server_is_one_line_without_a_traceback() -> None:
    hand = hand_made()
    hand.error = RuntimeError("a secret")
    page = get(hand, "/")
    assert page.status == 500
    assert "the server failed: RuntimeError" in page.text
    assert "a secret" not in page.text


@pytest.mark.parametrize("target", ["/topics/flights", "/api/topics", "/page.css"])
def test_what_has_not_changed_is_not_sent_again(target: str) -> None:
    hand = hand_made()
    first = get(hand, target)
    assert first.headers["cache-control"] == "no-cache"
    hand.now_ms += 1000
    again = get(hand, target, if_none_match=first.headers["etag"])
    assert (again.status, again.text) == (304, "")
    if target != "/page.css":
        hand.events = pipeline({0: 10, 1: 10, 2: 1})
        assert get(hand, target, if_none_match=first.headers["etag"]).status == 200


def test_a_page_updates_by_itself_unless_it_is_told_not_to() -> None:
    hand = hand_made()
    plain, on, off = (get(hand, f"/topics/flights{query}").text for query in ("", "?live=on", "?live=off"))
    assert ["live.js" in text for text in (plain, on, off)] == [True, True, False]
    assert ['http-equiv="refresh"' in text for text in (plain, on, off)] == [False, True, False]
    assert get(hand, "/live.js").status == 200


# -- the source


class Asked:
    """In place of `query.ask`."""

    def __init__(self) -> None:
        self.readers: list[Any] = []
        self.error: KlammError | None = None

    def __call__(self, client: Any, config: Any, query: Any, reader: Any) -> Answer:
        self.readers.append(reader)
        if self.error is not None:
            raise self.error
        return Answer((), ())


class FakeClient:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    stub = Asked()
    monkeypatch.setattr(source_module, "ask", stub)
    return stub


def make_source(client: FakeClient, clock: Callable[[], float], **more: Any) -> ClusterSource:
    return ClusterSource(lambda: client, AuditConfig(), AuditQuery(**more), max_events=2, monotonic=clock)  # type: ignore[arg-type, return-value]


def test_an_answer_serves_many_requests_and_one_reader_goes_on(asked: Asked) -> None:
    now = [0.0]
    client = FakeClient()
    source = make_source(client, lambda: now[0])
    assert source.answer() is source.answer()
    now[0] = 1.0
    source.answer()
    assert len(asked.readers) == 2
    assert asked.readers[0] is asked.readers[1]
    source.close()
    assert client.closed


def test_after_a_failure_the_topic_is_read_from_its_beginning(asked: Asked) -> None:
    now = [0.0]
    source = make_source(FakeClient(), lambda: now[0])
    source.answer()
    now[0], asked.error = 1.0, KlammError("away")
    for _ in range(2):
        with pytest.raises(KlammError, match="away"):
            source.answer()
    assert len(asked.readers) == 2, "those who wait get the same failure"
    now[0], asked.error = 2.0, None
    source.answer()
    assert asked.readers[2] is not asked.readers[0]


def test_the_reader_keeps_the_events_of_the_topics_that_are_asked_for(asked: Asked) -> None:
    source = make_source(FakeClient(), lambda: 0.0, topics=("flights",))
    source.answer()
    contents = asked.readers[0]._kept["__klamm_audit"]
    kept = []
    for topic in ("flights", "trips", "flights"):
        key, value = event("broker", "b", 0, 1, {}, topic=topic).encode()
        contents.apply(TopicPartition("__klamm_audit", 0), 0, 0, key, value)
        kept.append(len(contents.events))
    assert kept == [1, 1, 2]
    with pytest.raises(KlammError, match="more than 2 events"):
        contents.apply(TopicPartition("__klamm_audit", 0), 1, 0, key, value)


# -- the server


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_without_a_cluster_says_so_and_stops_in_order(tmp_path: Path, signal_number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    config = tmp_path / "klamm.yaml"
    config.write_text(f"producer: {{bootstrap.servers: '127.0.0.1:{nobody}'}}\naudit: {{plugin: klamm}}\n")
    command = [str(Path(sys.executable).parent / "klamm"), "audit", "serve", "--config", str(config), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            [url] = re.findall(r"ready on (http://127\.0\.0\.1:\d+/)", process.stdout.readline())
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url, timeout=120)
            with refused.value as answer:
                assert answer.status == 503
                assert str(nobody) in answer.read().decode()
        finally:
            process.send_signal(signal_number)
            _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_a_browser_without_a_network_shows_the_tiers_and_takes_a_picture(tmp_path: Path) -> None:
    with served(hand_made()) as url:
        shown = chromium(f"{url}/topics/flights", "--dump-dom", "--virtual-time-budget=5000", folder=tmp_path)
        chromium(f"{url}/topics/flights?live=off", "--window-size=1100,1000", "--screenshot=page.png", folder=tmp_path)
    for tier in ("acknowledged", "broker", "consumer/a/b", "hadoop/lake"):
        assert tier in shown
    assert "Updating" in shown, "the script ran, and found the page again"
    assert (tmp_path / "page.png").stat().st_size > 10_000
