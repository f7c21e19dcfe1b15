"""Writes the figures of a run, and the wanted differences, into a page of the docs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klammtest.pages.figures import commit, figures_in, machine, write_between_markers

from .rules import RULES

if TYPE_CHECKING:
    from .score import Score

TARGET: Final = "avro-judge"
_HEAD: Final = ("| wanted difference | cases | Klamm and Java |", "|---|---:|---|")


def write_figures(page: Path, score: Score, seed: int, seconds: float) -> None:
    write_between_markers(page, TARGET, "\n".join(_figures(score, seed, seconds)))


def _figures(score: Score, seed: int, seconds: float) -> Iterator[str]:
    yield f"{datetime.now(UTC):%Y-%m-%d}{commit()}, seed {seed}, on {machine()}, {seconds / 60:.0f} minutes:"
    yield f"{score.summary()}."
    yield ""
    yield "| | cases or checks |"
    yield "|---|---|"
    for title, found in score.coverage():
        yield f"| {title} | {', '.join(f'{name} {count:,}' for name, count in found)} |"
    yield ""
    yield from _HEAD
    for name, text in RULES.items():
        yield f"| {name} | {score.rules[name]:,} | {text} |"


def rules_in(page: Path) -> dict[str, str]:
    """Returns the wanted differences of the page."""
    _, _, rows = figures_in(page, TARGET).partition("\n".join(_HEAD) + "\n")
    found = {}
    for row in rows.strip().splitlines():
        name, _, text = (cell.strip() for cell in row.strip("|").split(" | "))
        found[name] = text
    return found
