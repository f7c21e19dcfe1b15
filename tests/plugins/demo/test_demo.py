"""The demo itself, on a few flights: what it finds, and that nothing is left running."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from klamm.plugins.demo.steps.hdfs import LakeFileSystem
from klammtest.hadoop.hdfs import NO_HDFS
from klammtest.pages.audit_page import check_document

LAST_LINE = "demo: produced=480 consumed=479 mirrored=479 loaded=479 missing=1 duplicated=0 complete=0."


def demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "klamm", "demo", "--dir", str(folder), "--flights", "40", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def check_report(text: str) -> None:
    check_document(text)
    plain = html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))
    for words in (
        "Planted: the brokers lose 2013-1-1/UA/1545/EWR", "kill : member-0 is killed with -9",
        "kill : broker ",
        "is back: all replicas are in sync", "3 live brokers and the mirror hold the same bytes",
        "kill : a load is killed with -9 between staging and publishing: 1 staged, nothing published",
        "rebalance : member-", "load 1 is published", "Records of topic flights by day", "1 missing",
    ):  # fmt: skip
        assert words in plain, words


def left_running(folder: Path) -> list[str]:
    """Processes that name the folder on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.timeout(1800)
def test_a_lost_flight_shows_in_the_last_line_and_the_exit_status(tmp_path: Path) -> None:
    lake = LakeFileSystem.FILE if os.environ.get(NO_HDFS) == "1" else LakeFileSystem.HDFS
    process = demo(tmp_path, "--plant", "lost", "--lake", lake)
    output, _ = process.communicate(timeout=1700)
    lines = output.splitlines()
    assert process.returncode == 1, output
    assert lines[-1].startswith(LAST_LINE), output
    assert lines[-3].startswith(
        "the lake is left in hdfs://" if lake is LakeFileSystem.HDFS else "the lake is left in /"
    ), output
    report = Path(lines[-2].removeprefix("the report, for a browser: "))
    check_report(report.read_text())
    assert any("missing" in line and "2013-01" in line for line in lines)
    assert len([line for line in lines if "is published: " in line]) >= 3
    assert left_running(tmp_path) == []


@pytest.mark.timeout(600)
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    process = demo(tmp_path, "--lake", "file")
    assert process.stdout is not None
    for line in process.stdout:
        if "producers send" in line:
            break
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=400)
    assert process.returncode == 130
    assert left_running(tmp_path) == []
