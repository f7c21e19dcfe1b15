"""Registries that write at once, while the topic's leader is killed, and stopped past its session."""

from __future__ import annotations

from pathlib import Path

from klammtest.registry_writers import register_at_once
from klammtest.replicated.cluster import SESSION_MS, running_cluster


def test_two_registries_write_at_once_while_leaders_fail(tmp_path: Path) -> None:
    embedded = {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}
    with running_cluster(tmp_path, embedded) as cluster:
        outcome = register_at_once(cluster, 60, 1.5 * SESSION_MS / 1000)
    assert len(outcome.answered) == 120
    assert outcome.overtaken > 0
