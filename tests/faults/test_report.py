"""`REPORT=` of the campaigns: an unsuitable page is refused before anything runs, and a report that fails loses no
result.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from klammbench import report as bench_report
from klammbench.load.__main__ import PAGE as LOAD_PAGE

from klammtest.broker import ENVIRONMENT
from klammtest.pages.figures import ReportPageError, report_failure, report_page, write_between_markers
from klammtest.suite.campaigns import run_campaign

BEGIN, END = (f"<!-- figures of `make faults`: {edge} -->" for edge in ("begin", "end"))
FAULTS = Path(__file__).parent
RUN_WITHOUT_CAMPAIGNS = """
import sys
from pathlib import Path

import campaign
from harness import Result

def results(names, options):
    if options.quick:
        options.report.unlink()
    for name in names:
        yield name, Result(injected=1, acknowledged=1, lost=int(name == "bit-flip-log")), 1.0

campaign._results = results
sys.exit(campaign.main())
"""


def parse(text: str, target: str = "faults") -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign")
    parser.add_argument("--report", type=report_page(target))
    return parser.parse_args(["--report", text])


def test_the_figures_replace_what_is_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert parse(str(page)).report == page
    write_between_markers(page, "faults", "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"a page", "has no line <!-- figures of `make faults`: begin -->"),
        (f"{END} {BEGIN}".encode(), "has no line <!-- figures of `make faults`: end --> behind"),
        (b"\xff", "is not a text in UTF-8"),
    ],
)
def test_a_wrong_page_is_refused_in_one_line(
    content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    if content is not None:
        page.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        parse(str(page))
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"campaign: error: argument --report: {page}")
    assert said in error
    assert error.endswith("; right is REPORT=docs/faults.md")


@pytest.mark.parametrize("target", ["faults", "faults-cluster", "faults-load", "faults-mirror", "audit-truth"])
def test_every_target_has_its_page(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    with pytest.raises(SystemExit):
        parse(str(tmp_path), target)
    error = capsys.readouterr().err
    assert "Is a directory" in error
    page = request.config.rootpath / error.strip().rpartition("REPORT=")[2]
    assert parse(str(page), target).report == page


def test_a_page_without_markers_stays_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a page")
    with pytest.raises(ReportPageError):
        write_between_markers(page, "faults", "new")
    assert page.read_text() == "a page"


def test_no_error_of_a_report_ends_the_run() -> None:
    assert report_failure(lambda: None) is None
    failure = report_failure(lambda: {}["x"])
    assert failure == "the report is not written: KeyError: 'x'"


def test_campaigns_refuse_a_wrong_page_before_any_runs(tmp_path: Path) -> None:
    done = run_campaign("segment-cut", "--report", str(tmp_path / "missing.md"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "missing.md: No such file or directory; right is REPORT=docs/faults.md" in done.stderr
    assert "Traceback" not in done.stderr


def run_without_campaigns(page: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with results that no campaign has found; `bit-flip-log` loses a record."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(FAULTS), ENVIRONMENT["PYTHONPATH"]))}
    command = [sys.executable, "-c", RUN_WITHOUT_CAMPAIGNS, *arguments, "--report", str(page)]
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=300, check=False)


def test_a_report_keeps_the_figures_of_campaigns_that_passed_earlier(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    run_without_campaigns(page, "segment-cut", "bit-flip-log")
    (first,) = [line for line in page.read_text().splitlines() if line.startswith("| segment-cut |")]
    run_without_campaigns(page, "disk-full")
    text = page.read_text()
    assert first in text
    assert "| disk-full | 1 |" in text
    assert "1 campaigns were run earlier" in text
    assert "**segment-cut** injects" in text
    assert "| bit-flip-log |" not in text, "it has to be run again"
    assert "bit-flip-log" in next(line for line in text.splitlines() if line.startswith("- **not run**"))


def test_a_page_that_vanishes_costs_no_campaigns_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    done = run_without_campaigns(page, "segment-cut", "disk-full", "--quick")
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("campaign ")] == [
        "segment-cut",
        "disk-full",
    ]
    assert "faults: 2 of 2 campaigns passed" in done.stdout
    assert done.stderr == f"faults: the report is not written: {page}: No such file or directory\n"
    assert done.returncode == 2


@pytest.mark.parametrize("page", [bench_report.BENCHMARKS, LOAD_PAGE], ids=lambda page: page.name)
def test_the_benchmarks_report_is_a_switch(page: bench_report.Page, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    bench_report.add_report_argument(parser, page)
    assert parser.parse_args([]).report is False
    assert parser.parse_args(["--report"]).report is True
    assert parser.parse_args(["--report", "1"]).report is True
    with pytest.raises(SystemExit):
        parser.parse_args(["--report", "page.md"])
    assert f"right is REPORT=1, which writes docs/{page.name}.md" in capsys.readouterr().err
