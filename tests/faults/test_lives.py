"""What a campaign against real brokers keeps and counts when it has found something."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.core.records.partition import TopicPartition
from klammtest.history.checking import Anomaly, Verdict

sys.path.insert(0, str(Path(__file__).parent))

from cluster import lives
from cluster.lives import LivesScene
from harness import Kept, Result, Run

TP = TopicPartition("t", 0)


class Scene(LivesScene):
    partition_count, rate = 1, 1.0

    def __init__(self, folder: Path, log: str) -> None:
        run = Run("named", 7, quick=True, plant=False, folder=folder, kept=Kept(folder))
        super().__init__(SimpleNamespace(), Result(), run, SimpleNamespace())  # type: ignore[arg-type]
        output = folder / "broker.out"
        output.write_text(log)
        self.broker: Any = SimpleNamespace(output=output, log=output.read_text)

    @property
    def brokers(self) -> Mapping[str, Any]:
        return {"broker-0": self.broker}


def test_a_traceback_is_counted_once_and_the_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "EVIDENCE", tmp_path / "evidence")
    scene = Scene(tmp_path, "one line\nTraceback (most recent call last)\n")
    scene.check_brokers("0-1")
    scene.check_brokers("2-3")
    assert len(scene.total.problems) == 1
    scene.broker.output.write_text("the next life")
    scene.keep_evidence(["a record was not delivered"])
    kept = tmp_path / "evidence" / "named-7"
    assert (kept / "clients.out").read_text() == "a record was not delivered\n"
    assert (kept / "broker-0.out").read_text() == "the next life"
    assert str(kept) in scene.total.problems[-1]


def test_nothing_is_kept_of_a_campaign_that_found_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "EVIDENCE", tmp_path / "evidence")
    Scene(tmp_path, "").keep_evidence(["a warning"])
    assert not (tmp_path / "evidence").exists()


def test_each_kind_of_anomaly_is_counted(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "")
    kinds = ("lost", "differs", "duplicated", "begins")
    scene.count("0-1", Verdict(5, 0, [Anomaly(kind, TP, "…") for kind in kinds]))
    total = scene.total
    assert (total.acknowledged, total.lost, total.corrupt_served, total.problem_count) == (5, 1, 1, 4)
    assert total.figures == {"doubled": 1, "reordered": 0, "begins": 1}
