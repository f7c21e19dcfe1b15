"""The comparison of two commits: its ratios are taken within a round, and a cell is worse only if the whole interval of
the median is."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from compare_commits import Comparer, Comparison, Verdict, interval
from klammbench.metric import Metric
from klammbench.shapes.base import Shape
from klammbench.systems.klamm import Klamm

RATE, LATENCY = Metric("requests/s", "higher"), Metric("µs p99", "lower")


@dataclass
class RecordedSystem:
    factor: float
    calls: list[str] = field(default_factory=list)

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def wipe(self) -> None:
        self.calls.append("wipe")


@dataclass(frozen=True)
class OneCell:
    name: str = "one"
    kind: str = "peak"


class NoisyShape:
    """The machine is twice as slow in each second round, for both systems."""

    NAME, TITLE, SYSTEMS, MANAGED = "x", "", ("klamm",), True
    METRICS: Mapping[str, Metric] = {"rate": RATE, "shown": Metric("µs", None)}

    def __init__(self) -> None:
        self.order: list[RecordedSystem] = []
        self.systems: list[RecordedSystem] = []

    def cells(self, quick: bool) -> Sequence[OneCell]:
        assert quick
        return [OneCell(), OneCell("not compared", "ends")]

    def warm(self, system: Any) -> None:
        system.calls.append("warm")

    def run(self, cell: OneCell, system: Any, number: int) -> Mapping[str, float]:
        self.order.append(system)
        slow = 2 if len(self.order) > 4 else 1  # from the second round on
        return {"rate": 1000 * system.factor / slow, "shown": 1.0}


def comparer(
    shape: NoisyShape, rounds: int, lines: list[str], after: float = 0.9, pattern: str = ""
) -> list[Comparison]:
    systems = cast(Sequence[Klamm], [RecordedSystem(1.0), RecordedSystem(after)])
    shape.systems = cast(list[RecordedSystem], systems)
    made = Comparer(systems, rounds, 0.03, lambda system: None, lines.append)
    return list(made.compare(cast(Shape, shape), pattern))


def test_the_ratio_is_that_of_each_round_and_the_order_alternates() -> None:
    shape = NoisyShape()
    (found,) = comparer(shape, 2, [])
    before, after = shape.systems
    assert found.before == (1000, 500)
    assert found.after == (900, 450)
    assert [round(ratio, 6) for ratio in found.ratios] == [0.9, 0.9]
    assert shape.order == [before, after, after, before, after, before, before, after]
    assert before.calls == 2 * ["wipe", "start", "warm", "stop", "wipe"]  # two starts of one commit differ


def test_a_decided_cell_is_left_out_after_ten_rounds() -> None:
    shape, lines = NoisyShape(), list[str]()
    (found,) = comparer(shape, 30, lines)
    assert found.verdict(0.03) is Verdict.WORSE
    assert len(lines) == 10


class FailingShape(NoisyShape):
    """Its second warm-up of each system fails."""

    def warm(self, system: Any) -> None:
        super().warm(system)
        if system.calls.count("warm") == 2:
            raise RuntimeError("the broker answered with error code 6")


def test_a_round_that_fails_is_left_out_and_said() -> None:
    lines: list[str] = []
    (found,) = comparer(FailingShape(), 4, lines)
    assert len(found.ratios) == 2  # of four rounds one fails with each system
    assert lines[1] == "(x) round 2 of 4 FAILED: the broker answered with error code 6"


def test_only_cells_of_the_pattern_are_run() -> None:
    assert not comparer(NoisyShape(), 1, [], pattern="no cell has this name")


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
        (RATE, 0.975, 1.02, "ok"),
        (RATE, 0.95, 0.96, "WORSE"),
        (RATE, 0.96, 1.0, "open"),
        (LATENCY, 0.8, 1.02, "ok"),
        (LATENCY, 1.04, 1.05, "WORSE"),
        (LATENCY, 1.0, 1.05, "open"),
    ],
)
def test_a_cell_is_worse_only_if_the_whole_interval_is(metric: Metric, low: float, high: float, wanted: str) -> None:
    after = [100 * low, 100 * low, *(4 * [50 * (low + high)]), 100 * high, 100 * high, 100 * high]
    found = Comparison("one", metric, [100.0] * len(after), after)
    assert found.verdict(0.03) == wanted
    assert found.line(0.03).endswith(wanted)


def test_without_a_ratio_nothing_is_decided() -> None:
    assert Comparison("one", RATE, [0.0], [0.0]).line(0.03).endswith("no ratio open")


def test_a_clone_without_a_broker_is_told_in_one_line(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "bench" / "compare_commits.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{root / 'bench'}:{root / 'tests' / 'support'}", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "run bench/install.sh in that clone" in done.stderr
