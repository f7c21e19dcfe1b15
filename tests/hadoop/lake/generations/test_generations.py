"""Generations: what a compaction makes, what readers see of it, a compaction and a gc that die anywhere."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest
import yaml
from pyarrow.dataset import dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from klamm.core.errors import ConfigError, SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.hadoop import read_lake
from klamm.hadoop.columnar.tally import OffsetTally
from klamm.hadoop.lake.contents import FileRows
from klamm.hadoop.lake.files import lake_files
from klamm.hadoop.lake.generations import compact
from klamm.hadoop.lake.generations.compact import CompactJob
from klamm.hadoop.lake.generations.garbage import collect, plan
from klamm.hadoop.lake.generations.generation import generation_numbers, generations_of
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.listing import loads_of
from klamm.hadoop.lake.verification.findings import TopicProof
from klamm.hadoop.lake.verification.verify import verify_topic
from klamm.hadoop.lake.verification.verify_generation import row_tallies
from klamm.hadoop.load.spark_writer import FileFormat, write_clustered
from klamm.hadoop.load.staging import LoadConflictError, Staging, sweep
from klamm.hadoop.publishing.interface import LakeError, Publisher
from klamm.hadoop.publishing.local import LocalPublisher
from klamm.lake import LakeDataset
from klamm.lake import dataset as dataset_of
from klammtest.faulty import fault_hook
from klammtest.hadoop.hdfs_client import new_publisher
from klammtest.hadoop.lakes import Unsure
from klammtest.hadoop.lakes import klamm_lake as run
from klammtest.hadoop.load_jobs import (
    DAY_MS,
    TOPIC,
    MemoryTopics,
    add_flights,
    compactor,
    coordinates,
    everything,
    flight,
    job,
    payload,
)

WEEK = 7 * 86_400.0
HOUR = 3600.0
POINTS = ["compact.planned", "compact.written", "compact.staged", "compact.published"]


def filled(spark: SparkSession, root: str, loads: int = 3, **spec: Any) -> MemoryTopics:
    """A lake of `loads` loads, of six records each."""
    topics = MemoryTopics()
    for number in range(loads):
        add_flights(topics, range(number * 6, number * 6 + 6))
        assert job(spark, topics, root, **spec).run(TOPIC) is not None
    return topics


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def proof(root: str, web_url: str | None = None) -> TopicProof:
    return verify_topic(lake_files(root, web_url), TopicLayout(root, TOPIC))


def intact(root: str, generations: int) -> bool:
    found = proof(root)
    assert found.findings == []
    return found.generations == generations


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("part-*"))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three loads, a generation of them, and a fourth."""
    root = tmp_path_factory.mktemp("lake")
    topics = filled(spark, str(root))
    assert compactor(spark, str(root)).run(TOPIC) is not None
    add_flights(topics, range(18, 24))
    assert job(spark, topics, str(root)).run(TOPIC) is not None
    return root


def test_a_generation_has_the_rows_of_its_loads_in_fewer_files(spark: SparkSession, lake: Path) -> None:
    topic = lake / TOPIC
    (generation,) = generations_of(LocalPublisher(), TopicLayout(str(lake), TOPIC))
    assert [merged.load for merged in generation.loads] == [1, 2, 3]
    assert (generation.rows, generation.format, generation.partition_by) == (18, "parquet", ("dt",))
    merged = files(topic / "_generations" / "generation=000001")
    assert [name.split("/")[0] for name in merged] == ["dt=1970-01-01", "dt=1970-01-02", "dt=1970-01-03"]
    assert len(files(topic)) == 4 * 3 + 3
    assert intact(str(lake), generations=1)


def test_readers_see_each_row_once_whatever_they_read(spark: SparkSession, lake: Path) -> None:
    root = str(lake)
    plain = rows(spark.read.parquet(f"{root}/{TOPIC}").withColumn("dt", spark_text("dt")))
    assert len(plain) == 24
    as_loads = read_lake(spark, root, TOPIC)
    for generation in ("latest", 1):
        merged = read_lake(spark, root, TOPIC, generation=generation)  # type: ignore[arg-type]
        assert merged.columns == as_loads.columns
        assert merged.schema == as_loads.schema
        assert rows(merged) == rows(as_loads) == plain
        assert any("_generations" in name for name in merged.inputFiles())
        assert not any("load=000001" in name for name in merged.inputFiles())
    assert not any("_generations" in name for name in as_loads.inputFiles())
    assert dataset(f"{root}/{TOPIC}", format="parquet", partitioning="hive").count_rows() == 24
    alone = spark.read.parquet(f"{root}/{TOPIC}/_generations/generation=000001")
    assert alone.count() == 18


def spark_text(name: str) -> Any:
    from pyspark.sql import functions as sf

    return sf.col(name).cast("string")


