"""Targets and the lines that say whether they are met.

The allowance widens a target: `>=1.0` with an allowance of 0.03 is met from 0.97 on. At most 0.10 of it counts: a
machine on which Kafka differs more than that from itself cannot give a verdict. Where a target is met only because of
the allowance, the line below says so, so that a reader can take the strict view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from klammbench.table import ShapeValue

MOST_ALLOWED = 0.10


@dataclass(frozen=True, slots=True)
class Target:
    """A target and its measurement. `value` None could not be measured and is short. `remarks` are printed below the
    line.
    """

    name: str
    value: float | None
    wanted: float
    at_least: bool = True
    allowance: float = 0.0
    remarks: Sequence[str] = ()
    complete: bool = True
    """False if cells are missing: the target is then short, whatever the value."""

    @property
    def strictly_met(self) -> bool:
        if self.value is None or not self.complete:
            return False
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted

    @property
    def met(self) -> bool:
        if self.value is None or not self.complete:
            return False
        if self.at_least:
            return self.value >= self.wanted * (1 - min(self.allowance, MOST_ALLOWED))
        return self.value <= self.wanted * (1 + min(self.allowance, MOST_ALLOWED))

    def line(self) -> str:
        value = "nothing" if self.value is None else figure(self.value)
        sign = ">=" if self.at_least else "<="
        return f"target {self.name} measured {value} wanted {sign}{self.wanted:g} {'met' if self.met else 'short'}"

    def lines(self) -> list[str]:
        """Returns the target's line and its remarks."""
        below = list(self.remarks)
        if self.met and not self.strictly_met:
            most = f", of which {MOST_ALLOWED:g} counts" if self.allowance > MOST_ALLOWED else ""
            below.insert(
                0, f"met only with the allowance of {self.allowance:.3f}{most}, Kafka against itself; strictly short"
            )
        return [self.line(), *(f"    {remark}" for remark in below)]


def figure(value: float) -> str:
    """Formats a value with three significant digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio_target(
    name: str, found: ShapeValue | None, wanted: float, *, at_least: bool = True, remarks: Sequence[str] = ()
) -> Target:
    """Returns the target of a shape's value, with its worst cell, its allowance and the cells that failed as
    remarks.
    """
    if found is None:
        return Target(name, None, wanted, at_least, remarks=["no cell was measured on Klamm and Kafka both"])
    below = [f"worst cell {found.worst_cell}: {figure(found.worst)}; allowance (Kafka A/A) {found.allowance:.3f}"]
    if found.missing:
        below.append(f"without a figure of ours: {', '.join(found.missing)}")
    below.extend(remarks)
    return Target(name, found.value, wanted, at_least, found.allowance, below, complete=not found.missing)
