"""The metrics of a shape and which direction is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` is the table's heading; `better` decides how ratios are read; with None the metric is shown without a
    ratio.
    """

    unit: str
    better: Literal["higher", "lower"] | None = "higher"
    digits: int = 0
