"""Writes the figures of a run into a page of the docs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from klammtest.audit_truth.score import Score
from klammtest.pages.figures import commit, machine, write_between_markers

TARGET = "audit-truth"


def write_figures(page: Path, scores: Sequence[Score], seed: int) -> None:
    write_between_markers(page, TARGET, figures(scores, seed))


def figures(scores: Sequence[Score], seed: int) -> str:
    lines = [f"{datetime.now(UTC):%Y-%m-%d}{commit()}, seed {seed}, on {machine()}.", ""]
    lines += ["| kind | runs | found | missed | false alarms | s | what |", "|---|---:|---:|---:|---:|---:|---|"]
    for score in scores:
        found = score.found if score.kind.plants else ""
        cells = (score.kind.name, score.runs, found, score.missed, score.alarms, f"{score.seconds:.0f}", score.what())
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, *(f"- {text}" for score in scores for text in score.wrong[:3])])
