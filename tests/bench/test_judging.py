"""Medians, ratios, allowances, target lines and the page, from made-up results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from klammbench import report
from klammbench.metric import Metric
from klammbench.results import Store
from klammbench.shapes.base import Cell, Shape
from klammbench.shapes.growth import SMALLEST, Cost, Growth, growth
from klammbench.systems.base import System
from klammbench.systems.klamm import Klamm
from klammbench.table import AGAIN, Table, geometric_mean
from klammbench.targets import Target, ratio_target

METRICS = {"rate": Metric("MB/s", "higher", 1), "cpu": Metric("s/GB", "lower", 2)}
RATES = {
    "one": {"klamm": [90, 100, 200], "kafka": [10, 10, 10], "kafka-tuned": [50, 100, 100], AGAIN: [50, 110, 100]},
    "two": {"klamm": [50, 50, 50], "kafka": [100, 100, 100], "kafka-tuned": [80, 80, 80], AGAIN: [88, 88, 88]},
}


def rows(rates: Mapping[str, Mapping[str, Sequence[float]]] = RATES) -> list[dict[str, Any]]:
    return [
        {"cell": cell, "system": system, "round": number, "metrics": {"rate": value, "cpu": 1 / value}}
        for cell, systems in rates.items()
        for system, values in systems.items()
        for number, value in enumerate(values, 1)
    ]


def test_a_ratio_is_the_median_of_the_rounds_to_the_better_setting_of_the_cell() -> None:
    table = Table(rows(), METRICS)
    assert table.better_rival("one", "rate") == "kafka-tuned"
    assert table.better_rival("two", "rate") == "kafka"
    assert table.ratio("one", "rate", "klamm") == 1.8  # of 1.8, 1.0 and 2.0
    assert table.ratio("two", "cpu", "klamm") == 2.0  # less is better: twice the cost of the cheaper one


def test_a_shapes_value_is_the_geometric_mean_with_its_worst_cell_and_kafka_against_itself() -> None:
    found = Table(rows(), METRICS).shape_value("rate")
    assert found is not None
    assert found.value == pytest.approx(geometric_mean([1.8, 0.5]))
    assert (found.worst_cell, found.worst, found.missing) == ("two", 0.5, [])
    assert found.allowance == pytest.approx(geometric_mean([1.0, 1.1]) - 1)


def test_for_costs_the_worst_cell_is_the_highest_ratio() -> None:
    found = Table(rows(), METRICS).shape_value("cpu")
    assert found is not None
    assert found.worst_cell == "two"


def test_a_cell_without_our_figure_makes_the_target_short_whatever_the_others_say() -> None:
    table = Table([row for row in rows() if (row["cell"], row["system"]) != ("two", "klamm")], METRICS)
    target = ratio_target("b", table.shape_value("rate"), 1.0)
    assert not target.met
    assert target.line() == "target b measured 1.8 wanted >=1 short"
    assert "    without a figure of ours: two" in target.lines()


def test_nothing_measured_is_short() -> None:
    assert ratio_target("b", None, 0.5).line() == "target b measured nothing wanted >=0.5 short"


@pytest.mark.parametrize(
    ("value", "at_least", "allowance", "word", "by_allowance"),
    [
        (1.0, True, 0.0, "met", False),
        (0.99, True, 0.0, "short", False),
        (0.98, True, 0.03, "met", True),
        (0.89, True, 0.5, "short", False),  # a wild machine allows a tenth at the most
        (1.0, False, 0.0, "met", False),
        (1.02, False, 0.03, "met", True),
        (1.04, False, 0.03, "short", False),
    ],
)
def test_the_allowance_widens_a_target_and_the_line_below_says_so(
    value: float, at_least: bool, allowance: float, word: str, by_allowance: bool
) -> None:
    first, *below = Target("x", value, 1.0, at_least, allowance).lines()
    assert first == f"target x measured {value:.3g} wanted {'>=' if at_least else '<='}1 {word}"
    assert any("only with the allowance" in line for line in below) == by_allowance


def test_growth_is_judged_against_the_small_log_of_the_same_turns() -> None:
    ratios = {
        SMALLEST: {"klamm": [1.01, 0.99, 1.3], "kafka-tuned": [0.8, 0.96, 1.0]},
        "1 partition, 1 GB": {"klamm": [1.1, 1.0, 1.05], "kafka-tuned": [1.0, 1.0, 1.0]},
        "1 partition, 20 GB": {"klamm": [1.3, 1.2, 1.9]},
        "200 partitions": {"klamm": [0.9, 1.12, 1.12], "kafka-tuned": [3.0, 3.0, 3.0]},
    }
    made = [
        {"cell": cell, "system": system, "round": number, "metrics": {"cpu": 100 * value, "growth": value}}
        for cell, systems in ratios.items()
        for system, values in systems.items()
        for number, value in enumerate(values, 1)
    ]
    log, partitions = growth.targets(Table(made, growth.METRICS))
    assert log.line() == "target g-growth-log measured 1.3 wanted <=1.1 short"
    assert partitions.line() == "target g-growth-partitions measured 1.12 wanted <=1.1 met"
    assert log.allowance == partitions.allowance == pytest.approx(1 / 0.96 - 1)
    assert "met only with the allowance of 0.042" in partitions.lines()[1]
    rows = [row for row in made if (row["cell"], row["system"]) != ("1 partition, 1 GB", "klamm")]
    assert not growth.targets(Table(rows, growth.METRICS))[0].met


def test_a_large_cell_s_partitions_have_their_turn_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, list[int]]] = []

    def measure(cost: Cost, system: System, topic: str, partitions: Sequence[int], seconds: float) -> None:
        sent.append((topic, list(partitions)))

    module = sys.modules[Growth.__module__]  # the package has the shape under the module's name
    monkeypatch.setattr(module, "_measure", measure)
    monkeypatch.setattr(module, "drive", lambda *args: None)
    monkeypatch.setattr("os.sync", lambda: None)
    growth = Growth()
    system = Klamm("klamm", Path("nowhere"), zookeeper=False)
    cell = next(cell for cell in growth.cells(quick=False) if cell.partitions == 2000)
    growth.in_turn(cell, system, "small", "large")
    assert [topic for topic, _ in sent] == ["small", "large", "large", "small"] * 2
    assert [number for topic, numbers in sent if topic == "large" for number in numbers] == list(range(2000))
    assert {(len(numbers), *numbers[:2]) for topic, numbers in sent if topic == "small"} == {(500, 0, 0)}


class MadeUp:
    """Some measured shape."""

    NAME = "z"
    TITLE = "Made up"
    SYSTEMS = ("klamm", "kafka", "kafka-tuned", AGAIN)
    METRICS = METRICS
    MANAGED = True

    def cells(self, quick: bool) -> Sequence[Cell]:
        return ()

    def warm(self, system: System) -> None: ...

    def run(self, cell: Cell, system: System, number: int) -> Mapping[str, float]:
        return {}

    def targets(self, table: Table) -> Sequence[Target]:
        return [ratio_target("z-easy", table.shape_value("rate"), 0.1), ratio_target("z", table.shape_value("rate"), 2)]


def measured(folder: Path, *, finished: bool) -> tuple[Store, Mapping[str, Shape]]:
    store = Store(folder, quick=True)
    store.begin("z", {"date": "today", "commit": "abc", "machine": "2 cores", "rounds": 3, "systems": {"klamm": "1"}})
    for row in rows():
        store.add("z", row)
    store.add("z", {"cell": "two", "system": "kafka", "round": 4, "failed": "it burnt"})
    if finished:
        store.finish("z", 12.0)
    return store, {"z": MadeUp()}


def test_the_page_names_failures_and_missed_targets_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, shapes = measured(tmp_path, finished=True)
    monkeypatch.setattr(report.chart, "write", lambda panels, path: False)  # matplotlib is for `make bench` only
    failures = report.write(store, shapes, tmp_path / "page")
    text = (tmp_path / "page" / "benchmarks.md").read_text()
    assert failures == ["(z) kafka: two (round 4): it burnt"]
    assert text.index("it burnt") < text.index("target z measured") < text.index("target z-easy measured")
    assert "| one | 100.0 (90.0–200.0) | 10.0 (10.0–10.0) | 100.0 (50.0–100.0)" in text
    assert "**1.80**" in text


def test_a_shape_that_was_cut_off_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, shapes = measured(tmp_path, finished=False)
    monkeypatch.setattr(report.chart, "write", lambda panels, path: False)
    assert "(z) was cut off" in report.write(store, shapes, tmp_path / "page")


def test_a_shape_run_again_replaces_its_results_and_no_others(tmp_path: Path) -> None:
    store, _ = measured(tmp_path, finished=True)
    store.begin("y", {})
    store.add("y", {"cell": "c"})
    store.begin("z", {})
    first, second = store.load("y"), store.load("z")
    assert first is not None
    assert second is not None
    assert (len(first.rows), len(second.rows), store.load("x")) == (1, 0, None)
