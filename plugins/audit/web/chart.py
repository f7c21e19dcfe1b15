"""The chart of a topic as numbers: where each bar of the SVG picture stands. The template only writes them down.

A group of bars for each row (time), a bar for each tier, in the order of the pipeline. What is missing stands on top of
its bar. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from klamm.plugins.audit.compare import State, TopicAudit
from klamm.plugins.audit.report import Row
from klamm.plugins.audit.tiling import TierKey

WIDTH: Final = 960
HEIGHT: Final = 280
LEFT, RIGHT, TOP, BOTTOM = 76, 8, 22, 34
LABEL_WIDTH: Final = 8
"""Pixels of a letter of a label, and a little: labels do not overlap."""
MIN_BAR: Final = 3.0
"""Pixels: an unknown or missing count of 0 is seen too."""


@dataclass(frozen=True)
class Bar:
    """`style`: a class of the style sheet; `title`: what a pointer or a screen reader is told."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    text: str
    style: str = ""


@dataclass(frozen=True)
class Chart:
    """`summary` says in words what the picture shows."""

    bars: tuple[Bar, ...]
    warnings: tuple[Mark, ...]
    labels: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    legend: tuple[tuple[str, str], ...]
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def missing_records(row: Row, tier: TierKey) -> int:
    """How many records of those expected the tier has not counted."""
    cells = row.cells(tier)
    return sum(
        round(cell.expected * (1 - cell.ratio))
        for cell in cells
        if cell.state is State.MISSING and cell.ratio is not None
    )


def draw(audit: TopicAudit, rows: Sequence[Row]) -> Chart:
    """A chart of these rows; no bars where there are none."""
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    highest = _nice(max((row.records(t) + missing_records(row, t) for row in rows for t in audit.tiers), default=0))
    group = plot_width / max(len(rows), 1)
    bar = min(group * 0.84 / max(len(audit.tiers), 1), 48.0)
    floor = TOP + plot_height
    bars: list[Bar] = []
    warnings: list[Mark] = []
    labels: list[Mark] = []
    every = math.ceil(max((len(row.label) for row in rows), default=0) * LABEL_WIDTH / group)
    for number, row in enumerate(rows):
        middle = LEFT + group * (number + 0.5)
        begin = middle - bar * len(audit.tiers) / 2
        for place, tier in enumerate(audit.tiers):
            bars += _bars(row, tier, place, (begin + bar * place, floor, bar), plot_height / highest)
        state = row.state()
        if state not in (State.COMPLETE, State.SETTLED):
            warnings.append(Mark(_px(middle), TOP - 8, _SIGNS[state], f"sign {state}"))
        if number % every == 0:
            labels.append(Mark(_px(middle), floor + 18, row.label))
    ticks = tuple(Mark(LEFT - 6, _px(floor - plot_height * part / 4), f"{highest * part // 4:,}") for part in range(5))
    legend = tuple((f"t{place % 6}", str(tier)) for place, tier in enumerate(audit.tiers))
    return Chart(tuple(bars), tuple(warnings), tuple(labels), ticks, legend, _summary(audit, rows))


_SIGNS = {State.MISSING: "▼", State.DUPLICATED: "▲", State.UNKNOWN: "?"}


def _bars(row: Row, tier: TierKey, place: int, at: tuple[float, float, float], scale: float) -> list[Bar]:
    x, floor, width = at
    records, missing, state = row.records(tier), missing_records(row, tier), row.state(tier)
    height = records * scale
    said = f"{row.label}, {tier}: {records:,} records, {state}"
    style = f"t{place % 6}"
    found = [Bar(_px(x), _px(floor - height), _px(width * 0.92), _px(height), style, said)]
    if missing:
        gap = max(missing * scale, MIN_BAR)
        found.append(Bar(_px(x), _px(floor - height - gap), _px(width * 0.92), _px(gap), "gap", f"{said}: {missing:,}"))
    if state in (State.UNKNOWN, State.DUPLICATED):
        tall = max(height, MIN_BAR)
        found.append(Bar(_px(x), _px(floor - tall), _px(width * 0.92), _px(tall), f"over {state}", said))
    return found


def _summary(audit: TopicAudit, rows: Sequence[Row]) -> str:
    if not rows:
        return f"Nothing has been counted for topic {audit.topic}."
    bad = [f"{row.label} is {row.state()}" for row in rows if row.state() not in (State.COMPLETE, State.SETTLED)]
    said = "; ".join(bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
    times = f"{len(rows)} rows from {rows[0].label} to {rows[-1].label}"
    return f"Records of each tier, {times}. {said or 'All are complete'}."


def _nice(value: int) -> int:
    """The next round number that four ticks divide."""
    if value <= 4:
        return 4
    step: int = 10 ** math.floor(math.log10(value / 4))
    return next(4 * step * n for n in (1, 2, 3, 5, 10, 20) if 4 * step * n >= value)


def _px(value: float) -> float:
    return round(value, 1)
