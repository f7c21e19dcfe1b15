"""The finer comparison of reads: its interval of the median, and what counts as worse."""

from __future__ import annotations

import math

import pytest

from compare_reads import interval, verdict


@pytest.mark.parametrize(
    ("count", "rank"),
    [(6, 1), (10, 2), (20, 6), (30, 10), (100, 40)],  # the table of the sign test: 95 % or the next above
)
def test_the_interval_of_the_median_is_that_of_the_sign_test(count: int, rank: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert interval(values) == (rank, count + 1 - rank)


def test_too_few_rounds_have_no_bounds() -> None:
    assert interval([1.0] * 5) == (-math.inf, math.inf)


@pytest.mark.parametrize(
    ("metric", "low", "high", "wanted"),
    [
        ("rate", 0.995, 1.02, "ok"),
        ("rate", 0.97, 0.98, "WORSE"),
        ("rate", 0.98, 1.0, "open"),
        ("broker CPU per GB", 0.8, 1.009, "ok"),
        ("broker CPU per GB", 1.02, 1.03, "WORSE"),
        ("broker CPU per GB", 1.0, 1.03, "open"),
    ],
)
def test_a_cell_is_worse_only_if_the_whole_interval_is(metric: str, low: float, high: float, wanted: str) -> None:
    assert verdict(metric, low, high, 0.01) == wanted
