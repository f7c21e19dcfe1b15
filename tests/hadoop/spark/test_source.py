"""The `klamm` source on a real broker."""

from __future__ import annotations

import datetime as dt
import json
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from klamm.core.client.producer.producer import Producer
from klamm.hadoop.session import reason_of
from klamm.hadoop.source import KlammDataSource
from klammtest.broker import RunningBroker, running_broker
from klammtest.ports import free_port

START_MS = 1_357_016_400_000
ROWS = 3000
COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[RunningBroker]:
    topics = {"t": {"partitions": 3, "config": {"retention.ms": -1}}, "empty": {"partitions": 1}}
    keys = {"metrics.port": metrics_port}
    with running_broker(tmp_path_factory.mktemp("broker"), topics=topics, broker=keys) as running:
        # A Fetch gets whole batches: small ones, so that a filter leaves some out.
        batches = {"compression.type": "zstd", "linger.ms": 1, "batch.size": 1024}
        with Producer({"producer": {"bootstrap.servers": running.bootstrap, **batches}}) as producer:
            for number in range(ROWS):
                producer.send(
                    "t", str(number).encode(), key=b"k" if number % 2 else None, partition=number % 3,
                    timestamp_ms=START_MS + number, headers=(("h", b"\x01"), ("n", None)),
                )  # fmt: skip
        yield running


def read(spark: SparkSession, broker: RunningBroker, **options: str) -> DataFrame:
    spark.dataSource.register(KlammDataSource)
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**options).load()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.select("value").collect())


def test_columns_and_rows_are_those_of_sparks_kafka_source(spark: SparkSession, broker: RunningBroker) -> None:
    frame = read(spark, broker, subscribe="t", maxRecordsPerPartition="400")
    assert ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in frame.schema) == COLUMNS
    rows = frame.orderBy("timestamp").collect()
    assert len(rows) == ROWS
    assert [int(row["value"]) for row in rows] == list(range(ROWS))
    row = rows[1001]
    assert (row["topic"], row["partition"], row["offset"]) == ("t", 1001 % 3, 1001 // 3)
    assert (row["key"], row["timestampType"]) == (b"k", 0)
    assert row["timestamp"] == dt.datetime.fromtimestamp((START_MS + 1001) / 1000)  # noqa: DTZ006 - Spark's Row has no zone
    assert rows[1000]["key"] is None
    assert frame.rdd.getNumPartitions() == 9


def test_headers_come_when_asked_for(spark: SparkSession, broker: RunningBroker) -> None:
    frame = read(spark, broker, subscribe="t", includeHeaders="true", maxOffsetsPerTrigger="10")
    found = {tuple((h["key"], h["value"]) for h in row["headers"]) for row in frame.collect()}
    assert found == {(("h", b"\x01"), ("n", None))}
    assert frame.count() == 10


def test_offsets_are_taken_as_given(spark: SparkSession, broker: RunningBroker) -> None:
    frame = read(
        spark, broker, assign='{"t":[0,2]}',
        startingOffsets='{"t":{"0":10,"2":-2}}', endingOffsets='{"t":{"0":20,"2":1}}',
    )  # fmt: skip
    assert values(frame) == sorted([*range(30, 60, 3), 2])


def test_a_batch_ends_before_the_first_record_of_its_ending_time(spark: SparkSession, broker: RunningBroker) -> None:
    assert values(read(spark, broker, subscribe="t", endingTimestamp=str(START_MS + 300))) == list(range(300))
    times = {"0": START_MS + 30, "1": START_MS + 60, "2": START_MS + ROWS}  # no record is as late as the last one
    frame = read(spark, broker, subscribe="t", endingOffsetsByTimestamp=json.dumps({"t": times}))
    assert values(frame) == sorted([*range(0, 30, 3), *range(1, 60, 3), *range(2, ROWS, 3)])


def test_min_partitions_are_spark_partitions(spark: SparkSession, broker: RunningBroker) -> None:
    assert read(spark, broker, subscribe="t").rdd.getNumPartitions() == 3
    frame = read(spark, broker, subscribe="t", minPartitions="12")
    assert frame.rdd.getNumPartitions() == 12
    assert values(frame) == list(range(ROWS))


def test_an_empty_topic_has_columns_and_no_rows(spark: SparkSession, broker: RunningBroker) -> None:
    assert read(spark, broker, subscribe="empty").collect() == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"subscribe": "nowhere"}, "there is no topic 'nowhere'"),
        ({"assign": '{"t":[7]}'}, "there is no partition 7"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":0}}'}, "does not name t-1"),
        ({"subscribe": "t", "endingOffsets": '{"t":{"0":0,"1":0,"2":99999}}'}, "the log has 0 to 1000"),
        ({"subscribe": "t", "minPartition": "3"}, "did you mean 'minPartitions'"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(
    spark: SparkSession, broker: RunningBroker, options: dict[str, str], why: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has several kinds for a failing Python source
        read(spark, broker, **options).collect()
    assert why in reason_of(caught.value)
    assert "\n" not in reason_of(caught.value)


def test_sql_over_a_topic(spark: SparkSession, broker: RunningBroker) -> None:
    read(spark, broker, subscribe="t").createOrReplaceTempView("t")
    found = spark.sql(
        "select partition, count(*) n, max(offset) m from t group by partition order by partition"
    ).collect()
    assert [tuple(row) for row in found] == [(0, 1000, 999), (1, 1000, 999), (2, 1000, 999)]


def test_filters_are_applied_before_anything_is_fetched(spark: SparkSession, broker: RunningBroker) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, broker, subscribe="t").where("partition = 1 and offset >= 10 and offset < 30")
        assert frame.rdd.getNumPartitions() == 1
        assert values(frame) == list(range(31, 91, 3))
        late = dt.datetime.fromtimestamp((START_MS + ROWS - 5) / 1000, dt.UTC)
        assert values(read(spark, broker, subscribe="t").where(col("timestamp") >= late)) == list(range(ROWS - 5, ROWS))
        assert read(spark, broker, subscribe="t").count() == ROWS
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert read(spark, broker, subscribe="t").where("partition = 1").count() == ROWS // 3


def bytes_given(metrics_port: int) -> float:
    """Returns the bytes of `t` that the broker has given to readers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    name = "klamm_server_brokertopicmetrics_bytesout_total"
    return sum(s.value for family in families for s in family.samples if s.name == name and s.labels["topic"] == "t")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("partition = 1", 1000),
        ("offset >= 950", 150),
        (f"timestamp >= timestamp_millis({START_MS + ROWS - 30})", 30),
    ],
)
def test_the_broker_gives_less_where_filters_are_pushed_down(
    spark: SparkSession, broker: RunningBroker, metrics_port: int, where: str, rows: int
) -> None:
    """The broker itself counts the bytes. The rows are the same with and without the setting."""
    given = []
    for pushed in ("false", "true"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        try:
            before = bytes_given(metrics_port)
            assert read(spark, broker, subscribe="t").where(where).count() == rows
            given.append(bytes_given(metrics_port) - before)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    everything, part = given
    assert 0 < part < everything / 2
