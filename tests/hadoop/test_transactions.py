"""Loads and the Spark source read the records of committed transactions, from a log that Apache Kafka has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from klamm.core.broker.server import Broker
from klamm.core.config.settings import load_settings
from klamm.hadoop.load.loader import Loader
from klamm.hadoop.load.report import Status
from klamm.hadoop.source import KlammDataSource
from klammtest.brokers.inprocess import broker_thread
from klammtest.hadoop.load_jobs import coordinates
from klammtest.kafka_transactions import led, recorded, served
from klammtest.logs import codec_table
from klammtest.transactional_logs import end

LOGS = [log for log in recorded() if not log.is_compacted]
TOPIC = LOGS[0].topic


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    coordination = {"plugin": "embedded", "path": str(tmp_path / "coordination.db")}
    with broker_thread(tmp_path / "broker", coordination) as running, served(running, LOGS, codec_table()):
        yield running


def test_they_read_to_the_last_stable_offset_without_aborted_records(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    bootstrap = f"127.0.0.1:{broker.advertised[0].port}"
    expected = sorted((log.partition, offset) for log in LOGS for offset, _, _ in log.committed)
    spark.dataSource.register(KlammDataSource)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "maxRecordsPerPartition": "7"}
    rows = spark.read.format("klamm").options(**options).load().select("partition", "offset").collect()
    assert sorted((row[0], row[1]) for row in rows) == expected
    every = spark.read.format("klamm").options(**options, **{"kafka.isolation.level": "read_uncommitted"}).load()
    assert every.count() == sum(len(log.uncommitted) for log in LOGS)

    sink = {"plugin": "hadoop", "topics": [TOPIC], "path": f"{tmp_path}/lake", "max.offsets.per.task": 7}
    settings = load_settings({"consumer": {"bootstrap.servers": bootstrap}, "sinks": {"lake": sink}})
    with Loader(settings, "lake", Console(stderr=True)) as loader:
        assert loader.run().topics[0].status is Status.LOADED
        assert coordinates(spark, f"{tmp_path}/lake", TOPIC) == expected
        manifest = json.loads((tmp_path / "lake" / TOPIC / "load=000001" / "_offsets.json").read_text())
        assert [manifest["partitions"][str(log.partition)]["to"] for log in LOGS] == [log.ends[1] for log in LOGS]
        assert manifest["isolation_level"] == "read_committed"
        assert loader.run().topics[0].status is Status.EMPTY, "a transaction is open"
        for log in LOGS:
            own = led(broker, log.tp).log
            for producer_id in own.first_offsets_of_transactions:
                end(own, producer_id, commit=True)
        assert loader.run().topics[0].status is Status.LOADED
    more = sorted((log.partition, row[0]) for log in LOGS for row in log.uncommitted if row[0] >= log.ends[1])
    assert coordinates(spark, f"{tmp_path}/lake", TOPIC) == sorted([*expected, *more])
