"""The chart of a topic as numbers: the position of each bar of the SVG picture. The template only prints them.

A group of bars for each row (time), a bar for each tier, in the order of the pipeline; for many rows, a strip for each
tier, one below the other. Missing records are drawn on top of their bar. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..comparison.compare import TopicAudit
from ..comparison.report import Row
from ..comparison.tiers import State, TierKey
from .axis import LEFT, WIDTH, Label, below, nice, px, ticks

HEIGHT: Final = 280
RIGHT, TOP, BOTTOM = 8, 22, 34
LABEL_WIDTH: Final = 8
"""Pixels of a letter of a label, with a margin, so that labels do not overlap."""
MIN_BAR: Final = 3.0
"""The smallest height of a bar in pixels, so that an unknown or missing count of 0 is visible too."""
MANY: Final = 60
"""The number of rows above which the bars of a group are too thin to be distinguished."""
STRIP: Final = 70
NAME: Final = 20
"""The height of a strip in pixels, and the part of it for the strip's name."""


@dataclass(frozen=True)
class Bar:
    """`style`: a class of the style sheet; `title`: the text for a pointer or a screen reader."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str


@dataclass(frozen=True)
class Chart:
    """`summary` describes the picture in words."""

    bars: tuple[Bar, ...]
    warnings: tuple[Label, ...]
    labels: tuple[Label, ...]
    ticks: tuple[Label, ...]
    legend: tuple[tuple[str, str], ...]
    summary: str
    names: tuple[Label, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


def missing_records(row: Row, tier: TierKey) -> int:
    """Returns the number of expected records that the tier has not counted."""
    return sum(cell.short for cell in row.cells(tier) if cell.state is State.MISSING)


def draw(audit: TopicAudit, rows: Sequence[Row]) -> Chart:
    """Returns a chart of these rows; without rows it has no bars."""
    if len(rows) > MANY:
        return _strips(audit, rows)
    highest = _highest(audit, rows)
    floor = HEIGHT - BOTTOM
    plot = _Plot(len(rows), floor)
    bar = min(plot.group * 0.84 / max(len(audit.tiers), 1), 48.0)
    bars: list[Bar] = []
    for number, row in enumerate(rows):
        begin = plot.middle(number) - bar * len(audit.tiers) / 2
        for place, tier in enumerate(audit.tiers):
            bars += _bars(row, tier, place, (begin + bar * place, floor, bar), (floor - TOP) / highest)
    return _chart(audit, rows, plot, bars, ticks(floor, floor - TOP, highest, 4))


def _strips(audit: TopicAudit, rows: Sequence[Row]) -> Chart:
    """Draws the strips in one scale, so that the tiers can be compared."""
    highest = _highest(audit, rows)
    height = TOP + STRIP * len(audit.tiers) + BOTTOM
    plot = _Plot(len(rows), height - BOTTOM)
    tall = STRIP - NAME
    bars: list[Bar] = []
    marks: tuple[Label, ...] = ()
    names = []
    for place, tier in enumerate(audit.tiers):
        floor = TOP + STRIP * (place + 1)
        names.append(Label(LEFT, floor - tall - 5, str(tier)))
        marks += ticks(floor, tall, highest, 1)
        for number, row in enumerate(rows):
            at = (plot.middle(number) - plot.group / 2, floor, plot.group)
            bars += _bars(row, tier, place, at, tall / highest)
    bars.sort(key=lambda each: each.style.startswith("t"), reverse=True)  # problems are drawn over their neighbours
    return _chart(audit, rows, plot, bars, marks, tuple(names))


def _chart(
    audit: TopicAudit,
    rows: Sequence[Row],
    plot: _Plot,
    bars: Sequence[Bar],
    marks: tuple[Label, ...],
    names: tuple[Label, ...] = (),
) -> Chart:
    legend = tuple((f"t{place % 6}", str(tier)) for place, tier in enumerate(audit.tiers))
    summary = _summary(audit, rows)
    height = plot.floor + BOTTOM
    return Chart(tuple(bars), plot.warnings(rows), plot.labels(rows), marks, legend, summary, names, height=height)


@dataclass(frozen=True)
class _Plot:
    """The positions of rows: `rows` groups of bars above `floor`."""

    rows: int
    floor: int

    @property
    def group(self) -> float:
        return (WIDTH - LEFT - RIGHT) / max(self.rows, 1)

    def middle(self, number: int) -> float:
        return LEFT + self.group * (number + 0.5)

    def warnings(self, rows: Sequence[Row]) -> tuple[Label, ...]:
        """Returns a sign above each row that is not complete."""
        states = ((number, row.state()) for number, row in enumerate(rows))
        return tuple(
            Label(px(self.middle(number)), TOP - 8, _SIGNS[state], f"sign {state}")
            for number, state in states
            if not state.passes
        )

    def labels(self, rows: Sequence[Row]) -> tuple[Label, ...]:
        """Returns the labels of as many rows as fit."""
        every = math.ceil(max((len(row.label) for row in rows), default=0) * LABEL_WIDTH / self.group)
        return tuple(
            below(px(self.middle(number)), self.floor, row.label)
            for number, row in enumerate(rows)
            if number % every == 0
        )


def _highest(audit: TopicAudit, rows: Sequence[Row]) -> int:
    return nice(max((row.records(t) + missing_records(row, t) for row in rows for t in audit.tiers), default=0))


_SIGNS = {State.LATE: "…", State.MISSING: "▼", State.DUPLICATED: "▲", State.UNKNOWN: "?"}


def _bars(row: Row, tier: TierKey, place: int, at: tuple[float, float, float], scale: float) -> list[Bar]:
    x, floor, width = at
    records, missing, state = row.records(tier), missing_records(row, tier), row.state(tier)
    height = records * scale
    said = f"{row.label}, {tier}: {records:,} records, {state}"
    style = f"t{place % 6}"
    found = [Bar(px(x), px(floor - height), px(width * 0.92), px(height), style, said)]
    if missing:
        gap = max(missing * scale, MIN_BAR)
        wide = max(width * 0.92, MIN_BAR)
        look = "gap" if wide > MIN_BAR else "gap thin"
        found.append(Bar(px(x), px(floor - height - gap), px(wide), px(gap), look, f"{said}: {missing:,}"))
    if state in (State.UNKNOWN, State.DUPLICATED):
        tall = max(height, MIN_BAR)
        wide = max(width * 0.92, MIN_BAR)
        found.append(Bar(px(x), px(floor - tall), px(wide), px(tall), f"over {state}", said))
    return found


def _summary(audit: TopicAudit, rows: Sequence[Row]) -> str:
    if not rows:
        return f"Nothing has been counted for topic {audit.topic}."
    bad = [f"{row.label} is {row.state()}" for row in rows if not row.state().passes]
    said = "; ".join(bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
    times = f"{len(rows)} rows from {rows[0].label} to {rows[-1].label}"
    return f"Records of each tier, {times}. {said or 'All are complete'}."
