"""The schemas of a load and of Spark, from a topic to which others have written, and from a registry."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.errors import ConfigError, SchemaError
from klamm.core.records.codecs import CodecTable
from klamm.hadoop.lake.config import LakeConfig
from klamm.hadoop.load.rows import RowMaker
from klamm.hadoop.load.topics import ClusterTopics
from klamm.hadoop.options import typing_of
from klamm.hadoop.spark.typed import RegisteredSchemas
from klamm.schemas.names import JSON
from klamm.schemas.registry.log import TopicSchemaLog
from klammtest.broker import RunningBroker, running_broker
from klammtest.registry import RunningRegistry, running_registry
from klammtest.schemas import add, avro_bytes, stored

TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "id", "type": "long"}]}
LATER = {**TRIP, "fields": [*TRIP["fields"], {"name": "secret", "type": "string", "default": ""}]}  # type: ignore[misc]
ENTRIES = [
    stored("trips-value", 1, 1, json.dumps(TRIP)),
    stored("trips-value", 2, 2, json.dumps(LATER)),
    stored("orders-value", 1, 3, '{"type": "record", "name": "Order"}'),
    replace(stored("trips-value", 2, 2, json.dumps(LATER)), deleted=True),
    stored("flags-value", 1, 4, '{"type":"boolean"}', schema_type=JSON),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("topics"), topics={"trips": {}, "orders": {}}) as running:
        log = TopicSchemaLog(ClusterClient(running.bootstrap, codecs=CodecTable()))
        log.read()
        add(log, *ENTRIES)
        log.close()
        yield running


@pytest.fixture(scope="module")
def registry(broker: RunningBroker) -> Iterator[RunningRegistry]:
    with running_registry(broker.bootstrap) as running:
        yield running


@pytest.fixture(params=["log", "rest"])
def url(request: pytest.FixtureRequest, registry: RunningRegistry) -> str:
    """The registry's address, or "" for the topic."""
    return registry.url if request.param == "rest" else ""


@pytest.fixture
def topics(broker: RunningBroker, url: str, tmp_path: Path) -> Iterator[ClusterTopics]:
    formats: dict[str, Any] = {name: {"serde": "avro"} for name in ("trips", "orders", "flags")}
    formats["headers"] = {"serde": "avro", "envelope": "confluent-header"}
    settings = load_settings(
        {
            "consumer": {"bootstrap.servers": broker.bootstrap},
            "serdes": {"avro": {"schema.registry.url": url}},
            "topics": formats,
        }
    )
    made = ClusterTopics(settings, LakeConfig(path=f"file:{tmp_path}"), quarantine=False)
    yield made
    made.close()


def batch(*values: bytes) -> pa.RecordBatch:
    count = len(values)
    stamps = pa.array([0] * count, pa.timestamp("us", tz="UTC"))
    columns: dict[str, Any] = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": stamps,
    }
    return pa.RecordBatch.from_pydict(columns)


def test_a_schema_that_cannot_be_read_stops_only_its_own_records(topics: ClusterTopics) -> None:
    """Issue 29, A1: the load of each topic failed, and named neither subject nor id."""
    rows = RowMaker(pickle.loads(pickle.dumps(topics.format("trips"))))
    payload = avro_bytes(TRIP, {"id": 5})
    assert rows.rows(batch(b"\0\0\0\0\1" + payload)).column("id").to_pylist() == [5]
    why = r"offset 1: schema 3 \(orders-value, version 1\) cannot be read: not an Avro schema: 'fields' is missing"
    with pytest.raises(SchemaError, match=why):
        rows.rows(batch(b"\0\0\0\0\1" + payload, b"\0\0\0\0\3" + payload))
    with pytest.raises(SchemaError, match=r"^topic orders: schema 3 .*; name a schema that can be read"):
        topics.format("orders")


def test_a_deleted_version_gives_a_lake_no_column(topics: ClusterTopics) -> None:
    """Issue 29, A11; its records are read."""
    format_ = topics.format("trips")
    assert [field.name for field in format_.fields()] == ["id"]
    payload = avro_bytes(LATER, {"id": 6, "secret": "x"})
    assert RowMaker(format_).rows(batch(b"\0\0\0\0\2" + payload)).column("id").to_pylist() == [6]


def test_what_no_load_reads_is_refused_in_one_line(topics: ClusterTopics) -> None:
    why = r"^topic flags: schema 4 \(flags-value, version 1\) cannot be read: it is JSON, not Avro; name a schema"
    with pytest.raises(SchemaError, match=why):
        topics.format("flags")
    rows = RowMaker(topics.format("trips"))
    with pytest.raises(SchemaError, match=r"offset 0: schema 4 \(flags-value, version 1\) .* it is JSON, not Avro"):
        rows.rows(batch(b"\0\0\0\0\4true"))
    with pytest.raises(SchemaError, match=r"offset 0: no schema is registered as id 77"):
        rows.rows(batch(b"\0\0\0\0\x4dtrue"))
    with pytest.raises(ConfigError, match=r"^topics.headers.envelope: a load reads the schema's id in values; conf"):
        topics.format("headers")


def test_spark_finds_the_same(broker: RunningBroker, url: str) -> None:
    given = {"klamm.typed": "true"} | ({"klamm.schema.registry.url": url} if url else {})
    typing = typing_of(given, "source")
    assert typing is not None
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as client:
        schemas = RegisteredSchemas(client, typing, ())
        assert [one.schema_id for one in schemas.versions("trips")] == [1]
        assert json.loads(schemas.writer_of("trips", b"\0\0\0\0\2")) == LATER
        with pytest.raises(SchemaError, match="no schema is registered as id 77"):
            schemas.writer_of("trips", b"\0\0\0\0\x4d")
        with pytest.raises(SchemaError, match=r"^topic orders: schema 3 .*not an Avro schema"):
            next(schemas.versions("orders"))
        with pytest.raises(SchemaError, match=r"topic none: no schema is registered as none-value; klamm.typed needs"):
            next(schemas.versions("none"))
        wrong = typing_of({**given, "klamm.envelope": "confluent-header"}, "source")
        assert wrong is not None
        with pytest.raises(ConfigError, match=r"klamm.envelope: confluent-header has the schema's id in the header"):
            RegisteredSchemas(client, wrong, ())
    with pytest.raises(ConfigError, match=r"^klamm source: klamm.schema.registry.url: expected http://HOST:PORT"):
        typing_of({"klamm.typed": "true", "klamm.schema.registry.url": "nowhere"}, "source")
