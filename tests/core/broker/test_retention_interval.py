"""`log.retention.check.interval.ms` alone says how often retention looks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from klamm.core.broker.server import Broker
from klamm.core.log.manager import LogManager
from klammtest.brokers.inprocess import broker_thread
from klammtest.guarantees import guarantee

BOUND_S = 60.0
ROUNDS = 5


def retain_with_every_round(patch: pytest.MonkeyPatch) -> None:
    maintain = LogManager.run_maintenance

    def both(logs: LogManager, now_ms: int) -> None:
        maintain(logs, now_ms)
        logs.apply_retention(now_ms)

    patch.setattr(LogManager, "run_maintenance", both)


class Rounds:
    """Counts the rounds of each kind; `enough` is set by the last one wanted."""

    def __init__(self, patch: pytest.MonkeyPatch, wanted: str) -> None:
        self.counts = {"run_maintenance": 0, "apply_retention": 0}
        self.enough = threading.Event()
        for name in self.counts:
            self._count(patch, name, name == wanted)

    def _count(self, patch: pytest.MonkeyPatch, name: str, wanted: bool) -> None:
        called = getattr(LogManager, name)

        def count(logs: LogManager, now_ms: int) -> None:
            called(logs, now_ms)
            self.counts[name] += 1
            if wanted and self.counts[name] >= ROUNDS:
                self.enough.set()

        patch.setattr(LogManager, name, count)


def run(folder: Path, rounds: Rounds, **intervals: int) -> Broker:
    coordination = {"plugin": "embedded", "path": str(folder / "coordination.db")}
    keys = {f"log.{name.replace('_', '.')}.interval.ms": value for name, value in intervals.items()}
    with broker_thread(folder, coordination, keys) as broker:
        assert rounds.enough.wait(BOUND_S)
    return broker


@guarantee("D17", "retention looks no oftener than its interval says", plant=retain_with_every_round)
def test_retention_has_its_own_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, "run_maintenance")
    run(tmp_path, rounds, flush_scheduler=20, retention_check=86_400_000)
    assert rounds.counts["apply_retention"] == 0


def test_retention_looks_at_its_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(monkeypatch, "apply_retention")
    run(tmp_path, rounds, flush_scheduler=86_400_000, retention_check=20)
    assert rounds.counts["run_maintenance"] == 0
