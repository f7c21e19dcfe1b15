"""Days and hours in a time zone of the user's, over both changes of the clocks, and the proof that they are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.hadoop.lake.files import lake_files
from klamm.hadoop.lake.frame import read_lake
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.verification.verify import verify_topic
from klamm.hadoop.load.spark_writer import FileFormat
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.session import SparkSettings
from klammtest.hadoop.load_jobs import TOPIC, MemoryTopics, flight, job

HOURS = {
    "2012-12-31T22:59:59.999Z": "dt=2012-12-31/hr=23",
    "2012-12-31T23:00:00Z": "dt=2013-01-01/hr=00",
    "2013-03-31T00:59:59Z": "dt=2013-03-31/hr=01",
    "2013-03-31T01:00:00Z": "dt=2013-03-31/hr=03",  # an hour is left out
    "2013-10-27T00:30:00Z": "dt=2013-10-27/hr=02",
    "2013-10-27T01:30:00Z": "dt=2013-10-27/hr=02",  # it comes twice
    "2013-10-27T23:30:00Z": "dt=2013-10-28/hr=00",
}


def test_days_and_hours_are_those_of_the_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    topics.configure(partition_by=("dt", "hr"), timezone="Europe/Berlin")
    for instant in HOURS:
        topics.add(0, flight(1), ts_ms=round(datetime.fromisoformat(instant).timestamp() * 1000))
    topics.add(1, flight(2), ts_ms=None)
    job(spark, topics, str(tmp_path), timezone="Europe/Berlin").run(TOPIC)
    load = tmp_path / TOPIC / "load=000001"
    assert {str(path.parent.relative_to(load)) for path in load.glob("dt=*/hr=*/part-*")} == {
        *HOURS.values(), "dt=__invalid__/hr=__HIVE_DEFAULT_PARTITION__"
    }  # fmt: skip
    rows = spark.read.parquet(f"{tmp_path}/{TOPIC}").where("_timestamp is not null").collect()
    found = {row["_offset"]: f"dt={row['dt']}/hr={row['hr']:02d}" for row in rows}
    assert [found[n] for n in range(len(HOURS))] == [*HOURS.values()]

    files, layout = lake_files(str(tmp_path)), TopicLayout(str(tmp_path), TOPIC)
    assert verify_topic(files, layout).findings == []
    manifest = load / "_offsets.json"
    said = json.loads(manifest.read_text())
    assert said["timezone"] == "Europe/Berlin"
    manifest.write_text(json.dumps({**said, "timezone": "Europe/Athens"}))
    (load / "._offsets.json.crc").unlink(missing_ok=True)
    wrong = [f.text for f in verify_topic(files, layout).findings if f.kind == "files"]
    assert len(wrong) == len({*HOURS.values()})
    assert "have a timestamp of another directory" in wrong[0]

    topics.add(0, flight(3))
    with pytest.raises(LakeError, match="loaded with timezone: Europe/Athens, it is now UTC"):
        job(spark, topics, str(tmp_path)).run(TOPIC)


@contextmanager
def jvm_in(spark: SparkSession, zone: str) -> Iterator[None]:
    zones = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    before = zones.getDefault()
    zones.setDefault(zones.getTimeZone(zone))
    try:
        yield
    finally:
        zones.setDefault(before)


def test_orc_is_written_and_read_in_utc_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's ORC takes timestamps for what the JVM's clock shows: in another zone they are other instants."""
    topics = MemoryTopics()
    for instant in HOURS:
        topics.add(0, flight(1), ts_ms=round(datetime.fromisoformat(instant).timestamp() * 1000))
    orc, parquet = str(tmp_path / "orc"), str(tmp_path / "parquet")
    load = job(spark, topics, orc, files=FileFormat("orc", ("dt",), 2**27))
    with jvm_in(spark, "Europe/Berlin"):
        job(spark, topics, parquet).run(TOPIC)
        with pytest.raises(ConfigError, match=r"format orc: .* which is Europe/Berlin here; start Spark with -Duser"):
            load.run(TOPIC)
    load.run(TOPIC)
    for root in (orc, parquet):
        assert verify_topic(lake_files(root), TopicLayout(root, TOPIC)).findings == []
    expected = spark.read.parquet(f"{parquet}/{TOPIC}").select("_offset", "_timestamp").collect()
    assert sorted(read_lake(spark, orc, TOPIC).select("_offset", "_timestamp").collect()) == sorted(expected)
    with jvm_in(spark, "Europe/Berlin"):
        assert read_lake(spark, parquet, TOPIC).count() == len(HOURS)
        with pytest.raises(ConfigError, match="format orc"):
            read_lake(spark, orc, TOPIC)


def test_a_spark_of_klamms_own_is_in_utc() -> None:
    options = SparkSettings("test", "local[2]", "1g", {}).configuration()["spark.driver.extraJavaOptions"]
    assert "-Duser.timezone=UTC" in options.split()


def test_a_time_zone_that_does_not_exist_is_refused() -> None:
    sink = {"plugin": "hadoop", "topics": ["t"], "path": "lake", "timezone": "Europe/Berlim"}
    with pytest.raises(ConfigError, match=r"sinks.lake.timezone: expected a time zone such as Europe/Berlin"):
        load_settings({"sinks": {"lake": sink}})
