"""What is measured, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """`unit` for the table's head; `better` decides how ratios are read; None: shown without a ratio."""

    unit: str
    better: Literal["higher", "lower"] | None = "higher"
    digits: int = 0
