"""The load job on real Spark: what is published, where, and how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.client.errors import DataLossError
from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.hadoop.load.job import TooManyBadError
from klamm.hadoop.load.planning.plan import LoadLimits
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.session import SparkFailedError
from klammtest.hadoop.load_jobs import (
    DAY_MS,
    FLIGHT,
    TOPIC,
    MemoryTopics,
    compactor,
    coordinates,
    everything,
    filled,
    flight,
    job,
    payload,
)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if not p.name.startswith("."))


def test_a_load_publishes_rows_offsets_audit_and_marker_together(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    for number in range(10):
        topics.add(number % 2, flight(number), ts_ms=number % 3 * DAY_MS, key=b"k")
    result = job(spark, topics, str(tmp_path)).run(TOPIC)
    assert result is not None
    assert (result.load, result.rows, result.files) == (1, 10, 3)
    load = tmp_path / TOPIC / "load=000001"
    assert names(load) == [
        "_SUCCESS", "_audit.json", "_job.json", "_offsets.json", "dt=1970-01-01", "dt=1970-01-02", "dt=1970-01-03"
    ]  # fmt: skip
    manifest = json.loads((load / "_offsets.json").read_text())
    ends = {number: (p["from"], p["to"], p["batch"]["leader_epoch"]) for number, p in manifest["partitions"].items()}
    assert ends == {"0": (0, 5, 0), "1": (0, 5, 0)}
    assert (manifest["version"], manifest["topic_id"]) == (2, str(topics.topic_uuid))
    assert (manifest["rows"], manifest["load"], manifest["cluster_id"]) == (10, 1, "c1")
    rows = spark.read.parquet(f"{tmp_path}/{TOPIC}").orderBy("number").collect()
    assert [row["number"] for row in rows] == list(range(10))
    first = rows[4].asDict()
    assert (first["carrier"], first["load"], str(first["dt"]), first["_key"]) == ("UA", 1, "1970-01-02", b"k")
    assert first["_size"] == len(flight(4)) + 1
    assert names(tmp_path / TOPIC / "_staging") == []


def test_the_callers_session_stays_the_active_one(spark: SparkSession, tmp_path: Path) -> None:
    """An application that loads in its own process asks Spark for the active session afterwards."""
    topics, mine = filled(4), spark.newSession()
    root, active = str(tmp_path), spark._get_j_spark_session_class(spark._jvm)
    mine.createDataFrame([(1,)], "n INT")

    def is_mine() -> bool:
        return SparkSession.getActiveSession() is mine and active.getActiveSession().get().equals(mine._jsparkSession)

    try:
        assert is_mine()
        assert job(spark, topics, root).run(TOPIC) is not None
        assert is_mine()
        assert compactor(spark, root).run(TOPIC) is not None
        assert is_mine()
        topics.add(0, b"bad")
        with pytest.raises(SparkFailedError):
            job(spark, topics, root).run(TOPIC)
        assert is_mine()
    finally:
        spark.createDataFrame([(1,)], "n INT")


def test_the_counts_are_of_the_rows_written_by_partition_and_window(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    for number in range(6):
        topics.add(0, flight(number), ts_ms=number * 300_000)
    topics.add(1, flight(7), ts_ms=None)
    job(spark, topics, str(tmp_path)).run(TOPIC)
    audit = json.loads((tmp_path / TOPIC / "load=000001" / "_audit.json").read_text())
    size = len(flight(0))
    assert (audit["tier"], audit["owner"], audit["window_ms"]) == ("hadoop", "lake", 600_000)
    assert audit["ranges"] == [
        {"partition": 0, "from": 0, "to": 6, "lost": False,
         "windows": [[0, 2, 2 * size], [600_000, 2, 2 * size], [1_200_000, 2, 2 * size]]},
        {"partition": 1, "from": 0, "to": 1, "lost": False, "windows": [[-1, 1, size]]},
    ]  # fmt: skip


def test_increments_tile_and_an_empty_one_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    load = job(spark, topics, str(tmp_path))
    assert load.run(TOPIC) is None
    for _ in range(3):
        for number in range(5):
            topics.add(number % 2, flight(number))
        assert load.run(TOPIC) is not None
        assert load.run(TOPIC) is None
    assert coordinates(spark, str(tmp_path)) == everything(topics)
    assert names(tmp_path / TOPIC) == ["_staging", "load=000001", "load=000002", "load=000003"]


def test_a_partition_without_news_keeps_its_place(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    load = job(spark, topics, str(tmp_path))
    for partition in (0, 1, 0, 1):
        topics.add(partition, flight(partition))
        load.run(TOPIC)
    topics.partitions = 3
    topics.add(2, flight(9))
    load.run(TOPIC)
    assert coordinates(spark, str(tmp_path)) == everything(topics)


def test_a_load_takes_no_more_offsets_than_its_limit(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    for number in range(10):
        topics.add(number % 2, flight(number))
    load = job(spark, topics, str(tmp_path))
    loads = []
    while (result := load.run(TOPIC, LoadLimits(records=4))) is not None:
        loads.append((result.rows, result.left))
    assert loads == [(4, 6), (4, 2), (2, 0)]
    assert coordinates(spark, str(tmp_path)) == everything(topics)


def test_late_records_go_to_the_directory_of_their_own_day(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    load = job(spark, topics, str(tmp_path))
    topics.add(0, flight(1), ts_ms=5 * DAY_MS)
    load.run(TOPIC)
    topics.add(0, flight(2), ts_ms=DAY_MS)
    load.run(TOPIC)
    assert "dt=1970-01-02" in names(tmp_path / TOPIC / "load=000002")
    day = spark.read.parquet(f"{tmp_path}/{TOPIC}").where("dt = '1970-01-02'").collect()
    assert [(row["number"], row["load"]) for row in day] == [(2, 2)]


def test_records_without_a_usable_timestamp_are_invalid_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.configure(min_us=DAY_MS * 1000, max_us=3 * DAY_MS * 1000)
    for stamp in (None, 0, DAY_MS - 1, DAY_MS, 3 * DAY_MS, 3 * DAY_MS + 1):
        topics.add(0, flight(1), ts_ms=stamp)
    job(spark, topics, str(tmp_path)).run(TOPIC)
    found = {row["dt"]: row["n"] for row in spark.sql(
        f"select dt, count(*) n from parquet.`{tmp_path}/{TOPIC}` group by dt").collect()}  # fmt: skip
    assert found == {"__invalid__": 4, "1970-01-02": 1, "1970-01-04": 1}


def test_directories_by_hour(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.configure(partition_by=("dt", "hr"))
    for hour in (0, 0, 5, 23):
        topics.add(0, flight(hour), ts_ms=hour * 3_600_000)
    topics.add(1, flight(99), ts_ms=None)
    job(spark, topics, str(tmp_path)).run(TOPIC)
    assert names(tmp_path / TOPIC / "load=000001" / "dt=1970-01-01") == ["hr=00", "hr=05", "hr=23"]
    rows = spark.read.parquet(f"{tmp_path}/{TOPIC}").orderBy("number").collect()
    assert [row["hr"] for row in rows] == [0, 0, 5, 23, None]


def test_a_quarter_of_days_is_one_file_per_day(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics(partitions=6)
    values = [flight(number) for number in range(50)]
    for day in range(90):
        for number in range(20):
            topics.records.append({
                "key": None, "value": values[number], "topic": TOPIC, "partition": number % 6,
                "offset": (day * 20 + number) // 6, "timestamp": (day * DAY_MS + number) * 1000, "timestampType": 0,
            })  # fmt: skip
    result = job(spark, topics, str(tmp_path)).run(TOPIC)
    assert result is not None
    assert (result.rows, result.files) == (1800, 90)


def test_a_directory_beyond_the_target_size_is_several_files(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    for number in range(3000):
        topics.add(number % 2, payload(1, FLIGHT, {"number": number, "carrier": f"{number * 7919:x}" * 20}))
    result = job(spark, topics, str(tmp_path), target_size=20_000).run(TOPIC)
    assert result is not None
    assert 1 < result.files < 20
    assert coordinates(spark, str(tmp_path)) == everything(topics)


def test_tombstones_are_rows_of_nulls(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.add(0, None, key=b"gone")
    topics.add(0, flight(1))
    job(spark, topics, str(tmp_path)).run(TOPIC)
    rows = spark.read.parquet(f"{tmp_path}/{TOPIC}").orderBy("_offset").collect()
    assert [(row["number"], row["_key"], row["_size"]) for row in rows] == [
        (None, b"gone", 4),
        (1, None, len(flight(1))),
    ]


def test_values_without_a_schema_are_bytes(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.configure(reader=None, writers={}, envelope="")
    topics.add(0, b"\x01raw")
    job(spark, topics, str(tmp_path)).run(TOPIC)
    assert spark.read.parquet(f"{tmp_path}/{TOPIC}").collect()[0]["value"] == b"\x01raw"


NEWER = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "operator", "type": ["null", "string"], "default": None, "aliases": ["carrier"]},
        {"name": "seats", "type": "int", "default": -1},
    ],
}


def test_each_load_follows_its_readers_schema_whatever_wrote_the_record(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    load = job(spark, topics, str(tmp_path))
    topics.add(0, flight(1))
    load.run(TOPIC)
    writers = {SchemaKey(schema_id=1): json.dumps(FLIGHT), SchemaKey(schema_id=2): json.dumps(NEWER)}
    topics.configure(reader=json.dumps(NEWER), writers=writers)
    topics.add(0, flight(2, "DL"))
    topics.add(0, payload(2, NEWER, {"number": 2**40, "operator": None, "seats": 180}))
    load.run(TOPIC)
    rows = spark.read.parquet(f"{tmp_path}/{TOPIC}/load=000002").orderBy("_offset").collect()
    assert [(r["number"], r["operator"], r["seats"]) for r in rows] == [(2, "DL", -1), (2**40, None, 180)]
    schema = "number LONG, operator STRING, seats INT, carrier STRING, _offset LONG"
    both = spark.read.schema(schema).parquet(f"{tmp_path}/{TOPIC}").orderBy("_offset").collect()
    assert [(r["number"], r["carrier"], r["operator"]) for r in both] == [
        (1, "UA", None), (2, None, "DL"), (2**40, None, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (flight(1)[:-1], "unexpected end of buffer"),
        (b"\0\0\0\0\x09" + flight(1)[5:], "no schema is registered as id 9"),
        (b"\0\0", "too short for the confluent envelope"),
        (b"", "too short for the confluent envelope"),
    ],
)
def test_a_value_that_cannot_be_read_ends_the_load_and_is_named(
    spark: SparkSession, tmp_path: Path, value: bytes, why: str
) -> None:
    topics = MemoryTopics()
    for number in range(3):
        topics.add(1, flight(number))
    topics.add(1, value)
    with pytest.raises(SparkFailedError) as caught:
        job(spark, topics, str(tmp_path)).run(TOPIC)
    assert f"topic {TOPIC} partition 1 offset 3: " in str(caught.value)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names(tmp_path / TOPIC) == ["_staging"]
    assert names(tmp_path / TOPIC / "_staging") == []


def test_bad_values_can_be_set_aside_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.configure(quarantine=True)
    topics.add(0, flight(1))
    topics.add(0, b"\0\0\0\0\x09bad", key=b"k")
    topics.add(1, flight(2)[:-1])
    result = job(spark, topics, str(tmp_path)).run(TOPIC)
    assert result is not None
    assert result.rows == 3
    assert coordinates(spark, str(tmp_path)) == [(0, 0)]
    bad = spark.read.parquet(f"{tmp_path}/{TOPIC}/load=000001/_bad").orderBy("_partition").collect()
    assert [(r["_partition"], r["_offset"], r["_value"], r["_key"]) for r in bad] == [
        (0, 1, b"\0\0\0\0\x09bad", b"k"), (1, 0, flight(2)[:-1], None)
    ]  # fmt: skip
    assert "id 9" in bad[0]["_error"]
    assert counted(tmp_path) == {0: 2, 1: 1}, "a record that is set aside is counted as loaded: nothing is missing"


def counted(root: Path) -> dict[int, int]:
    """Returns the records that the first load's counts for the audit have, by partition."""
    ranges = json.loads((root / TOPIC / "load=000001" / "_audit.json").read_text())["ranges"]
    return {held["partition"]: sum(records for _, records, _ in held["windows"]) for held in ranges}


