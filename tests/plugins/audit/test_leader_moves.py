"""The broker tier in a cluster: the next leader counts on where the last one stopped."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from klamm import Producer
from klamm.core.cli.main import app
from klamm.plugins.audit.windows import parse_instant
from klammtest.brokers.three import ThreeBrokers, three_brokers
from klammtest.requests import metadata
from klammtest.waiting import eventually

START = parse_instant("2013-01-01")
MINUTE = 60_000
AUDIT = {"plugin": "klamm", "topics": ["t"], "publish.interval.ms": 500, "broker.interval.ms": 50}


def leader(cluster: ThreeBrokers) -> int:
    with cluster.wire(0) as wire:
        return int(metadata(wire, ["t"]).topics[0].partitions[0].leader_id)


def test_counts_are_complete_when_a_leader_is_killed(tmp_path: Path) -> None:
    with three_brokers(tmp_path, "topic", audit=AUDIT, replicas_by_default=3) as cluster:
        with cluster.wire(0) as wire:
            eventually(lambda: metadata(wire, ["__klamm_audit"]).topics[0].partitions, "the brokers make the topic")
        cluster.create_topic("t", 2, replicas=3)
        keys = {"bootstrap.servers": cluster.bootstrap}
        config = tmp_path / "klamm.yaml"
        config.write_text(yaml.safe_dump({"producer": keys, "consumer": keys, "audit": AUDIT}))
        for begin in (0, 100):
            with Producer(config) as producer:
                for n in range(begin, begin + 100):
                    producer.send("t", b"value", key=str(n).encode(), timestamp_ms=START + n * MINUTE)
            if begin == 0:
                victim = leader(cluster)
                cluster.brokers[victim].kill()
                cluster.brokers[victim].start()
        command = ["audit", "--config", str(config), "--json", "--wait", "120"]
        result = CliRunner().invoke(app, command)
        [counted] = json.loads(result.stdout)["topics"]
        assert (counted["problems"], counted["complete"], counted["lowest"]) == ([], True, 1.0)
        assert counted["watermark_ms"] == START + 200 * MINUTE
