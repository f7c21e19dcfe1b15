"""`make bench-load` without Spark: what is judged, what a program and its descendants cost, the records."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from klamm.plugins.demo.flights import load_flights
from klammbench.load.measure import Cost, measure
from klammbench.load.shape import KLAMM, RIVALS, SPARK, UNCLUSTERED, LoadCell, LoadShape, figures, steps
from klammbench.load.site import BEGIN, DAYS, tables
from klammbench.table import Table

FILE = LoadCell("file", "file: Parquet", "file", "flights", 1_000_000, (KLAMM, SPARK))
STREAM = LoadCell("stream", "stream to noop", "", "flights", 1_000_000, (KLAMM, SPARK))


def judged(*rows: tuple[str, str, dict[str, float]]) -> list[str]:
    shape = LoadShape(None)
    made = [{"cell": cell, "system": system, "round": 1, "metrics": values} for cell, system, values in rows]
    return [line for target in shape.targets(Table(made, shape.METRICS, RIVALS)) for line in target.lines()]


def test_a_load_is_judged_by_its_rate_and_its_cpu_against_spark_with_the_same_files() -> None:
    lines = judged(
        (FILE.name, KLAMM, {"rate": 300.0, "cpu": 20.0, "peak": 900.0, "work_rate": 500.0}),
        (FILE.name, SPARK, {"rate": 150.0, "cpu": 16.0, "peak": 600.0, "work_rate": 200.0}),
        (FILE.name, UNCLUSTERED, {"rate": 200.0, "cpu": 15.0, "peak": 600.0, "work_rate": 250.0}),
    )
    assert lines[0] == "target load-file-rate measured 2 wanted >=1.5 met"
    assert "    against spark-unclustered: 1.5" in lines
    assert "    once Spark is up: 2.5" in lines
    assert "target load-file-cpu measured 1.25 wanted <=1 short" in lines


def test_the_start_is_judged_by_its_seconds_and_says_where_they_went() -> None:
    cell = "cold file: 1,000 records"
    lines = judged((cell, KLAMM, {"seconds": 9.5, "imports": 2.0, "session": 4.0}))
    assert lines == [
        "target cold-file-seconds measured 9.5 wanted <=10 met",
        "    2.00 s of imports; 4.00 s of starting Spark",
    ]


def test_what_was_not_measured_on_both_is_short() -> None:
    assert judged((FILE.name, KLAMM, {"rate": 300.0}))[:1] == [
        "target load-file-rate measured nothing wanted >=1.5 short"
    ]


def test_a_load_counts_from_its_start_and_a_stream_while_its_query_runs() -> None:
    marks = {"session": 4.0, "rows": 9.0}
    cost = Cost(seconds=10.0, cpu_s=15.0)
    assert figures(FILE, SPARK, cost, marks, (1.0, 0.0))["rate"] == 100_000
    assert figures(STREAM, SPARK, cost, marks, (1.0, 0.0))["rate"] == 200_000


def test_steps_are_in_the_order_of_their_marks_and_add_up_to_the_whole() -> None:
    found = steps({"python": 0.1, "imports": 2.1, "planned": 2.6, "jvm": 2.5, "done": 8.0}, 8.5)
    assert list(found) == ["python", "imports", "jvm", "planned", "done"]
    assert found["planned"] == pytest.approx(0.1)
    assert sum(found.values()) == pytest.approx(8.5)


def test_a_program_costs_what_its_descendants_cost_the_orphans_too(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}]); {child}"
    cost = measure([sys.executable, "-c", orphan], tmp_path / "cost", tmp_path / "log", 60.0, {})
    assert cost.status == 0
    assert 0.6 < cost.cpu_s < 6
    assert cost.peak > 1_000_000


def test_a_program_that_fails_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^klamm: there is no broker$"):
        measure(
            [sys.executable, "-c", "print('klamm: there is no broker'); print('bye'); raise SystemExit(3)"],
            tmp_path / "cost", tmp_path / "log", 60.0, {},
        )  # fmt: skip


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"it took more than 0\.5 s"):
        measure([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "cost", tmp_path / "log", 0.5, {})


def test_the_records_are_flights_again_and_again_in_the_order_of_their_times() -> None:
    flights = load_flights(2)
    made = list(tables(60, flights))
    assert sum(table.num_rows for table in made) == 60
    stamps = [stamp for table in made for stamp in table["timestamp"].to_pylist()]
    assert stamps == sorted(stamps)
    assert stamps[0] == BEGIN
    assert (stamps[-1] - BEGIN).total_seconds() < DAYS * 86_400
    assert made[0]["key"][0].as_py().startswith("2013/1/1/")
    assert made[0]["value"][0].as_py() == flights.slice(0, 1).to_pylist()[0]