def test_a_generation_is_read_as_of_a_load_or_an_instant(spark: SparkSession, lake: Path) -> None:
    made = [load.created for load in loads_of(lake_files(str(lake)), TopicLayout(str(lake), TOPIC))]
    for as_of, loads in ((2, {1, 2}), (3, {1, 2, 3}), (9, {1, 2, 3, 4}), (made[1], {1, 2}), (made[3], {1, 2, 3, 4})):
        read = read_lake(spark, str(lake), TOPIC, as_of, generation="latest")  # type: ignore[arg-type]
        assert {row[0] for row in read.select("load").distinct().collect()} == loads
        assert rows(read) == rows(read_lake(spark, str(lake), TOPIC, as_of))  # type: ignore[arg-type]
    for too_early in (0, made[0] - timedelta(seconds=1)):
        with pytest.raises(ConfigError, match="no load is published as of"):
            read_lake(spark, str(lake), TOPIC, too_early, generation="latest")  # type: ignore[arg-type]


def test_a_generation_that_is_not_there_or_of_other_loads_is_one_line(
    spark: SparkSession, lake: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"there is no generation 7 \(there are: 1\)"):
        read_lake(spark, str(lake), TOPIC, generation=7)
    with pytest.raises(ConfigError, match="expected a number or"):
        read_lake(spark, str(lake), TOPIC, generation="newest")  # type: ignore[arg-type]
    filled(spark, str(tmp_path))
    assert rows(read_lake(spark, str(tmp_path), TOPIC, generation="latest")) == rows(
        read_lake(spark, str(tmp_path), TOPIC)
    )
    shutil.copytree(lake / TOPIC / "_generations", tmp_path / TOPIC / "_generations")
    with pytest.raises(LakeError, match="was made from another load 3"):
        read_lake(spark, str(tmp_path), TOPIC, generation="latest")
    assert compactor(spark, str(tmp_path)).run(TOPIC) is not None
    assert rows(read_lake(spark, str(tmp_path), TOPIC, generation="latest")) == rows(
        read_lake(spark, str(tmp_path), TOPIC)
    )


