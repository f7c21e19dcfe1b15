"""Days and hours in a time zone of the user's, over both changes of the clocks, and the proof that they are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.hadoop.lake.files import lake_files
from klamm.hadoop.lake.frame import read_lake
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.listing import loads_of
from klamm.hadoop.lake.local_time import day_start, micros
from klamm.hadoop.lake.verification.findings import Bounds
from klamm.hadoop.lake.verification.verify import verify_topic
from klamm.hadoop.load.spark_writer import FileFormat
from klamm.hadoop.publishing.interface import LakeError
from klamm.hadoop.session import SparkSettings
from klammtest.hadoop.load_jobs import TOPIC, MemoryTopics, compactor, flight, job

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


FIRST, LAST = micros(datetime(1, 1, 1, tzinfo=UTC)), micros(datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
ENDS = {  # by zone: the day and hour of the first and last instant, of a day in 999 and of the millisecond before 1970
    "Asia/Tokyo": ("dt=0001-01-01/hr=09", "dt=10000-01-01/hr=08", "dt=0999-12-31/hr=14", "dt=1970-01-01/hr=08"),
    "America/New_York": ("dt=0000-12-31/hr=19", "dt=9999-12-31/hr=18", "dt=0999-12-31/hr=00", "dt=1969-12-31/hr=18"),
    "UTC": ("dt=0001-01-01/hr=00", "dt=9999-12-31/hr=23", "dt=0999-12-31/hr=05", "dt=1969-12-31/hr=23"),
}


@pytest.mark.parametrize("zone", ENDS)
def test_the_first_and_last_days_of_all(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    """A local time may lie in the year 0 or 10000: the load, the listing and the proof agree on its directory."""
    topics = MemoryTopics()
    topics.configure(partition_by=("dt", "hr"), timezone=zone, min_us=FIRST, max_us=LAST)
    instants = (FIRST, LAST, micros(datetime(999, 12, 31, 5, 30, tzinfo=UTC)), -1000)
    for instant in instants:
        topics.add(0, flight(1), ts_ms=instant // 1000)
    job(spark, topics, str(tmp_path), timezone=zone).run(TOPIC)
    load = tmp_path / TOPIC / "load=000001"
    assert {str(path.parent.relative_to(load)) for path in load.glob("dt=*/hr=*/part-*")} == {*ENDS[zone]}
    files, layout = lake_files(str(tmp_path)), TopicLayout(str(tmp_path), TOPIC)
    assert verify_topic(files, layout, Bounds(FIRST, LAST)).findings == []
    [entry] = loads_of(files, layout)
    assert {name.rpartition("/")[0] for name in entry.readable} == {*ENDS[zone]}
    rows = read_lake(spark, str(tmp_path), TOPIC).select("_offset", "dt", "hr").collect()
    assert {row["_offset"]: f"dt={row['dt']}/hr={row['hr']}" for row in rows} == dict(enumerate(ENDS[zone]))
    compactor(spark, str(tmp_path)).run(TOPIC)
    assert verify_topic(files, layout, Bounds(FIRST, LAST)).findings == []


@pytest.mark.parametrize(
    ("day", "days"), [("1970-01-01", 0), ("1969-12-31", -1), ("0000-12-31", -719_163), ("10000-01-01", 2_932_897)]
)
def test_a_day_has_any_year(day: str, days: int) -> None:
    assert day_start(day) == days * 86_400_000_000
    assert day_start(day.replace("-01", "-13").replace("-12", "-13")) is None


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
