"""The comparison of two commits: its ratios are taken within a round, and only a worse median ends it with 1."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from compare_commits import Comparison, compare
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

    def cells(self, quick: bool) -> Sequence[OneCell]:
        assert quick
        return [OneCell(), OneCell("not compared", "ends")]

    def warm(self, system: Any) -> None:
        system.calls.append("warm")

    def run(self, cell: OneCell, system: Any, number: int) -> Mapping[str, float]:
        self.order.append(system)
        slow = 1 if (number - 1) // 2 % 2 == 0 else 2
        return {"rate": 1000 * system.factor / slow, "shown": 1.0}


def test_the_ratio_is_that_of_each_round_and_the_order_alternates() -> None:
    before, after, shape = RecordedSystem(1.0), RecordedSystem(0.9), NoisyShape()
    systems = cast(Sequence[Klamm], [before, after])
    (found,) = compare(cast(Shape, shape), systems, 3, lambda system: None, lambda line: None)
    assert found.before == [1000, 500, 1000]
    assert found.after == [900, 450, 900]
    assert [round(ratio, 6) for ratio in found.ratios] == [0.9, 0.9, 0.9]
    assert shape.order == [before, after, after, before, before, after]
    assert before.calls == 3 * ["wipe", "start", "warm", "stop", "wipe"]  # two starts of one commit differ


class FailingShape(NoisyShape):
    """Its second warm-up of each system fails."""

    def warm(self, system: Any) -> None:
        super().warm(system)
        if system.calls.count("warm") == 2:
            raise RuntimeError("the broker answered with error code 6")


def test_a_round_that_fails_is_left_out_and_said() -> None:
    lines: list[str] = []
    systems = cast(Sequence[Klamm], [RecordedSystem(1.0), RecordedSystem(0.9)])
    (found,) = compare(cast(Shape, FailingShape()), systems, 4, lambda system: None, lines.append)
    assert len(found.ratios) == 2  # of four rounds one fails with each system
    assert lines[1] == "(x) round 2 of 4 FAILED: the broker answered with error code 6"


def test_only_cells_of_the_pattern_are_run() -> None:
    systems = cast(Sequence[Klamm], [RecordedSystem(1.0), RecordedSystem(0.9)])
    assert not compare(
        cast(Shape, NoisyShape()), systems, 1, lambda system: None, lambda line: None, "no cell has this name"
    )


def test_worse_depends_on_which_way_is_better() -> None:
    slower = Comparison("one", RATE, [100.0], [90.0])
    assert round(slower.worse_by(), 6) == 0.1
    assert slower.line(0.03).endswith("WORSE")
    later = Comparison("one", LATENCY, [100.0, 100.0, 100.0], [102.0, 150.0, 90.0])
    assert round(later.worse_by(), 6) == 0.02
    assert later.line(0.03).endswith("ok")
    assert Comparison("one", RATE, [0.0], [0.0]).line(0.03).endswith("no ratio ok")


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
