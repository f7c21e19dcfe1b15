"""A real ZooKeeper and a real etcd get an older copy of their data, while brokers are stopped and while they run: no
acknowledged record is lost (docs/replication.md, R13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from klammtest.etcd import needs_etcd
from klammtest.replicated.restores import RestoredCluster, restored_cluster, server_backup

SESSION_MS = 10_000
"""The other brokers start within twice as long after the first one, or it has been elected, and they must not join."""


@pytest.mark.parametrize("kind", ["zookeeper", pytest.param("etcd", marks=needs_etcd)])
def test_an_older_copy_of_a_server_s_data_loses_no_record(tmp_path: Path, kind: str) -> None:
    """The copy says that all are in sync; one of them, which leads a partition by the copy, has died since."""
    with server_backup(kind, tmp_path, SESSION_MS) as backup, restored_cluster(tmp_path, backup) as it:
        brokers_stopped(it)
        brokers_running(it)


def brokers_stopped(it: RestoredCluster) -> None:
    it.create_topic("t")
    it.append(b"before", topic="t")
    it.backup.make()
    others = it.lose(2, "t")
    it.append(b"after", topic="t")
    it.cluster.kill()
    it.restore()
    it.cluster.start([2])
    it.cluster.start(others)
    it.in_sync(0, 1, 2, topic="t")
    it.has_all("t")
    assert it.noticed(*others)


def brokers_running(it: RestoredCluster) -> None:
    """With two topics: one has a minimum of one in-sync replica, and one is not in the copy."""
    it.create_topic("u", minimum=1)
    it.append(b"before", topic="u")
    it.backup.make()
    it.create_topic("later")
    it.append(b"kept", topic="later")
    others = it.lose(2, "t", "u")
    it.append(b"after", topic="t")
    it.append(b"after", topic="u")
    it.restore()
    it.cluster.start([2])
    for topic in ("t", "u"):
        it.in_sync(0, 1, 2, topic=topic)
        it.append(b"later", topic=topic)
        it.has_all(topic)
    for number in others:
        logs = list(it.cluster.brokers[number].log_dir.glob("later-*-stray/*.log"))
        assert len(logs) == 3, "a topic that the copy lacks was not deleted"
        assert all(b"kept" in log.read_bytes() for log in logs)
