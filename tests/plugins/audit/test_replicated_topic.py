"""The audit topic of a cluster whose brokers start one after the other."""

from __future__ import annotations

from pathlib import Path

from klammtest.broker import running_broker
from klammtest.requests import metadata
from klammtest.waiting import eventually
from klammtest.wire import WireClient


def test_the_audit_topic_waits_for_as_many_brokers_as_it_shall_have_replicas(tmp_path: Path) -> None:
    coordination = {"plugin": "embedded", "path": str(tmp_path / "tree.db")}
    audit = {"plugin": "klamm", "broker.interval.ms": 10}

    def config(broker_id: int) -> dict[str, int]:
        return {"broker.id": broker_id, "default.replication.factor": 2}

    with running_broker(tmp_path / "0", coordination=coordination, broker=config(0), audit=audit) as first:
        assert "the audit topic is created later: INVALID_REPLICATION_FACTOR" in first.log()
        with (
            running_broker(tmp_path / "1", coordination=coordination, broker=config(1), audit=audit),
            WireClient(first.bootstrap) as wire,
        ):

            def replicas() -> list[int]:
                [topic] = metadata(wire, ["__klamm_audit"]).topics
                return sorted(node for partition in topic.partitions for node in partition.replica_nodes)

            eventually(lambda: replicas() == [0, 1], "the audit topic has two replicas")