def test_more_bad_values_than_their_share_end_the_load(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that cannot be opened counts by its offsets."""
    topics = MemoryTopics()
    topics.configure(quarantine=True)
    for number in range(8):
        topics.add(0, flight(number))
    topics.add(1, b"\0\0\0\0\x09bad")
    topics.add(1, b"bytes of a batch")
    topics.records[-1] |= {"error": "it does not decompress", "endOffset": 4}
    with pytest.raises(TooManyBadError) as caught:
        job(spark, topics, str(tmp_path), max_bad_share=0.33).run(TOPIC)
    assert str(caught.value) == (
        "topic flights: 4 of 12 records cannot be read, which is more than max.bad.share: 0.33 allows; the first is in "
        "partition 1 offset 0: no schema is registered as id 9; nothing is loaded"
    )
    assert names(tmp_path / TOPIC) == ["_staging"]
    result = job(spark, topics, str(tmp_path), max_bad_share=0.34).run(TOPIC)
    assert result is not None
    assert (result.rows, result.quarantined) == (9, 2)
    manifest = json.loads((tmp_path / TOPIC / "load=000001" / "_offsets.json").read_text())
    assert (manifest["quarantined"], len(manifest["unopened"])) == (1, 1)
    assert counted(tmp_path) == {0: 8, 1: 1}, "nobody knows the records of the batch: they are missing"


def test_a_field_that_the_lake_has_itself_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.configure(reader=json.dumps({"type": "record", "name": "R", "fields": [{"name": "DT", "type": "int"}]}))
    topics.add(0, flight(1))
    with pytest.raises(SchemaError, match="field DT: the lake has a column dt of its own"):
        job(spark, topics, str(tmp_path)).run(TOPIC)


def test_a_topic_made_anew_and_offsets_that_are_gone_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    load = job(spark, topics, str(tmp_path))
    for number in range(4):
        topics.add(0, flight(number))
    load.run(TOPIC)
    topics.started = {0: 6}
    with pytest.raises(DataLossError, match="retention deleted"):
        load.run(TOPIC)
    topics.started, topics.records = {}, topics.records[:1]
    with pytest.raises(DataLossError, match="deleted and created again, or its log was cut"):
        load.run(TOPIC)
    topics.cluster = "c2"
    with pytest.raises(LakeError, match="loaded from cluster 'c1'"):
        load.run(TOPIC)


def test_offsets_that_are_gone_can_be_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics(partitions=1)
    topics.add(0, flight(0))
    job(spark, topics, str(tmp_path)).run(TOPIC)
    topics.started = {0: 5}
    topics.add(0, flight(5))
    result = job(spark, topics, str(tmp_path), reset="earliest").run(TOPIC)
    assert result is not None
    assert [(r.start, r.end) for r in result.ranges] == [(1, 6)]
    assert coordinates(spark, str(tmp_path)) == [(0, 0), (0, 5)]


def test_a_load_directory_that_no_load_wrote_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.add(0, flight(0))
    (tmp_path / TOPIC / "load=000007").mkdir(parents=True)
    with pytest.raises(LakeError, match="no load wrote it"):
        job(spark, topics, str(tmp_path)).run(TOPIC)
