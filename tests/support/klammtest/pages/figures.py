"""Writes the figures of a run into a page of the docs, between two markers, with the commit and the machine of the run.

An unsuitable page is refused before anything runs (`report_page`), and a page that cannot be written later costs no
result of the run (`report_failure`).
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[4]


class ReportPageError(ValueError):
    """The page is not one into which the target's figures can be written."""


def report_page(target: str) -> Callable[[str], Path]:
    """Returns the argparse type of `--report`: a page that can be written and has the markers of that make target."""

    def parse(text: str) -> Path:
        page = Path(text)
        try:
            _around_markers(page, target)
            if not os.access(page, os.W_OK):
                raise ReportPageError(f"{page} may not be written")
        except (ReportPageError, OSError) as error:
            raise argparse.ArgumentTypeError(f"{_reason(error)}; {_right_pages(target)}") from error
        return page

    return parse


def _right_pages(target: str) -> str:
    begin, _ = _markers(target)
    pages = [page.relative_to(_ROOT) for page in sorted(_ROOT.glob("docs/*.md")) if begin in page.read_text()]
    if not pages:
        return f"a page needs the markers {' and '.join(_markers(target))}"
    return f"right is REPORT={' or REPORT='.join(map(str, pages))}"


def report_failure(write: Callable[[], None]) -> str | None:
    """Writes the report; returns None, or a line that says why it could not be written.

    No error of the report ends the run, whose results would be lost.
    """
    try:
        write()
    except Exception as error:
        return f"the report is not written: {_reason(error)}"
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, ReportPageError) else f"{type(error).__name__}: {error}"


def _markers(target: str) -> tuple[str, str]:
    return f"<!-- figures of `make {target}`: begin -->", f"<!-- figures of `make {target}`: end -->"


def _around_markers(page: Path, target: str) -> tuple[str, str]:
    """Returns the page's text before and after the figures, markers included."""
    try:
        text = page.read_text()
    except UnicodeDecodeError as error:
        raise ReportPageError(f"{page} is not a text in UTF-8") from error
    begin, end = _markers(target)
    before, has_begin, rest = text.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin:
        raise ReportPageError(f"{page} has no line {begin}")
    if not has_end:
        raise ReportPageError(f"{page} has no line {end} behind the one that begins the figures")
    return before + begin, end + after


def write_between_markers(page: Path, target: str, figures: str) -> None:
    """Replaces the text between the page's markers of that make target. Raises `ReportPageError` if it has none."""
    before, after = _around_markers(page, target)
    page.write_text(f"{before}\n{figures}\n{after}")


def figures_in(page: Path, target: str) -> str:
    """Returns the text between the page's markers of that make target. Raises `ReportPageError` if it has none."""
    before, after = _around_markers(page, target)
    text = page.read_text()
    return text[len(before) : len(text) - len(after)]


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
