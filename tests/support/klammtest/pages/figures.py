"""Figures of a run in a page of the docs, between two markers, with the commit and the machine that they are of."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path


def write_between_markers(page: Path, target: str, figures: str) -> None:
    """Replaces the text between the page's markers of that make target."""
    begin, end = (f"<!-- figures of `make {target}`: {edge} -->" for edge in ("begin", "end"))
    text = page.read_text()
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{figures}\n{end}{after}")


@cache
def commit() -> str:
    """Returns the work tree's commit before a report is written into it; empty if it is not a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        found = ""
    return f", commit {found}" if found else ""


def machine() -> str:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return (
        f"{os.cpu_count()} cores of {cpu}, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    )
