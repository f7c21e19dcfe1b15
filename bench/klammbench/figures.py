"""Writes the figures of a benchmark into the page of what it measures, between two marks."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from klammbench.paths import ROOT

_END = "<!-- end of the figures -->\n"


def write_figures(page: Path, only: str, lines: Sequence[str]) -> None:
    """Replaces the figures of `make bench ONLY=only` in the page; they stand between its marks."""
    begin = f"<!-- figures: make bench ONLY={only} REPORT=1 -->\n"
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    about = (
        f"`make bench ONLY={only}`, {datetime.now(UTC):%Y-%m-%d}, commit {commit}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}:"
    )
    text = page.read_text(encoding="utf-8")
    before, mark, rest = text.partition(begin)
    assert mark, f"{page} has no line {begin!r}"
    body = "\n".join([about, "", "```", *lines, "```", ""])
    page.write_text(f"{before}{begin}\n{body}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")
