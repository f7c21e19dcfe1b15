"""A leader that does not know the high watermark yet (KIP-207): it leads, and the end alone is unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from klamm import Producer
from klamm.core.config.settings import load_settings
from klamm.core.records.partition import TopicPartition
from klammtest.replicated.cluster import SESSION_MS, running_cluster
from klammtest.waiting import within

Klamm = Callable[..., Any]
TP = TopicPartition("idem", 0)


def test_the_leader_is_shown_and_what_its_end_waits_for(klamm: Klamm, tmp_path: Path) -> None:
    tree = {"plugin": "embedded", "path": str(tmp_path / "tree.db"), "session.timeout.ms": SESSION_MS}
    with running_cluster(tmp_path, tree) as cluster:
        cluster.create_topic(TP.topic, 1)
        assert cluster.await_in_sync(TP.topic, 1)
        state = cluster.state(TP)
        assert state is not None
        leader = state.leader
        alone = cluster.brokers[leader].bootstrap
        cluster.kill(set(cluster.ids) - {leader})
        assert within(lambda: cluster.registered() == {leader}, 60)
        settings = load_settings({"producer": {"bootstrap.servers": alone, "acks": 1, "enable.idempotence": False}})
        with Producer(settings) as producer:
            producer.send(TP.topic, b"x", partition=0)
        epoch = state.leader_epoch
        cluster.kill([leader])
        cluster.start([leader])

        def leads_alone() -> bool:
            now = cluster.state(TP)
            return now is not None and (now.leader, now.isr) == (leader, (leader,)) and now.leader_epoch > epoch

        assert within(leads_alone, 60)
        describe = lambda: klamm("topics", "describe", TP.topic, "--bootstrap", alone)  # noqa: E731
        assert within(lambda: describe().out.splitlines()[1].split()[1] == str(leader), 60), "its broker knows it, too"
        done = describe()
        row = done.out.splitlines()[1].split()
        assert (done.status, row[:2], row[3:]) == (0, ["0", str(leader)], [str(leader), "0", "-"])
        words = "klamm: idem-0: the end is not known until min.insync.replicas (2) are in sync again (1 is)\n"
        assert done.err == words
