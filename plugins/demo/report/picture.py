"""The picture of a run as numbers: records per second over time, events, and durations of phases. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...audit.web.axis import LEFT, WIDTH, Label, below, nice, px, ticks
from .timeline import MarkKind, Phase, Sample, TimelineMark

RIGHT, TOP, PLOT, AXIS, ROW = 12, 44, 190, 28, 20
"""In pixels: the right and top margins, and the heights of the plot, of the axis below it, and of a phase."""
NEAR: Final = 14
"""Marks that are closer than this are staggered."""
MAX_BINS: Final = 150
PARTS: Final = 4
NARROW: Final = 2.0


@dataclass(frozen=True)
class Rate:
    """Records per second in the `seconds` from `from_s` on; `loaded`: records in the lake at their end."""

    from_s: float
    produced: int
    consumed: int
    loaded: int


@dataclass(frozen=True)
class Line:
    """`points` as SVG writes them."""

    style: str
    name: str
    points: str


@dataclass(frozen=True)
class Flag:
    """A mark: a line from `y` down, and its number in the list below the picture."""

    x: float
    y: float
    number: int
    kind: MarkKind
    text: str


@dataclass(frozen=True)
class Stretch:
    """A phase as a bar; its name is at `text_x`, before the bar if it does not fit behind it."""

    x: float
    y: float
    width: float
    name: str
    seconds: float
    text_x: float
    before: bool


@dataclass(frozen=True)
class Picture:
    lines: tuple[Line, ...]
    ticks: tuple[Label, ...]
    times: tuple[Label, ...]
    flags: tuple[Flag, ...]
    stretches: tuple[Stretch, ...]
    height: int
    summary: str
    left: int = LEFT
    width: int = WIDTH
    floor: int = TOP + PLOT
    row: int = ROW


def rates(samples: Sequence[Sample], end_s: float) -> tuple[float, list[Rate]]:
    """Returns the length of an interval, and the rate of each from the beginning to `end_s`; few enough to be drawn."""
    step = float(max(1, math.ceil(end_s / MAX_BINS)))
    known = [Sample(0.0, 0, 0, 0), *samples]
    found: list[Rate] = []
    at = 0
    before = known[0]
    for number in range(math.ceil(end_s / step)):
        until = (number + 1) * step
        while at + 1 < len(known) and known[at + 1].at_s <= until:
            at += 1
        now = known[at]
        produced, consumed = now.produced - before.produced, now.consumed - before.consumed
        found.append(Rate(number * step, round(produced / step), round(consumed / step), now.loaded))
        before = now
    return step, found


def draw(samples: Sequence[Sample], marks: Sequence[TimelineMark], phases: Sequence[Phase], end_s: float) -> Picture:
    """Returns the picture up to `end_s`, the end of the run."""
    step, shown = rates(samples, end_s)
    scale = (WIDTH - LEFT - RIGHT) / max(end_s, 1.0)
    floor = TOP + PLOT
    highest = nice(max((max(each.produced, each.consumed) for each in shown), default=0))

    def x(at_s: float) -> float:
        return px(LEFT + min(max(at_s, 0.0), end_s) * scale)

    def line(style: str, name: str, values: Sequence[int]) -> Line:
        points = []
        for rate, value in zip(shown, values, strict=True):
            y = px(floor - value * PLOT / highest)
            points += [f"{x(rate.from_s)},{y}", f"{x(rate.from_s + step)},{y}"]
        return Line(style, name, " ".join(points))

    lines = (
        line("produced", "produced", [each.produced for each in shown]),
        line("consumed", "consumed", [each.consumed for each in shown]),
    )
    every = _round_seconds(end_s / 8)
    times = tuple(below(x(n * every), floor, f"{n * every} s") for n in range(int(end_s // every) + 1))
    stretches = []
    for number, phase in enumerate(phases):
        begin, end = x(phase.from_s), x(phase.to_s)
        before = end > WIDTH * 0.7
        y = floor + AXIS + ROW * number
        stretches.append(
            Stretch(
                begin, y, max(end - begin, NARROW), phase.name, phase.seconds, begin - 6 if before else end + 6, before
            )
        )
    flags = _flags(marks, x)
    height = floor + AXIS + ROW * len(phases) + 4
    summary = _summary(shown, marks)
    return Picture(lines, ticks(floor, PLOT, highest, PARTS), times, flags, tuple(stretches), height, summary)


def _flags(marks: Sequence[TimelineMark], x: Callable[[float], float]) -> tuple[Flag, ...]:
    """Returns the flags of the marks; those that are close together are staggered."""
    found: list[Flag] = []
    level = 0
    for number, mark in enumerate(marks, 1):
        at = x(mark.at_s)
        level = (level + 1) % 3 if found and at - found[-1].x < NEAR else 0
        found.append(Flag(at, 12 + 12 * level, number, mark.kind, mark.text))
    return tuple(found)


def _round_seconds(least: float) -> int:
    return next((step for step in (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600) if step >= least), 1800)


def _summary(shown: Sequence[Rate], marks: Sequence[TimelineMark]) -> str:
    most = max((each.produced for each in shown), default=0), max((each.consumed for each in shown), default=0)
    said = f"Records per second over time: at most {most[0]:,} produced and {most[1]:,} consumed."
    return said + "".join(f" At {mark.at_s:.1f} s {mark.text}." for mark in marks)
