"""A run takes no more than it was told to, publishes that, and the next one goes on."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from klamm.core.config.settings import load_settings
from klamm.hadoop.load.loader import Loader
from klamm.hadoop.load.report import Status, TopicReport
from klammtest.brokers.served import KEPT, served
from klammtest.hadoop.load_jobs import coordinates

HOUR_S = 3600.0


def test_a_run_is_bounded_by_records_bytes_and_time(spark: SparkSession, tmp_path: Path) -> None:
    with served(tmp_path) as at:
        at.produce(range(200))
        of_bytes = at.load(**{"max.bytes": "600"})
        rows = int(of_bytes.partition(" rows=")[2].partition(" ")[0])
        assert 10 <= rows <= 60  # of batches of 10 records, each of about 160 bytes
        assert f" left={200 - rows} " in of_bytes
        loads = at.load(**{"max.duration.ms": 3_600_000, "max.offsets.per.task": 30, "max.records": 100}).splitlines()
        assert [load.partition(" rows=")[2].partition(" ")[0] for load in loads] == ["30", "70"]
        assert f" left={100 - rows} " in loads[-1]

        at.client.create_topics({"u": KEPT})
        sink = {"plugin": "hadoop", "topics": ["t", "u"], "path": f"{tmp_path}/lake", "max.duration.ms": 1000}
        settings = load_settings({"consumer": {"bootstrap.servers": at.bootstrap}, "sinks": {"lake": sink}})
        now = [0.0]

        def an_hour(_: TopicReport) -> None:
            now[0] += HOUR_S

        with Loader(settings, "lake", Console(stderr=True), monotonic_s=lambda: now[0]) as loader:
            late = loader.run(tell=an_hour)
            assert [(t.topic, t.status) for t in late.topics] == [("u", Status.EMPTY), ("t", Status.POSTPONED)]
            assert (late.status, late.failure()) == (Status.POSTPONED, None)
            assert late.topics[1].to_json()["more"]
            whole = loader.run()
        assert [(t.topic, t.status) for t in whole.topics] == [("u", Status.EMPTY), ("t", Status.LOADED)]
        assert coordinates(spark, f"{tmp_path}/lake", "t") == [(0, n) for n in range(200)]
