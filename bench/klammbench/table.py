"""One shape's results: medians, and ratios to the better of Kafka's two settings.

A ratio is taken within each round (both were measured moments apart), and its median over the rounds is the cell's. The
better of Kafka's settings is chosen for each cell and metric by its median. A shape's value is the geometric mean of
its cells' ratios. The allowance is the distance from 1 of the same figure for Kafka's tuned setting against itself,
measured twice in each round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from klammbench.metric import Metric

_AGAIN = "/again"
AGAIN, CLUSTER_AGAIN = f"kafka-tuned{_AGAIN}", f"kafka-cluster{_AGAIN}"
"""Not systems: Kafka's tuned setting, measured once more in each round for the A/A pair."""
KAFKAS = ("kafka", "kafka-tuned", "kafka-cluster")
OURS = ("klamm", "klamm-cluster")
"""The systems whose ratios count; a shape has one of them."""


def real(name: str) -> str:
    """Returns the system that is measured under this name."""
    return name.removesuffix(_AGAIN)


@dataclass(frozen=True, slots=True)
class Spread:
    lowest: float
    median: float
    highest: float


@dataclass(frozen=True, slots=True)
class ShapeValue:
    """`ratios` by cell; `missing` names cells without a figure of ours, because of which no target can be met."""

    value: float
    worst_cell: str
    worst: float
    allowance: float
    ratios: Mapping[str, float]
    missing: Sequence[str]


class Table:
    """A table of rows `{"cell", "system", "round", "metrics" or "failed"}`. `rivals`: the systems whose better one
    counts.
    """

    def __init__(
        self, rows: Iterable[Mapping[str, Any]], metrics: Mapping[str, Metric], rivals: Sequence[str] = KAFKAS
    ) -> None:
        self.rows = list(rows)
        self.metrics = metrics
        self.rivals = rivals
        self._values: dict[tuple[str, str, str], dict[int, float]] = {}
        for row in self.rows:
            for metric, value in row.get("metrics", {}).items():
                self._values.setdefault((row["cell"], row["system"], metric), {})[row["round"]] = value

    def cells(self) -> list[str]:
        """Returns the cells in the order in which they were measured."""
        return list(dict.fromkeys(row["cell"] for row in self.rows))

    @property
    def ours(self) -> str:
        """The system of `OURS` that the shape has; the first one if it has none."""
        return next((row["system"] for row in self.rows if row["system"] in OURS), OURS[0])

    def rounds(self) -> int:
        return max((row["round"] for row in self.rows), default=0)

    def systems(self) -> list[str]:
        return list(dict.fromkeys(row["system"] for row in sorted(self.rows, key=lambda row: _order(row["system"]))))

    def failures(self) -> list[str]:
        """Returns failure lines; the same failure of a system in several cells and rounds is one line."""
        alike: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.get("failed"):
                alike.setdefault((row["system"], row["failed"]), []).append(f"{row['cell']} (round {row['round']})")
        return [f"{system}: {_some(places)}: {text}" for (system, text), places in alike.items()]

    def values(self, cell: str, system: str, metric: str) -> Mapping[int, float]:
        """Returns the values by round."""
        return self._values.get((cell, system, metric), {})

    def spread(self, cell: str, system: str, metric: str) -> Spread | None:
        values = self.values(cell, system, metric).values()
        return Spread(min(values), statistics.median(values), max(values)) if values else None

    def better_rival(self, cell: str, metric: str) -> str | None:
        """Returns the rival with the better median, or None if none was measured."""
        found = {name: spread.median for name in self.rivals if (spread := self.spread(cell, name, metric))}
        if not found:
            return None
        pick = max if self.metrics[metric].better == "higher" else min
        return pick(found, key=lambda name: found[name])

    def ratio(self, cell: str, metric: str, ours: str, theirs: str | None = None) -> float | None:
        """Returns the median over the rounds of ours divided by theirs (by default the better rival's)."""
        theirs = theirs or self.better_rival(cell, metric)
        if theirs is None:
            return None
        above, below = self.values(cell, ours, metric), self.values(cell, theirs, metric)
        pairs = [above[n] / below[n] for n in above if below.get(n)]
        return statistics.median(pairs) if pairs else None

    def against(self, base: str, cell: str, system: str, metric: str) -> float | None:
        """Returns the median over the rounds of one cell's figure divided by that of the cell `base`, both of the same
        system.
        """
        above, below = self.values(cell, system, metric), self.values(base, system, metric)
        pairs = [above[n] / below[n] for n in above if below.get(n)]
        return statistics.median(pairs) if pairs else None

    def shape_value(
        self, metric: str, ours: str | None = None, cells: Sequence[str] | None = None
    ) -> ShapeValue | None:
        """Returns the shape's value, or None if no cell has a ratio."""
        ours = ours or self.ours
        wanted = [
            cell
            for cell in (self.cells() if cells is None else cells)
            if any(self.values(cell, name, metric) for name in (ours, *self.rivals))
        ]
        ratios = {cell: ratio for cell in wanted if (ratio := self.ratio(cell, metric, ours)) is not None}
        if not ratios:
            return None
        pick = min if self.metrics[metric].better == "higher" else max
        worst = pick(ratios, key=lambda cell: ratios[cell])
        return ShapeValue(
            value=geometric_mean(ratios.values()),
            worst_cell=worst,
            worst=ratios[worst],
            allowance=self.allowance(metric, wanted),
            ratios=ratios,
            missing=[cell for cell in wanted if not self.values(cell, ours, metric)],
        )

    def allowance(self, metric: str, cells: Sequence[str]) -> float:
        """Returns how much Kafka differs from itself: 0.03 for 3 %; 0 if it was not measured twice."""
        ratios = [
            r
            for again in (AGAIN, CLUSTER_AGAIN)
            for cell in cells
            if (r := self.ratio(cell, metric, again, real(again))) is not None and r > 0
        ]
        if not ratios:
            return 0.0
        return distance(geometric_mean(ratios))


def distance(ratio: float) -> float:
    """Returns how much the ratio differs from 1 in either direction: 0.25 for 1.25 and for 0.8."""
    return max(ratio, 1 / ratio) - 1


def geometric_mean(values: Iterable[float]) -> float:
    """Returns the geometric mean; 0 if a value is 0."""
    given = list(values)
    if any(value <= 0 for value in given):
        return 0.0
    return math.exp(statistics.fmean(math.log(value) for value in given))


def _some(places: Sequence[str], named: int = 4) -> str:
    return ", ".join(places[:named]) + (f" and {len(places) - named} more" if len(places) > named else "")


def _order(system: str) -> int:
    """Sort key: Klamm first, then Kafka, then the others."""
    for place, prefix in enumerate(("klamm", "kafka")):
        if system.startswith(prefix):
            return place
    return 2
