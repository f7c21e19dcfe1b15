"""`klamm audit --html`: one file that needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path

import pytest

from klamm.core.errors import ConfigError
from klamm.plugins.audit.web.document import audit_document, document, write_document
from klamm.plugins.audit.web.views import Filters
from klamm.plugins.audit.windows import Span
from klammtest.audits import event
from klammtest.pages.audit_page import (
    BROWSER,
    NO_BROWSER,
    HandMade,
    check_document,
    chromium,
    day_of_flights,
    hand_made,
    look,
)


def written(hand: HandMade | None = None, **filters: object) -> str:
    return audit_document((hand or hand_made()).answer(), Filters(**filters))  # type: ignore[arg-type]


def test_the_report_is_whole_escaped_and_fit_for_a_screen_reader() -> None:
    text = written()
    check_document(text)
    assert "<b>till" not in text
    assert "a/b <i>" not in text


def test_it_has_every_page_and_the_contents_lead_to_each() -> None:
    text = written(day_of_flights())
    check_document(text)
    names = re.findall(r'<li><a href="#audit-\d+">(.*?)</a></li>', text)
    assert names == [
        "All topics", "Topic flights", "Producers of flights", "broker on flights", "consumer/billing on flights",
        "hadoop/lake on flights", "Topic trips", "Producers of trips", "broker on trips", "hadoop/lake on trips",
    ]  # fmt: skip
    assert text.count('role="img"') == 2, "a chart for each topic"


def test_an_application_leads_to_its_producers() -> None:
    text = html.unescape(written())
    [link] = re.findall(r'<a href="(#audit-\d+-application-\d+)">shop</a>', text)
    assert f'id="{link[1:]}"' in text
    assert "Producers of shop on web-1, the newest first" in text


def test_what_is_missing_is_said_in_words_and_seen_in_the_chart() -> None:
    text = written()
    assert "1 missing" in text
    assert "1970-01-01 00:10 is missing" in text
    assert text.count('class="gap"') == 2, "one bar and its key"
    assert 'class="sign missing"' in text


def test_filters_of_time_and_span_are_those_of_the_command() -> None:
    text = written(by=Span.DAY)
    assert "by day of record time" in text
    narrow = written(since_ms=600_000, until_ms=1_200_000)
    assert "1970-01-01 00:10" in narrow
    assert "1970-01-01 00:20" not in narrow


def test_a_year_of_days_is_drawn_as_a_strip_for_each_tier() -> None:
    days = {144 * day: 100 for day in range(365)}
    lake = {**days, 144 * 200: 99}
    events = [
        event("producer", "p", 0, 1, days),
        event("broker", "b", 0, 36_500, days, sources={"p": days}),
        event("hadoop", "lake", 0, 36_500, lake),
    ]
    text = written(hand_made(events, log_end=36_500), by=Span.DAY)
    check_document(text)
    assert text.count('class="name"') == 3
    assert text.count('class="gap thin"') == 1, "the one day that lacks a record"
    assert "1970-07-20 is missing" in text


def test_nothing_counted_is_said() -> None:
    text = written(HandMade([], {}))
    check_document(text)
    assert "Nothing has been counted yet" in text


def test_the_policy_forbids_all_but_the_style_of_the_file() -> None:
    text = written()
    [policy] = re.findall(r'Content-Security-Policy" content="(.*?)"', html.unescape(text))
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in policy


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    write_document(tmp_path / "audit.html", document("Empty", [], 0))
    assert [each.name for each in tmp_path.iterdir()] == ["audit.html"]
    with pytest.raises(ConfigError, match="cannot write"):
        write_document(tmp_path / "nowhere" / "audit.html", "")


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_a_browser_opens_the_file_and_a_keyboard_reaches_all_of_it(tmp_path: Path) -> None:
    found = look(written(), tmp_path)
    assert found["requests"] == []
    assert found["unreachable"] == found["trapped"] == []
    assert found["skip"] >= 0, "the link past the contents is seen once it is reached"
    assert found["outline"] == "solid"
    assert len(found["gaps"]) == 1
    red, green, blue = map(int, re.findall(r"\d+", found["gaps"][0]))
    assert red > 2 * max(green, blue), "a gap is red, which needs the style that the policy names"
    assert "missing" in found["words"], "and it is said"


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_the_policy_of_the_file_lets_its_own_style_through(tmp_path: Path) -> None:
    text = written()
    pictures = {"styled": text, "plain": re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)}
    for name, page in pictures.items():
        (tmp_path / f"{name}.html").write_text(page)
        url = f"file://{tmp_path}/{name}.html"
        chromium(url, "--window-size=1100,1000", f"--screenshot={name}.png", folder=tmp_path)
    assert (tmp_path / "styled.png").read_bytes() != (tmp_path / "plain.png").read_bytes()
