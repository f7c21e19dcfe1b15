"""confluent-kafka's registry client and serializers, blocking (`python`) and on asyncio (`python-async`).

`registry_client.py ORDERS.json`; klammtest/registry_clients says what the file holds and what is printed.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import (
    AsyncSchemaRegistryClient,
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import (
    AsyncAvroDeserializer,
    AsyncAvroSerializer,
    AvroDeserializer,
    AvroSerializer,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import (
    AsyncJSONDeserializer,
    AsyncJSONSerializer,
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (
    AsyncProtobufDeserializer,
    AsyncProtobufSerializer,
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass

GIVEN: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
IS_ASYNC = GIVEN["client"] == "python-async"


async def of(value: Any) -> Any:
    """Returns a call's result, of either kind of client."""
    return await value if inspect.isawaitable(value) else value


@functools.cache
def order_class() -> Any:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(base64.b64decode(GIVEN["descriptors"])).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


async def feature(name: str, call: Callable[[], Awaitable[None]]) -> None:
    try:
        await call()
        problem = None
    except Exception as error:
        problem = f"{type(error).__name__}: {error} {traceback.format_exc(limit=-1)}"
    print(json.dumps({"feature": name, "problem": problem}), flush=True)


async def refused(call: Callable[[], Any], status: int, code: int, text: str) -> None:
    try:
        await of(call())
    except SchemaRegistryError as error:
        found = error
    else:
        raise AssertionError("it was accepted")
    assert (found.http_status_code, found.error_code) == (status, code), str(found)
    assert text in found.error_message, str(found)


class Work:
    """What is done with one format; `topic` is the client's topic of it."""

    def __init__(self, client: Any, name: str, given: dict[str, Any]) -> None:
        self.client, self.name = client, name
        self.type, self.texts, self.topic = given["type"], given, given["topic"]
        self.subject, self.line_subject = f"{self.topic}-value", f"{self.topic}-line"
        self.references = [SchemaReference(given["line_name"], self.line_subject, 1)]

    def schema(self, which: str) -> Schema:
        return Schema(self.texts[which], self.type, self.references)

    async def all(self) -> None:
        for call in (
            self.register,
            self.evolve,
            self.refused,
            self.by_id,
            self.use_references,
            self.delete,
            self.write,
        ):
            await feature(f"{self.name} {call.__name__.replace('_', ' ').replace('use ', '')}", call)

    async def register(self) -> None:
        await of(self.client.register_schema(self.line_subject, Schema(self.texts["line"], self.type)))
        self.id = await of(self.client.register_schema(self.subject, self.schema("order")))
        again = await of(self.client.lookup_schema(self.subject, self.schema("order")))
        assert (again.schema_id, again.version) == (self.id, 1)

    async def evolve(self) -> None:
        assert await of(self.client.test_compatibility(self.subject, self.schema("evolved")))
        self.id = await of(self.client.register_schema(self.subject, self.schema("evolved")))
        assert await of(self.client.get_versions(self.subject)) == [1, 2]
        assert (await of(self.client.get_latest_version(self.subject))).schema_id == self.id

    async def refused(self) -> None:
        assert not await of(self.client.test_compatibility(self.subject, self.schema("refused")))
        await refused(
            lambda: self.client.register_schema(self.subject, self.schema("refused")), 409, 40901, GIVEN["incompatible"]
        )
        await refused(lambda: self.client.register_schema(self.subject, Schema("{", self.type)), 422, 42201, "")

    async def by_id(self) -> None:
        self.client.clear_caches()
        found = await of(self.client.get_schema(self.id))
        assert (found.schema_type or "AVRO") == self.type
        await refused(lambda: self.client.get_schema(2**30), 404, 40403, "Schema 1073741824 not found")

    async def use_references(self) -> None:
        found = await of(self.client.get_schema(self.id))
        assert [(each.subject, each.version) for each in found.references] == [(self.line_subject, 1)]
        await refused(
            lambda: self.client.delete_version(self.line_subject, 1), 422, 42206, "One or more references exist"
        )

    async def delete(self) -> None:
        subject = f"{self.topic}-deleted"
        await of(self.client.register_schema(subject, Schema(self.texts["line"], self.type)))
        await of(self.client.set_config(subject, ServerConfig(compatibility=ConfigCompatibilityLevel.FULL)))
        assert (await of(self.client.get_config(subject))).compatibility_level == "FULL"
        assert await of(self.client.delete_subject(subject)) == [1]
        assert await of(self.client.delete_subject(subject, permanent=True)) == [1]
        await refused(lambda: self.client.get_versions(subject), 404, 40401, f"Subject '{subject}' not found.")

    async def write(self) -> None:
        serializer = await of(self.serializer())
        record = GIVEN["record"]
        value = ParseDict(record, order_class()()) if self.name == "protobuf" else record
        data = await of(serializer(value, SerializationContext(self.topic, MessageField.VALUE)))
        producer = Producer({"bootstrap.servers": GIVEN["bootstrap"]})
        producer.produce(self.topic, data)
        assert producer.flush(30) == 0

    def serializer(self) -> Any:
        if self.name == "protobuf":
            kind = AsyncProtobufSerializer if IS_ASYNC else ProtobufSerializer
            return kind(order_class(), self.client, {"use.deprecated.format": False})
        conf = {"auto.register.schemas": False, "use.latest.version": True}
        if self.name == "avro":
            made = AsyncAvroSerializer if IS_ASYNC else AvroSerializer
            return made(self.client, self.schema("evolved"), conf=conf)
        made = AsyncJSONSerializer if IS_ASYNC else JSONSerializer
        return made(self.schema("evolved"), self.client, conf=conf)


async def read(client: Any, topic: str, name: str) -> Any:
    if name == "protobuf":
        made = (AsyncProtobufDeserializer if IS_ASYNC else ProtobufDeserializer)(
            order_class(), {"use.deprecated.format": False}, client
        )
    elif name == "avro":
        made = (AsyncAvroDeserializer if IS_ASYNC else AvroDeserializer)(client)
    else:
        made = (AsyncJSONDeserializer if IS_ASYNC else JSONDeserializer)(None, schema_registry_client=client)
    deserializer = await of(made)
    consumer = Consumer({"bootstrap.servers": GIVEN["bootstrap"], "group.id": "python"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(30)
    finally:
        consumer.close()
    assert message is not None, "no record"
    value = await of(deserializer(message.value(), SerializationContext(topic, MessageField.VALUE)))
    if name != "protobuf":
        return value
    return {**MessageToDict(value), "id": value.id}


async def main() -> None:
    client = (AsyncSchemaRegistryClient if IS_ASYNC else SchemaRegistryClient)({"url": GIVEN["registry"]})
    if GIVEN["mode"] == "write":
        for name, given in GIVEN["formats"].items():
            await Work(client, name, given).all()
        return
    for topic in GIVEN["topics"]:
        try:
            found = {"record": await read(client, topic["name"], topic["format"]), "problem": None}
        except Exception as error:
            found = {"record": None, "problem": f"{type(error).__name__}: {error}"}
        print(json.dumps({"topic": topic["name"], **found}), flush=True)


asyncio.run(main())
