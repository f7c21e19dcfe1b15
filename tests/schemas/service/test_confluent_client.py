"""The registry beside confluent-kafka's own client and serializers, as its users write them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import AsyncSchemaRegistryClient, Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.records.codecs import CodecTable
from klammtest.broker import RunningBroker
from klammtest.registry import RunningRegistry

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}  # fmt: skip
JSON_ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}, "required": ["id"],
}  # fmt: skip


@pytest.fixture
def client(registry: RunningRegistry) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as opened:
        yield opened


def round_trip(broker: RunningBroker, topic: str, data: bytes) -> bytes:
    """Returns what a consumer gets of a value that a producer has sent."""
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as admin:
        admin.create_topics({topic: NewTopic(1)})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, data)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return bytes(message.value())
    finally:
        consumer.close()


def test_avro_records_go_through_a_topic(client: SchemaRegistryClient, broker: RunningBroker, subject: str) -> None:
    serialize, deserialize = AvroSerializer(client, json.dumps(ORDER)), AvroDeserializer(client)
    context = SerializationContext(subject, MessageField.VALUE)
    order = {"id": 7, "note": "größe"}
    data = round_trip(broker, subject, serialize(order, context))
    assert deserialize(data, context) == order
    assert client.get_latest_version(f"{subject}-value").version == 1
    wider = {**ORDER, "fields": [*ORDER["fields"], {"name": "price", "type": "double", "default": 0.0}]}
    newer = AvroSerializer(client, json.dumps(wider))({"id": 8, "note": None, "price": 1.5}, context)
    assert AvroDeserializer(client, json.dumps(ORDER))(newer, context) == {"id": 8, "note": None}
    refused = AvroSerializer(client, json.dumps({**ORDER, "fields": [{"name": "other", "type": "int"}]}))
    with pytest.raises(SchemaRegistryError, match="incompatible with an earlier schema") as raised:
        refused({"other": 1}, context)
    assert (raised.value.http_status_code, raised.value.error_code) == (409, 40901)


def test_json_records_go_through_a_topic(client: SchemaRegistryClient, broker: RunningBroker, subject: str) -> None:
    text = json.dumps(JSON_ORDER)
    context = SerializationContext(subject, MessageField.VALUE)
    data = round_trip(broker, subject, JSONSerializer(text, client)({"id": 7, "note": "x"}, context))
    assert JSONDeserializer(text, schema_registry_client=client)(data, context) == {"id": 7, "note": "x"}
    assert client.get_latest_version(f"{subject}-value").schema.schema_type == "JSON"


def test_the_client_calls_what_it_has(client: SchemaRegistryClient, subject: str) -> None:
    inner = Schema(json.dumps({"type": "record", "name": "Inner", "fields": []}), "AVRO")
    client.register_schema(f"{subject}-inner", inner)
    outer = Schema('{"type":"array","items":"Inner"}', "AVRO", [SchemaReference("Inner", f"{subject}-inner", 1)])
    schema_id = client.register_schema(subject, outer)
    assert client.register_schema(subject, outer) == schema_id
    assert client.get_schema(schema_id).references[0].subject == f"{subject}-inner"
    assert client.lookup_schema(subject, outer).version == 1
    assert client.get_versions(subject) == [1]
    assert {f"{subject}-inner", subject} <= set(client.get_subjects())
    assert client.test_compatibility(subject, outer)
    assert client.set_compatibility(subject, "FULL")["compatibility"] == "FULL"
    assert client.get_compatibility(subject) == "FULL"
    assert client.get_version(subject, 1).schema_id == schema_id
    with pytest.raises(SchemaRegistryError) as raised:
        client.delete_subject(f"{subject}-inner")
    assert raised.value.error_code == 42206
    assert client.delete_version(subject, 1) == 1
    assert client.delete_subject(f"{subject}-inner", permanent=False) == [1]


def test_the_asynchronous_client(registry: RunningRegistry, subject: str) -> None:
    async def use() -> Any:
        async with AsyncSchemaRegistryClient({"url": registry.url}) as client:
            schema_id = await client.register_schema(subject, Schema(json.dumps(ORDER), "AVRO"))
            return schema_id, await client.get_schema(schema_id), await client.get_latest_version(subject)

    schema_id, schema, latest = asyncio.run(use())
    assert json.loads(schema.schema_str) == ORDER
    assert latest.schema_id == schema_id
