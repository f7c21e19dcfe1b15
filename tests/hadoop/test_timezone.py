"""Days and hours in a time zone of the user's, over both changes of the clocks, and the proof that they are right."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError
from klamm.hadoop.lake.files import lake_files
from klamm.hadoop.lake.verify import verify_topic
from klamm.hadoop.layout import TopicLayout
from klamm.hadoop.publishing.seam import LakeError
from klammtest.lake import TOPIC, MemoryTopics, flight, job

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
    with pytest.raises(LakeError, match="loaded with timezone: Europe/Athens, it is UTC now"):
        job(spark, topics, str(tmp_path)).run(TOPIC)


def test_a_time_zone_that_does_not_exist_is_refused() -> None:
    sink = {"plugin": "hadoop", "topics": ["t"], "path": "lake", "timezone": "Europe/Berlim"}
    with pytest.raises(ConfigError, match=r"sinks.lake.timezone: expected a time zone such as Europe/Berlin"):
        load_settings({"sinks": {"lake": sink}})
