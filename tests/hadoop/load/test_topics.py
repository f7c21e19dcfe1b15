"""The schemas of a load, from a broker's schemas topic to which others have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.config.settings import load_settings
from klamm.core.errors import SchemaError
from klamm.core.records.codecs import CodecTable
from klamm.hadoop.lake.config import LakeConfig
from klamm.hadoop.load.rows import RowMaker
from klamm.hadoop.load.topics import ClusterTopics
from klamm.schemas.log import TopicSchemaLog
from klammtest.broker import RunningBroker, running_broker
from klammtest.schemas import add, avro_bytes, stored

TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "id", "type": "long"}]}
LATER = {**TRIP, "fields": [*TRIP["fields"], {"name": "secret", "type": "string", "default": ""}]}  # type: ignore[misc]
ENTRIES = [
    stored("trips-value", 1, 1, json.dumps(TRIP)),
    stored("trips-value", 2, 2, json.dumps(LATER)),
    stored("orders-value", 1, 3, '{"type": "record", "name": "Order"}'),
    replace(stored("trips-value", 2, 2, json.dumps(LATER)), deleted=True),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("topics"), topics={"trips": {}, "orders": {}}) as running:
        yield running


@pytest.fixture
def topics(broker: RunningBroker, tmp_path: Path) -> Iterator[ClusterTopics]:
    log = TopicSchemaLog(ClusterClient(broker.bootstrap, codecs=CodecTable()))
    if not log.read().position:
        add(log, *ENTRIES)
    log.close()
    formats = {name: {"envelope": "confluent", "serde": "avro"} for name in ("trips", "orders")}
    consumer = {"bootstrap.servers": broker.bootstrap}
    settings = load_settings({"consumer": consumer, "topics": formats})
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
    rows = RowMaker(topics.format("trips"))
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
