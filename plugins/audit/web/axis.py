"""The axes of a picture in SVG: round numbers up its left side, labels below it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 960
"""The width of every picture in pixels."""
LEFT: Final = 76
"""The left edge of the plot in pixels; the numbers of the ticks are left of it."""
_SPACE: Final = 6
_BELOW: Final = 18


@dataclass(frozen=True)
class Label:
    """`style`: a class of the style sheet."""

    x: float
    y: float
    text: str
    style: str = ""


def ticks(floor: float, tall: float, highest: int, parts: int) -> tuple[Label, ...]:
    """Returns the ticks from 0 at `floor` to `highest`, `tall` pixels above it, in equal parts."""
    return tuple(
        Label(LEFT - _SPACE, px(floor - tall * part / parts), f"{highest * part // parts:,}")
        for part in range(parts + 1)
    )


def below(x: float, floor: float, text: str) -> Label:
    """Returns the label for a position on the axis at `floor`."""
    return Label(x, floor + _BELOW, text)


def nice(value: int) -> int:
    """Returns the next round number that can be divided by four ticks."""
    if value <= 4:
        return 4
    step: int = 10 ** math.floor(math.log10(value / 4))
    return next(4 * step * n for n in (1, 2, 3, 5, 10, 20) if 4 * step * n >= value)


def px(value: float) -> float:
    """Returns a number with the digits that the picture shows."""
    return round(value, 1)