def test_what_is_held_already_is_not_compacted_again(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    assert compactor(spark, root).run(TOPIC) is None
    topics = filled(spark, root, loads=2)
    assert compactor(spark, root).run(TOPIC) is not None
    assert compactor(spark, root).run(TOPIC) is None
    add_flights(topics, range(12, 18))
    job(spark, topics, root).run(TOPIC)
    again = compactor(spark, root).run(TOPIC)
    assert again is not None
    assert again.line().startswith("compact topic=flights generation=2 loads=1-3 rows=18 files=3 bytes=")
    assert intact(root, generations=2)


def test_files_grow_to_about_the_wanted_size(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics(partitions=1)
    for _ in range(4):
        for number in range(800):
            topics.add(0, flight(number, carrier=os.urandom(100).hex()))
        assert job(spark, topics, str(tmp_path)).run(TOPIC) is not None
    made = compactor(spark, str(tmp_path), target_size=100_000).run(TOPIC)
    assert made is not None
    assert len(made.generation.files) > 2
    assert intact(str(tmp_path), generations=1)


@pytest.mark.parametrize("format_", ["parquet", "orc"])
def test_hours_invalid_and_quarantined_records(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    root, topics = str(tmp_path), MemoryTopics()
    topics.configure(partition_by=("dt", "hr"), quarantine=True)
    load = job(spark, topics, root, files=FileFormat(format_, ("dt", "hr"), 1 << 20))
    for _ in range(2):
        for n in range(8):
            topics.add(n % 2, flight(n), ts_ms=n % 3 * (DAY_MS + 3_600_000) + n)
        topics.add(0, flight(20), ts_ms=None)
        topics.add(1, b"\0\0\0\0\1", ts_ms=DAY_MS)
        topics.add(1, None, ts_ms=DAY_MS)
        assert load.run(TOPIC) is not None
    made = compactor(spark, root).run(TOPIC)
    assert made is not None
    assert (made.generation.rows, made.generation.partition_by) == (20, ("dt", "hr"))
    assert {name.rpartition("/")[0] for name in files(tmp_path / TOPIC / "_generations" / "generation=000001")} == {
        "dt=1970-01-01/hr=00",
        "dt=1970-01-02/hr=01",
        "dt=1970-01-03/hr=02",
        "dt=1970-01-02/hr=00",
        "dt=__invalid__/hr=__HIVE_DEFAULT_PARTITION__",
    }
    assert intact(root, generations=1)
    merged = read_lake(spark, root, TOPIC, generation=1)
    assert rows(merged) == rows(read_lake(spark, root, TOPIC))
    assert {row["hr"] for row in merged.where("dt = '1970-01-02'").collect()} == {"00", "01"}


def test_loads_of_two_formats_and_partitionings_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    root, topics = str(tmp_path), MemoryTopics()
    for format_, directories in (("orc", ("dt",)), ("parquet", ("dt", "hr"))):
        topics.configure(partition_by=directories)
        add_flights(topics, range(6))
        assert job(spark, topics, root, files=FileFormat(format_, directories, 1 << 20)).run(TOPIC) is not None
    made = compactor(spark, root).run(TOPIC)
    assert made is not None
    assert (made.generation.format, made.generation.partition_by) == ("parquet", ("dt",))
    assert intact(root, generations=1)
    merged, as_loads = read_lake(spark, root, TOPIC, generation=1), read_lake(spark, root, TOPIC)
    assert rows(merged) == rows(as_loads.drop("hr"))


def schemas(spark: SparkSession, root: str, *kinds: list[dict[str, Any]]) -> MemoryTopics:
    """A load for each list of fields: with the record {"number": 7, …} of it."""
    topics, writers = MemoryTopics(partitions=1), {}
    for number, fields in enumerate(kinds, 1):
        schema = {"type": "record", "name": "Flight", "fields": fields}
        writers[SchemaKey(schema_id=number)] = json.dumps(schema)
        topics.configure(reader=json.dumps(schema), writers=dict(writers))
        value = {field["name"]: field.get("example") for field in fields}
        topics.add(0, payload(number, schema, value))
        assert job(spark, topics, root).run(TOPIC) is not None
    return topics


def place(name: str, *, floors: bool) -> dict[str, Any]:
    floor = {"name": "floor", "type": ["null", "int"], "default": None}
    fields = [{"name": "name", "type": "string"}, *([floor] if floors else [])]
    return {"type": "record", "name": name, "fields": fields}


def places(name: str, *, floors: bool) -> dict[str, Any]:
    return {"type": "array", "items": place(name, floors=floors)}


def test_columns_of_an_evolved_schema(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    schemas(
        spark,
        root,
        [
            {"name": "number", "type": "int", "example": 7},
            {"name": "gone", "type": "string", "example": "old"},
            {"name": "gate", "type": place("Gate", floors=False), "example": {"name": "A"}},
            {"name": "gates", "type": places("Stand", floors=False), "example": [{"name": "B"}]},
            {"name": "tags", "type": {"type": "map", "values": "int"}, "example": {"a": 1}},
        ],
        [
            {"name": "added", "type": ["null", "string"], "default": None, "example": "new"},
            {"name": "number", "type": "long", "example": 2**40},
            {"name": "gate", "type": place("Gate", floors=True), "example": {"name": "C", "floor": 3}},
            {"name": "gates", "type": places("Stand", floors=True), "example": [{"name": "D", "floor": 4}]},
            {"name": "tags", "type": {"type": "map", "values": "long"}, "example": {"b": 2**40}},
        ],
    )
    assert compactor(spark, root).run(TOPIC) is not None
    for generation in (None, 1):
        read = read_lake(spark, root, TOPIC, generation=generation)
        assert read.columns[:6] == ["added", "number", "gate", "gates", "tags", "_key"]
        old, new = (row.asDict(recursive=True) for row in read.orderBy("load").collect())
        assert (old["added"], old["number"], old["gone"]) == (None, 7, "old")
        assert (old["gate"], old["gates"]) == ({"name": "A", "floor": None}, [{"name": "B", "floor": None}])
        assert (new["added"], new["number"], new["gone"]) == ("new", 2**40, None)
        assert (new["gate"], new["gates"]) == ({"name": "C", "floor": 3}, [{"name": "D", "floor": 4}])
        assert (old["tags"], new["tags"]) == ({"a": 1}, {"b": 2**40})
    assert intact(root, generations=1)


MILLIS: Any = {"type": "long", "logicalType": "timestamp-millis"}
MICROS: Any = {"type": "long", "logicalType": "timestamp-micros"}


def renamed(name: str, kind: Any, example: Any, *aliases: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "example": example, "aliases": [*aliases]}


def same_without_spark(read: DataFrame, lake: LakeDataset) -> None:
    """The same names and rows as Arrow, by its C stream, as pandas, in Polars and DuckDB, and of some columns."""
    expected = read.toArrow().sort_by("load")
    table = lake.to_table().sort_by("load")
    assert table.column_names == expected.column_names == lake.schema.names
    assert table.to_pylist() == expected.to_pylist()
    assert pa.table(lake).sort_by("load") == table
    assert lake.to_pandas().sort_values("load")["_offset"].tolist() == expected["_offset"].to_pylist()
    # Each reader's own rows: as Arrow again, which has dates and times with their zones in one form.
    for found in (polars.DataFrame(lake).to_arrow(), duckdb.from_arrow(lake.to_reader()).to_arrow_table()):
        assert found.column_names == expected.column_names
        assert plain(found.sort_by("load")) == plain(expected)
    frame = lake.to_pandas().sort_values("load")
    assert list(frame.columns) == expected.column_names
    assert plain(pa.Table.from_pandas(frame, schema=table.schema, preserve_index=False)) == plain(expected)
    some = ["load", "dt", lake.schema.names[0]]
    assert lake.to_table(some).sort_by("load").to_pylist() == expected.select(some).to_pylist()
    assert lake.to_table(["dt"]).num_rows == expected.num_rows


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows in one form: DuckDB gives times the zone of its session."""

    def one(value: Any) -> Any:
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(UTC)
        return {k: one(v) for k, v in value.items()} if isinstance(value, dict) else value

    return [one(row) for row in table.to_pylist()]


def test_a_lake_without_spark_names_what_it_cannot_read(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    filled(spark, root, loads=2)
    assert compactor(spark, root).run(TOPIC) is not None
    lake = dataset_of(root, TOPIC, generation=1)
    assert sorted(lake.to_table(["_offset"])["_offset"].to_pylist()) == sorted(o for _, o in coordinates(spark, root))
    with pytest.raises(ConfigError, match=r"there is no column 'numbr' \(there are: number, carrier, _key"):
        lake.to_table(["numbr"])
    with pytest.raises(ConfigError, match="no load is published as of 0"):
        dataset_of(root, TOPIC, as_of=0)
    for path in (tmp_path / TOPIC / "_generations").rglob("part-*"):
        path.unlink()
    with pytest.raises(LakeError, match=r"cannot read .*part-"):
        lake.to_table()


def test_a_column_that_was_renamed_or_became_a_time_is_one_column(spark: SparkSession, tmp_path: Path) -> None:
    """At the top, in a record, in an array and in a map; renamed twice; with the case changed; before and after
    compaction, and read with a generation of only some of the loads."""
    root = str(tmp_path)

    def inner(name: str, field: dict[str, Any]) -> dict[str, Any]:
        return {"type": "record", "name": name, "fields": [field]}

    def fields(a: str, was: str, at: Any, instant: Any, day: Any, cased: str, more: list[Any]) -> list[dict[str, Any]]:
        field = {"name": a, "type": "int", "aliases": [was]}
        return [
            renamed(a, "string", a, was),
            renamed("in", inner("In", field), {a: 1}),
            renamed("list", {"type": "array", "items": inner("El", field)}, [{a: 2}]),
            renamed("map", {"type": "map", "values": inner("Va", field)}, {"k": {a: 3}}),
            renamed("at", at, instant),
            renamed("day", day, 1),
            renamed(cased, "int", 5, "unrelated"),
            *more,
        ]

    new = [{"name": "added", "type": "int", "default": 0, "example": 9}]
    date: Any = {"type": "int", "logicalType": "date"}
    topics = schemas(
        spark, root,
        fields("first", "none", "long", 1500, "int", "id", []),
        fields("second", "first", MILLIS, 2500, date, "id", []),
    )  # fmt: skip
    assert compactor(spark, root).run(TOPIC) is not None
    third = {"type": "record", "name": "Flight", "fields": fields("third", "second", MICROS, 3500, date, "ID", new)}
    topics.configure(reader=json.dumps(third), writers={SchemaKey(schema_id=3): json.dumps(third)})
    topics.add(0, payload(3, third, {field["name"]: field["example"] for field in third["fields"]}))
    assert job(spark, topics, root).run(TOPIC) is not None
    for compacted in (False, True):
        if compacted:
            assert compactor(spark, root).run(TOPIC) is not None
        for generation in (None, 1, "latest"):
            read = read_lake(spark, root, TOPIC, generation=generation)  # type: ignore[arg-type]
            assert read.columns[:9] == ["third", "in", "list", "map", "at", "day", "ID", "added", "_key"]
            found = [row.asDict(recursive=True) for row in read.orderBy("load").collect()]
            assert [row["third"] for row in found] == ["first", "second", "third"]
            assert [row["in"] for row in found] == [{"third": 1}] * 3
            assert [row["list"] for row in found] == [[{"third": 2}]] * 3
            assert [row["map"] for row in found] == [{"k": {"third": 3}}] * 3
            micros = read.orderBy("load").select(sf.unix_micros("at").alias("at")).collect()
            assert [row["at"] for row in micros] == [1_500_000, 2_500_000, 3500]
            assert [str(row["day"]) for row in found] == ["1970-01-02"] * 3
            assert [row["ID"] for row in found] == [5, 5, 5]
            assert [row["added"] for row in found] == [None, None, 9]
            same_without_spark(read, dataset_of(root, TOPIC, generation=generation))  # type: ignore[arg-type]
        early = read_lake(spark, root, TOPIC, 2, generation="latest")
        same_without_spark(early, dataset_of(root, TOPIC, generation="latest", as_of=2))
    assert intact(root, generations=2)


def test_types_that_no_column_holds_are_one_line(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    schemas(
        spark,
        root,
        [{"name": "number", "type": "int", "example": 7}],
        [{"name": "number", "type": "string", "example": "7"}],
    )
    for act in (lambda: read_lake(spark, root, TOPIC), lambda: compactor(spark, root).run(TOPIC)):
        with pytest.raises(SchemaError, match="column number is string in newer loads and int32 in older ones"):
            act()
    assert generation_numbers(LocalPublisher(), TopicLayout(root, TOPIC)) == []


def test_a_compaction_killed_at_any_point_leaves_nothing_half_visible(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    topics = filled(spark, str(root))

    def crash(point: str) -> None:
        if point in POINTS:
            shutil.copytree(root, tmp_path / point)

    with fault_hook(crash):
        compactor(spark, str(root)).run(TOPIC)
    for point in POINTS:
        crashed = str(tmp_path / point)
        published = point == "compact.published"
        assert (list((tmp_path / point / TOPIC / "_staging").iterdir()) == []) == (point == "compact.planned"), point
        assert coordinates(spark, crashed) == everything(topics), point
        assert intact(crashed, generations=int(published)), point
        again = compactor(spark, crashed).run(TOPIC)
        assert (again is None) == published, point
        assert intact(crashed, generations=1), point
        merged = read_lake(spark, crashed, TOPIC, generation="latest")
        assert sorted((r["_partition"], r["_offset"]) for r in merged.collect()) == everything(topics), point
        # A load goes on and sweeps what the dead compaction left.
        more = MemoryTopics(records=list(topics.records))
        add_flights(more, range(2))
        assert job(spark, more, crashed, staging_retention_s=-1).run(TOPIC) is not None, point
        assert list((tmp_path / point / TOPIC / "_staging").iterdir()) == [], point
        assert coordinates(spark, crashed) == everything(more), point


def test_of_two_compactions_at_once_one_publishes_and_the_other_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    filled(spark, str(tmp_path))
    both = threading.Barrier(2)

    def meet(point: str) -> None:
        if point == "compact.staged":
            both.wait(60)

    with fault_hook(meet), ThreadPoolExecutor(2) as pool:
        outcomes: list[Future[Any]] = [pool.submit(compactor(spark, str(tmp_path)).run, TOPIC) for _ in range(2)]
        errors = [outcome.exception() for outcome in outcomes]
    lost = [error for error in errors if error is not None]
    assert [type(error) for error in lost] == [LoadConflictError]
    assert "generation 1 of flights was published by job" in str(lost[0])
    assert list((tmp_path / TOPIC / "_staging").iterdir()) == []
    assert intact(str(tmp_path), generations=1)


def test_a_generation_whose_rename_was_not_answered_is_published(spark: SparkSession, tmp_path: Path) -> None:
    filled(spark, str(tmp_path))
    assert compactor(spark, str(tmp_path), publisher=Unsure()).run(TOPIC) is not None
    assert intact(str(tmp_path), generations=1)


def a_missing_file(topic: Path) -> None:
    next((topic / "load=000002").glob("dt=*/part-*")).unlink()


def a_missing_load(topic: Path) -> None:
    shutil.rmtree(topic / "load=000002")


def an_overlap(topic: Path) -> None:
    path = topic / "load=000002" / "_offsets.json"
    said = json.loads(path.read_text())
    said["partitions"]["0"]["from"] = 1
    path.write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (a_missing_file, "load=000002 holds 4 rows, its manifest says 6"),
        (a_missing_load, "load=000002 is missing"),
        (an_overlap, "partition 0: overlap: begins at offset 1"),
    ],
)
def test_a_damaged_load_is_not_compacted(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    filled(spark, str(tmp_path))
    damage(tmp_path / TOPIC)
    with pytest.raises(LakeError, match=words) as caught:
        compactor(spark, str(tmp_path)).run(TOPIC)
    assert "\n" not in str(caught.value)
    assert generation_numbers(LocalPublisher(), TopicLayout(str(tmp_path), TOPIC)) == []
    assert list((tmp_path / TOPIC / "_staging").iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [
        lambda rows: rows.withColumn("number", sf.when(sf.col("_offset") == 1, 99).otherwise(sf.col("number"))),
        lambda rows: rows.withColumn("carrier", sf.lit(None).cast("string")),
        lambda rows: rows.withColumn("_key", sf.lit(b"other")),
        lambda rows: rows.withColumn("dt", sf.lit("2000-01-01")),
    ],
    ids=["value", "null", "key", "directory"],
)
def test_a_value_that_changes_while_it_is_written_is_not_published(
    spark: SparkSession, tmp_path: Path, changed: Callable[[DataFrame], DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(spark, str(tmp_path), loads=1)

    def write(rows: DataFrame, path: str, files: FileFormat) -> None:
        write_clustered(changed(rows), path, files)

    monkeypatch.setattr(compact, "write_clustered", write)
    with pytest.raises(LakeError, match="the written rows of load 1, partition 0 differ from those of the load"):
        compactor(spark, str(tmp_path)).run(TOPIC)
    assert generation_numbers(LocalPublisher(), TopicLayout(str(tmp_path), TOPIC)) == []


@pytest.mark.parametrize("point", ["compact.planned", "compact.staged"])
def test_a_load_during_a_compaction_is_in_the_next_one(spark: SparkSession, tmp_path: Path, point: str) -> None:
    root = str(tmp_path)
    topics = filled(spark, root, loads=2)

    def load(reached: str) -> None:
        if reached == point:
            add_flights(topics, range(12, 18))
            assert job(spark, topics, root).run(TOPIC) is not None

    with fault_hook(load):
        done = compactor(spark, root).run(TOPIC)
    assert done is not None
    assert done.generation.last == 2
    assert rows(read_lake(spark, root, TOPIC, generation="latest")) == rows(read_lake(spark, root, TOPIC))
    assert coordinates(spark, root) == everything(topics)
    assert intact(root, generations=1)


@pytest.mark.parametrize("point", ["load.planned", "load.staged"])
def test_a_compaction_during_a_load_holds_what_was_published(spark: SparkSession, tmp_path: Path, point: str) -> None:
    root = str(tmp_path)
    topics = filled(spark, root, loads=2)
    add_flights(topics, range(12, 18))

    def merge(reached: str) -> None:
        if reached == point:
            assert compactor(spark, root).run(TOPIC) is not None

    with fault_hook(merge):
        assert job(spark, topics, root).run(TOPIC) is not None
    assert rows(read_lake(spark, root, TOPIC, generation="latest")) == rows(read_lake(spark, root, TOPIC))
    assert len(rows(read_lake(spark, root, TOPIC))) == 18
    assert intact(root, generations=1)


@pytest.mark.parametrize("removed", ["a directory", "a file"])
def test_a_generation_of_which_a_part_is_removed_is_not_read_as_fewer_rows(
    spark: SparkSession, tmp_path: Path, removed: str
) -> None:
    """As a reader sees it that lists a generation while `gc` removes it: Spark skips a directory that has ended."""
    root = str(tmp_path)
    filled(spark, root, loads=2)
    assert compactor(spark, root).run(TOPIC) is not None
    generation = tmp_path / TOPIC / "_generations" / "generation=000001"
    last = sorted(generation.glob("dt=*"))[-1]
    if removed == "a directory":
        shutil.rmtree(last)
    else:
        next(last.glob("part-*")).unlink()
    with pytest.raises(LakeError, match="lacks a file that its manifest names: `klamm lake gc` removed it meanwhile"):
        read_lake(spark, root, TOPIC, generation=1)


def columns(*rows: tuple[int, int, int]) -> FileRows:
    """(offset, timestamp, size) of partition 0."""
    offset, timestamp, size = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    rest = np.zeros(len(rows), np.int64)
    return FileRows(rest, offset, timestamp, size, rest, rest)


def sums(*parts: FileRows) -> OffsetTally:
    return sum((row_tallies(part)[0] for part in parts), OffsetTally())


def test_sums_of_rows_tell_them_apart_in_any_order() -> None:
    one, other, third = (1, 10, 100), (2, 10, 100), (3, 10, -(2**63))
    whole = sums(columns(one, other, third))
    assert whole == sums(columns(third), columns(other, one))
    for unlike in ((one, other), (one, other, other), (one, (2, 11, 100), third), (one, (2, 10, 101), third)):
        assert sums(columns(*unlike)) != whole
    assert sums(columns((1, 2, 3), (2, 1, 3))) != sums(columns((1, 1, 3), (2, 2, 3)))


# gc


def later(seconds: float) -> LocalPublisher:
    return LocalPublisher(now_s=lambda: time.time() + seconds)


@pytest.fixture
def superseded(spark: SparkSession, tmp_path: Path) -> Path:
    """Two loads, generation 1 of the first, 2 of both, and a dead job's staging."""
    root = tmp_path / "lake"
    topics = filled(spark, str(root), loads=1)
    compactor(spark, str(root)).run(TOPIC)
    add_flights(topics, range(6, 12))
    job(spark, topics, str(root)).run(TOPIC)
    compactor(spark, str(root)).run(TOPIC)
    dead = root / TOPIC / "_staging" / "gone"
    dead.mkdir()
    (dead / "part").write_bytes(b"x" * 9)
    return root


def numbers(root: Path) -> list[int]:
    return generation_numbers(LocalPublisher(), TopicLayout(str(root), TOPIC))


def test_gc_removes_what_a_newer_generation_replaced_longer_ago(superseded: Path) -> None:
    layout = TopicLayout(str(superseded), TOPIC)
    early = plan(LocalPublisher(), layout, WEEK, HOUR)
    assert [(item.what, item.name, item.remove) for item in early] == [
        ("staging", "gone", True),
        ("generation", "1", False),
        ("generation", "2", False),
    ]
    assert "readers may still have this one" in early[1].line(dry_run=True)
    assert (numbers(superseded), len(list((superseded / TOPIC / "_staging").iterdir()))) == ([1, 2], 1)
    found = collect(later(WEEK + HOUR), layout, WEEK, HOUR)
    assert [(item.name, item.remove, item.bytes > 0) for item in found] == [
        ("gone", True, True),
        ("1", True, True),
        ("2", False, True),
    ]
    assert numbers(superseded) == [2]
    assert list((superseded / TOPIC / "_staging").iterdir()) == []
    assert intact(str(superseded), generations=1)
    assert [item.name for item in collect(later(WEEK + HOUR), layout, WEEK, HOUR)] == ["2"]


def test_gc_keeps_what_a_damaged_generation_would_replace(superseded: Path) -> None:
    layout = TopicLayout(str(superseded), TOPIC)
    newest = superseded / TOPIC / "_generations" / "generation=000002"
    kept = newest.with_name("kept")
    shutil.copytree(newest, kept)
    next(newest.glob("dt=*/part-*")).unlink()
    assert [item.name for item in collect(later(WEEK + HOUR), layout, WEEK, HOUR) if item.remove] == ["gone"]
    shutil.rmtree(newest)
    shutil.copytree(kept, newest)
    (newest / "_generation.json").write_text("{")
    found = collect(later(WEEK + HOUR), layout, WEEK, HOUR)
    assert [(item.name, item.remove) for item in found] == [("1", False), ("2", False)]
    assert "not a manifest of a generation" in found[1].why
    assert numbers(superseded) == [1, 2]


@pytest.mark.parametrize("point", ["gc.planned", "gc.moved"])
def test_a_gc_killed_at_any_point_is_finished_by_the_next_run(
    spark: SparkSession, superseded: Path, tmp_path: Path, point: str
) -> None:
    layout, crashed = TopicLayout(str(superseded), TOPIC), tmp_path / "crashed"

    def crash(name: str) -> None:
        if name == point:
            shutil.copytree(superseded, crashed)

    with fault_hook(crash):
        collect(later(WEEK + HOUR), layout, WEEK, HOUR)
    assert intact(str(crashed), generations=1 if point == "gc.moved" else 2)
    there = TopicLayout(str(crashed), TOPIC)
    # A load's sweep finishes the removal as well as gc does.
    sweep(LocalPublisher(), there, HOUR)
    assert list((crashed / TOPIC / "_staging").iterdir()) == []
    collect(later(WEEK + HOUR), there, WEEK, HOUR)
    assert numbers(crashed) == [2]
    assert len(rows(read_lake(spark, str(crashed), TOPIC, generation="latest"))) == 12


def test_gc_leaves_a_running_job_and_a_reader_alone(spark: SparkSession, superseded: Path) -> None:
    layout = TopicLayout(str(superseded), TOPIC)
    read = read_lake(spark, str(superseded), TOPIC, generation=1)
    with Staging(LocalPublisher(), layout, "running") as staging:
        collect(LocalPublisher(), layout, WEEK, HOUR)
        assert Path(staging.path).exists()
    assert len(read.collect()) == 12


def test_two_gcs_at_once_remove_a_generation_once(superseded: Path) -> None:
    layout, both = TopicLayout(str(superseded), TOPIC), threading.Barrier(2)

    def meet(point: str) -> None:
        if point == "gc.planned":
            both.wait(60)

    with fault_hook(meet), ThreadPoolExecutor(2) as pool:
        running = [pool.submit(collect, later(WEEK + HOUR), layout, WEEK, HOUR) for _ in range(2)]
        assert [len(gc.result()) for gc in running] == [3, 3]
    assert numbers(superseded) == [2]
    assert intact(str(superseded), generations=1)


# The commands


def klamm_lake(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).parent / "klamm", "lake", *arguments],
        env={**os.environ, **environment}, cwd="/", text=True, capture_output=True, timeout=500, check=False,
    )  # fmt: skip


def test_the_commands_show_generations(lake: Path) -> None:
    (listed,) = [json.loads(line) for line in run("ls", str(lake), "--json").stdout.splitlines()]
    assert (listed["loads"], listed["generation"]) == (4, 1)
    shown = [json.loads(line) for line in run("show", TOPIC, "--lake", str(lake), "--json").stdout.splitlines()]
    assert [row.get("load") or row["loads"] for row in shown] == [1, 2, 3, 4, "1-3"]
    detail = run("show", TOPIC, "--generation", "1", "--lake", str(lake)).stdout
    assert "loads: 1-3\n" in detail
    assert "dt=1970-01-01/part-" in detail
    as_json = json.loads(run("show", TOPIC, "--generation", "1", "--lake", str(lake), "--json").stdout)
    assert len(as_json["loads"]) == len(as_json["files"]) == 3
    missing = run("show", TOPIC, "--generation", "9", "--lake", str(lake))
    assert "there is no generation 9 (there are: 1)" in str(missing.exception)
    for wrong in (("gc", "--older-than", "soon"), ("compact", "--target-file-size", "big")):
        failed = run(*wrong, "--lake", str(lake))
        assert isinstance(failed.exception, ConfigError), failed
        assert f"{wrong[1]}: expected" in str(failed.exception)


def test_gc_on_file_starts_no_jvm(superseded: Path) -> None:
    arguments = ("gc", "--lake", str(superseded), "--older-than", "0s")
    dry = klamm_lake(*arguments, "--dry-run", PATH="/nowhere", JAVA_HOME="/nowhere")
    assert dry.returncode == 0, dry.stderr
    assert [line.split(" bytes")[0] for line in dry.stdout.splitlines()] == [
        "would remove topic=flights staging=gone",
        "would remove topic=flights generation=1",
        "keep topic=flights generation=2",
    ]
    assert numbers(superseded) == [1, 2]
    done = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
    assert [(item["what"], item["name"], item["remove"], item["dry_run"]) for item in done] == [
        ("staging", "gone", True, False),
        ("generation", "1", True, False),
        ("generation", "2", False, False),
    ]
    assert numbers(superseded) == [2]


def test_a_compaction_that_is_killed_and_run_again(spark: SparkSession, tmp_path: Path) -> None:
    root, config = str(tmp_path / "lake"), tmp_path / "klamm.yaml"
    topics = filled(spark, root)
    config.write_text(
        yaml.safe_dump({"sinks": {"lake": {"plugin": "hadoop", "topics": [TOPIC], "path": f"file://{root}"}}})
    )
    killed = klamm_lake("compact", "--config", str(config), KLAMM_FAULTS="compact.staged=kill")
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "lake" / TOPIC / "_generations").exists()
    assert coordinates(spark, root) == everything(topics)
    again = run("compact", TOPIC, "--config", str(config), "--json")
    assert (again.exit_code, again.stderr) == (0, "")
    said = json.loads(again.stdout)
    assert (said["topic"], said["generation"], said["loads"], said["rows"], said["merged_files"]) == (
        TOPIC, 1, "1-3", 18, 9,
    )  # fmt: skip
    assert intact(root, generations=1)


def test_a_lake_on_hdfs_is_compacted_and_collected(
    spark: SparkSession, hdfs_server: Any, hdfs_root: str, tmp_path: Path
) -> None:
    publisher: Publisher = new_publisher()
    root = f"{hdfs_root}/lake"
    topics = MemoryTopics()
    for number in range(2):
        add_flights(topics, range(number * 6, number * 6 + 6))
        assert job(spark, topics, root, publisher=publisher).run(TOPIC) is not None
        assert compactor(spark, root, publisher=publisher).run(TOPIC) is not None
    found = proof(root, hdfs_server.web_url)
    assert (found.findings, found.generations) == ([], 2)
    merged = read_lake(spark, root, TOPIC, generation="latest", webhdfs_url=hdfs_server.web_url)
    assert sorted((r["_partition"], r["_offset"]) for r in merged.collect()) == everything(topics)
    assert coordinates(spark, root) == everything(topics)
    layout = TopicLayout(root, TOPIC)
    assert [item.remove for item in collect(publisher, layout, WEEK, HOUR)] == [False, False]
    assert [item.remove for item in collect(publisher, layout, -1, HOUR)] == [True, False]
    assert generation_numbers(publisher, layout) == [2]
    assert publisher.names(layout.staging_root) == []
    assert proof(root, hdfs_server.web_url).findings == []


def test_a_compaction_that_the_user_ends_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    filled(spark, str(tmp_path))
    plain = compactor(spark, str(tmp_path))
    given_up = CompactJob(lambda: spark, LocalPublisher(), plain.spec, check=lambda: sys.exit(130))
    with pytest.raises(SystemExit):
        given_up.run(TOPIC)
    assert numbers(tmp_path) == []
    assert list((tmp_path / TOPIC / "_staging").iterdir()) == []
