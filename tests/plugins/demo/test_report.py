"""The report of a run: its numbers, its picture, and that a browser shows it whole."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from klamm.core.errors import ConfigError
from klamm.plugins.demo.report.picture import draw, rates
from klamm.plugins.demo.report.timeline import MarkKind, Phase, Sample, Timeline, TimelineMark
from klammtest.pages.audit_page import BROWSER, NO_BROWSER, check_document, look
from klammtest.pages.demo_report import report_of_a_run


def test_a_clock_of_another_process_is_put_on_the_runs_own() -> None:
    now = [100.0]
    timeline = Timeline(lambda: now[0] - 100.0, wall_s=lambda: 5_000.0)
    now[0] = 107.0
    timeline.mark(MarkKind.KILL, "member-0 is killed")
    timeline.mark(MarkKind.REBALANCE, "member-1 takes over", 5_003.5)
    assert [(mark.at_s, mark.kind) for mark in timeline.marks] == [(3.5, MarkKind.REBALANCE), (7.0, MarkKind.KILL)]
    with timeline.phase("audit"):
        now[0] = 109.0
    timeline.add_phase("load 1", 1.0, 2.5)
    assert [(each.name, each.seconds) for each in timeline.phases] == [("load 1", 1.5), ("audit", 2.0)]


def test_rates_are_of_whole_seconds_and_lose_nothing() -> None:
    samples = [Sample(0.2 * n, 10 * n, 5 * n, 0) for n in range(1, 51)]
    step_s, found = rates(samples, 10.0)
    assert (step_s, len(found)) == (1.0, 10)
    assert sum(rate.produced for rate in found) == 500
    assert sum(rate.consumed for rate in found) == 250
    step_s, found = rates(samples, 400.0)
    assert (step_s, len(found)) == (3.0, 134), "a long run has longer intervals"


def test_an_empty_run_is_drawn() -> None:
    picture = draw([], [], [], 0.4)
    assert [line.name for line in picture.lines] == ["produced", "consumed"]
    assert picture.summary.startswith("Records per second")


def test_marks_that_are_near_one_another_do_not_hide_each_other() -> None:
    marks = [TimelineMark(at, MarkKind.LOAD, "load") for at in (10.0, 10.1, 10.2, 50.0)]
    flags = draw([], marks, [Phase("audit", 48.0, 99.0)], 100.0).flags
    assert len({(flag.x, flag.y) for flag in flags}) == 4
    assert len({flag.y for flag in flags[:3]}) == 3
    assert [flag.number for flag in flags] == [1, 2, 3, 4]


def test_the_report_says_what_happened_in_words_and_numbers() -> None:
    text = report_of_a_run().html()
    check_document(text)
    plain = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))
    for words in (
        "kill : member-0 is killed with -9", "kill : broker 0 is killed with -9",
        "rebalance : member-1 takes over partitions 0, 1", "hold the same bytes",
        "kill : a load is killed with -9 between staging and publishing", "load 2 is published: 2,500 rows in 31 files",
        "Produced per second", "Offsets by partition, from and up to", "0: 1,000 to 2,250; 1: 1,000 to 2,250",
        "hdfs://127.0.0.1:20003/lake", "Records of topic flights by day of record time (UTC) and tier", "1 missing",
    ):  # fmt: skip
        assert words in plain, words
    assert text.count('class="flag kill"') == 4


def test_what_was_planted_is_said() -> None:
    assert "Planted: the brokers lose 2013-1-1/UA/1545/EWR." in report_of_a_run().html()


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        report_of_a_run().write(tmp_path / "none" / "report.html")


@pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)
def test_a_browser_shows_the_report_and_a_keyboard_reaches_all_of_it(tmp_path: Path) -> None:
    found = look(report_of_a_run().html(), tmp_path)
    assert found["requests"] == []
    assert found["unreachable"] == found["trapped"] == []
    assert found["skip"] >= 0
    assert len(found["gaps"]) == 1
    assert {"not complete", "1", "missing"} <= set(found["words"])
