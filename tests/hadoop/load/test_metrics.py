"""The file of metrics that `klamm load` writes for node_exporter."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from klamm.core.errors import StorageError
from klamm.hadoop.load.metrics import METRICS, LoadMetrics
from klamm.hadoop.load.report import RunReport, TopicReport


def read(path: Path) -> dict[tuple[str, ...], float]:
    families = list(text_string_to_metric_families(path.read_text()))
    assert {family.name for family in families} == set(METRICS)
    return {(s.name.removeprefix("klamm_load_"), *s.labels.values()): s.value for f in families for s in f.samples}


def run(*topics: TopicReport, error: str | None = None) -> RunReport:
    return RunReport("lake", 0.0, 2.5, topics, error)


def test_each_run_is_written_and_the_last_success_is_kept(tmp_path: Path) -> None:
    path, now = tmp_path / "load.prom", [1000.0]
    metrics = LoadMetrics(path, "lake", lambda: now[0])
    metrics.write(run(TopicReport("a", (), 1.0), TopicReport("b", (), 1.0, error="no disk")))
    assert read(path) == {
        ("run_failed", "lake"): 1, ("run_timestamp_seconds", "lake"): 1000, ("run_duration_seconds", "lake"): 2.5,
        ("failed", "lake", "a"): 0, ("records", "lake", "a"): 0, ("lastsuccess_timestamp_seconds", "lake", "a"): 1000,
        ("failed", "lake", "b"): 1, ("records", "lake", "b"): 0, ("lastsuccess_timestamp_seconds", "lake", "b"): 0,
    }  # fmt: skip
    now[0] = 2000.0
    metrics.write(run(TopicReport("b", (), 1.0), TopicReport("c", (), 0.0, postponed=True)))
    found = read(path)
    assert found["run_failed", "lake"] == 0
    last = {topic: found["lastsuccess_timestamp_seconds", "lake", topic] for topic in "abc"}
    assert last == {"a": 1000, "b": 2000, "c": 0}
    now[0] = 3000.0
    metrics.write_failure(0.5)
    found = read(path)
    assert (found["run_failed", "lake"], found["run_timestamp_seconds", "lake"]) == (1, 3000)
    assert found["lastsuccess_timestamp_seconds", "lake", "b"] == 2000


def test_what_is_no_such_file_is_one_line_and_is_left(tmp_path: Path) -> None:
    path = tmp_path / "klamm.yaml"
    path.write_text("broker: {}\n")
    with pytest.raises(StorageError, match=r"klamm.yaml: no file of metrics that klamm load has written"):
        LoadMetrics(path, "lake").write(run())
    assert path.read_text() == "broker: {}\n"
    with pytest.raises(StorageError, match="No such file or directory"):
        LoadMetrics(tmp_path / "none" / "load.prom", "lake").write(run())
