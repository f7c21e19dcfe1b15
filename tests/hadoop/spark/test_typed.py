"""`klamm.typed`: values as structs of their topic's schema, written and read by the tasks of a real broker's topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import ConfigError, SchemaError
from klamm.core.records.codecs import CodecTable
from klamm.hadoop.options import parse_options
from klamm.hadoop.source import KlammDataSource
from klamm.hadoop.spark.batch import KlammReader
from klamm.hadoop.spark.claims import TaskIdentity
from klamm.hadoop.spark.columns import source_columns
from klamm.hadoop.spark.sink import parse_sink_options, write_task
from klamm.hadoop.spark.typed import value_type
from klamm.schemas.columns import native
from klamm.schemas.registry.log import TopicSchemaLog
from klammtest.clients.numbered import Topics, number_topics
from klammtest.schemas import add, stored

ID = {"name": "id", "type": "long"}
TO = {"name": "to", "type": "string"}
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
FIRST = {"type": "record", "name": "Trip", "fields": [ID, TO]}
SECOND = {"type": "record", "name": "Trip", "fields": [ID, TO, TAGS]}
DATES = {"type": "record", "name": "D", "fields": [AT]}


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with number_topics(tmp_path_factory.mktemp("typed")) as made:
        made.create("trips", 1)
        log = TopicSchemaLog(ClusterClient(made.bootstrap, codecs=CodecTable()))
        for number, (subject, version, schema) in enumerate([("trips", 1, FIRST), ("dates", 1, DATES)], start=1):
            add(log, stored(f"{subject}-value", version, number, json.dumps(schema)))
        yield made
        log.close()


def register(topics: Topics, subject: str, version: int, number: int, schema: object) -> None:
    log = TopicSchemaLog(ClusterClient(topics.bootstrap, codecs=CodecTable()))
    add(log, stored(f"{subject}-value", version, number, json.dumps(schema)))
    log.close()


def write(topics: Topics, topic: str, values: pa.Array, query: str) -> None:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, "klamm.typed": "true"}
    batch = pa.RecordBatch.from_pydict({"key": pa.array(["k"] * len(values)), "value": values})
    write_task(parse_sink_options(given), TaskIdentity(query, 0, 0), iter([batch]))


def reader(topics: Topics, topic: str) -> KlammReader:
    """The DataFrame is made now, with the schemas of now."""
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic, "klamm.typed": "true"}
    options = parse_options(given)
    assert options.typing is not None
    kind = value_type(options, options.typing)
    return KlammReader(options, source_columns(headers=False, quarantine=False, value=kind))


def values(made: KlammReader) -> list[object]:
    batches = [batch for partition in made.partitions() for batch in made.read(partition)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_values_are_structs_of_the_topics_schema_both_ways(topics: Topics) -> None:
    rows = [{"id": 1, "to": "Rome"}, None, {"id": 2, "to": "Oslo"}]
    write(topics, "trips", pa.array(rows), "first")
    assert [(record.value or b"")[:5] for _, record in topics.records("trips")] == [b"\0\0\0\0\1", b"", b"\0\0\0\0\1"]
    before = reader(topics, "trips")
    assert values(before) == rows
    register(topics, "trips", 2, 7, SECOND)
    write(topics, "trips", pa.array([{"id": 3, "to": "Bern", "tags": ["x"]}]), "second")
    assert values(before) == [*rows, {"id": 3, "to": "Bern"}]
    newer = [row and {**row, "tags": []} for row in rows]
    assert values(reader(topics, "trips")) == [*newer, {"id": 3, "to": "Bern", "tags": ["x"]}]


def test_rows_that_columns_cannot_write_are_the_same_beside_those_that_they_can(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One Arrow batch is written by columns, the next row by row, which has its prefix in the values."""
    topics.create("trips-mixed", 1)
    register(topics, "trips-mixed", 1, 9, FIRST)
    by_columns = native.encode
    asked = 0

    def every_second(*given: Any) -> pa.Array | None:
        nonlocal asked
        asked += 1
        return by_columns(*given) if asked % 2 else None

    monkeypatch.setattr(native, "encode", every_second)
    rows = [[{"id": 10 * part + n, "to": "x"} for n in range(3)] for part in range(4)]
    given = {"kafka.bootstrap.servers": topics.bootstrap, "topic": "trips-mixed", "klamm.typed": "true"}
    batches = (pa.RecordBatch.from_pydict({"value": pa.array(part)}) for part in rows)
    write_task(parse_sink_options(given), TaskIdentity("mixed", 0, 0), batches)
    assert asked == 4
    assert values(reader(topics, "trips-mixed")) == [row for part in rows for row in part]


def test_sparks_values_are_structs_of_the_topics_schema(spark: SparkSession, topics: Topics) -> None:
    topics.create("rides", 1)
    register(topics, "rides", 1, 11, FIRST)
    spark.dataSource.register(KlammDataSource)
    broker, typed = {"kafka.bootstrap.servers": topics.bootstrap}, {"klamm.typed": "true"}
    rows = [(1, "Rome"), (2, "Oslo")]
    frame = spark.createDataFrame(rows, "id long, to string").selectExpr("struct(id, `to`) value")
    frame.write.format("klamm").options(topic="rides", **broker, **typed).mode("append").save()
    read = spark.read.format("klamm").options(subscribe="rides", **broker)
    assert {bytes(row["value"][:5]) for row in read.load().collect()} == {b"\0\0\0\0\x0b"}
    found = read.options(**typed).load()
    assert found.schema["value"].dataType.simpleString() == "struct<id:bigint,to:string>"
    assert found.select("value.id", "value.to").orderBy("id").collect() == rows


def test_what_does_not_fit_is_named(topics: Topics) -> None:
    topics.create("dates", 1)
    with pytest.raises(SchemaError, match="row 0: topic dates"):
        write(topics, "dates", pa.array([{"at": "soon"}]), "misfit")
    topics.produce("dates", 0, range(1))
    with pytest.raises(SchemaError, match="dates-0 offset 0"):
        values(reader(topics, "dates"))
    topics.create("bare", 1)
    with pytest.raises(SchemaError, match="no schema is registered as bare-value"):
        reader(topics, "bare")
    with pytest.raises(SchemaError, match="topics dates and trips have different schemas"):
        reader(topics, "dates,trips")
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "klamm.typed": "true", "onBadRecord": "quarantine"}
    with pytest.raises(ConfigError, match="onBadRecord=quarantine returns bytes"):
        parse_options(given)
