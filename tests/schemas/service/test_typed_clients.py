"""Klamm's typed clients at a registry, beside confluent-kafka's serializers: what one writes, the other reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import klamm
from klamm.core.client.cluster_client import ClusterClient, NewTopic
from klamm.core.client.errors import UnreadableRecordError
from klamm.core.errors import RegistryUnavailableError, SchemaError
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klamm.schemas.protobuf.messages import Messages
from klamm.schemas.protobuf.schema import parse
from klammtest.broker import KLAMM, RunningBroker
from klammtest.registry import RunningRegistry
from klammtest.registry_front import Answer, registry_front

AVRO = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": null}]}"""
JSON = """{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
  "properties": {"id": {"type": "integer"}, "note": {"type": ["string", "null"]}}, "required": ["id"]}"""
PROTO = """syntax = "proto3";
package shop;
message Basket { map<string, int32> counts = 1; message Order { int64 id = 1; optional string note = 2; } }
"""
ORDER = {"id": 2**53 + 1, "note": "größe"}
PLACE = (0, 1)
"""The entry of the map is the first message within the basket."""
Sent = list[tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]]


@pytest.fixture
def topic(broker: RunningBroker, subject: str) -> str:
    with ClusterClient(broker.bootstrap, codecs=CodecTable()) as admin:
        admin.create_topics({subject: NewTopic(1)})
    return subject


class Foreign:
    """confluent-kafka's serializer and deserializer of a format, as its users make them."""

    def __init__(self, kind: str, client: SchemaRegistryClient, topic: str, header: bool) -> None:
        config = {"schema.id.serializer": header_schema_id_serializer} if header else {}
        self._kind = kind
        self._context = SerializationContext(topic, MessageField.VALUE, [])
        self._order = Messages(parse(PROTO)).at(PLACE)
        self._write: Any
        self._read: Any
        if kind == "avro":
            self._write, self._read = AvroSerializer(client, AVRO, conf=config), AvroDeserializer(client)
        elif kind == "json-schema":
            self._write = JSONSerializer(JSON, client, conf=config)
            self._read = JSONDeserializer(None, schema_registry_client=client)
        else:
            config = {**config, "use.deprecated.format": False}
            self._write = ProtobufSerializer(self._order, client, config)
            self._read = ProtobufDeserializer(self._order, {"use.deprecated.format": False}, client)

    def write(self, value: Mapping[str, Any]) -> tuple[bytes, list[tuple[str, bytes]]]:
        self._context.headers = []
        given = self._order(**value) if self._kind == "protobuf" else value
        return self._write(given, self._context), list(self._context.headers)

    def read(self, data: bytes | None, headers: Any) -> dict[str, Any]:
        self._context.headers = list(headers)
        found = self._read(data, self._context)
        return {"id": found.id, "note": found.note} if self._kind == "protobuf" else found


def config(broker: RunningBroker, topic: str, **section: Any) -> dict[str, Any]:
    """`section`: the topic's keys."""
    servers = {"bootstrap.servers": broker.bootstrap}
    return {
        "topics": {topic: {name.replace("_", "."): value for name, value in section.items()}},
        "producer": {**servers, "delivery.timeout.ms": 30_000, "linger.ms": 0},
        "consumer": {**servers, "request.timeout.ms": 5_000, "auto.offset.reset": "earliest"},
    }


def read(settings: Mapping[str, Any], topic: str, count: int = 1) -> list[Any]:
    with klamm.Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[Any] = []
        while len(found) < count:
            found += consumer.poll(10)
        return found


def command(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([KLAMM, *arguments], input=given, capture_output=True, text=True, timeout=120, check=False)


def schema_file(folder: Path, kind: str) -> str:
    text, suffix = {"avro": (AVRO, "avsc"), "json-schema": (JSON, "json"), "protobuf": (PROTO, "proto")}[kind]
    path = folder / f"order.{suffix}"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("envelope", ["confluent", "confluent-header"])
@pytest.mark.parametrize("kind", ["avro", "json-schema", "protobuf"])
def test_records_go_both_ways(
    kind: str, envelope: str, broker: RunningBroker, registry: RunningRegistry, topic: str, tmp_path: Path
) -> None:
    typed = config(
        broker, topic, serde=kind, schema=schema_file(tmp_path, kind), envelope=envelope,
        schema_registry_url=f"http://127.0.0.1:1,{registry.url}",
        **({"message": "shop.Basket.Order"} if kind == "protobuf" else {}),
    )  # fmt: skip
    with SchemaRegistryClient({"url": registry.url}) as client:
        foreign = Foreign(kind, client, topic, header=envelope == "confluent-header")
        with klamm.Producer(typed) as producer:
            producer.send(topic, ORDER, headers=[("own", b"1")]).result(30)
            producer.send(topic, None).result(30)
        with klamm.Producer(config(broker, topic)) as plain:
            data, headers = foreign.write({"id": 7, "note": "x"})
            plain.send(topic, data, headers=headers).result(30)
        raw = read(config(broker, topic), topic, 3)
        assert [bool(dict(one.headers).get("__value_schema_id")) for one in raw] == (
            [True, False, True] if envelope == "confluent-header" else [False] * 3
        )
        assert dict(raw[0].headers)["own"] == b"1"
        assert foreign.read(raw[0].value, raw[0].headers) == ORDER
        assert [one.value for one in read(typed, topic, 3)] == [ORDER, None, {"id": 7, "note": "x"}]
        reader = config(broker, topic, serde=kind, envelope=envelope, schema_registry_url=registry.url)
        assert [one.value for one in read(reader, topic, 3)] == [ORDER, None, {"id": 7, "note": "x"}]
        if kind != "protobuf":  # its text is a descriptor without the comments, which the registry prints again
            assert client.get_latest_version(f"{topic}-value").version == 1


@pytest.mark.parametrize("kind", ["avro", "json-schema"])
def test_columns(kind: str, broker: RunningBroker, registry: RunningRegistry, topic: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    for envelope in ("confluent", "confluent-header"):
        typed = config(
            broker, topic, serde=kind, schema=schema_file(tmp_path, kind), envelope=envelope,
            schema_registry_url=registry.url,
        )  # fmt: skip
        with klamm.Producer(typed) as producer:
            table = pa.table({"id": [1, 2], "note": ["a longer text", "and another"]})
            assert producer.send_arrow(topic, table).result(30)
        with SchemaRegistryClient({"url": registry.url}) as client:
            foreign = Foreign(kind, client, topic, header=False)
            assert [foreign.read(one.value, one.headers) for one in read(config(broker, topic), topic, 2)][-2:] == [
                {"id": 1, "note": "a longer text"},
                {"id": 2, "note": "and another"},
            ]
        with klamm.Consumer(typed) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found = []
            while len(found) < 2:
                found += consumer.poll_arrow(10)["value"].to_pylist()
            assert found[:2] == table.to_pylist()


def test_an_outage_of_the_registry_loses_nothing(
    broker: RunningBroker, registry: RunningRegistry, topic: str, tmp_path: Path
) -> None:
    refused: list[Answer] = [(503, b"starting")] * 2
    with registry_front(lambda *_: refused.pop() if refused else None, registry) as front:
        typed = config(broker, topic, schema=schema_file(tmp_path, "avro"), schema_registry_url=front.url)
        with klamm.Producer(typed) as producer:
            producer.send(topic, ORDER).result(30)
        assert not refused

        down = (503, {"error_code": 50003, "message": "starting"})
        front.decide = lambda *_: down
        typed["producer"] |= {"delivery.timeout.ms": 3000, "request.timeout.ms": 3000}
        with klamm.Producer(typed) as producer:
            with pytest.raises(
                RegistryUnavailableError, match=rf"^topic {topic}, subject {topic}-value: no schema reg"
            ):
                producer.send(topic, {"id": 2, "note": None})
            front.decide = lambda *_: None
            producer.send(topic, {"id": 2, "note": None}).result(30)

        front.decide = lambda *_: down
        typed["consumer"]["request.timeout.ms"] = 400
        why = (
            rf"^topic '{topic}' partition 0 offset 0: no schema registry answers for 0.4 s: {front.url}: status 503: st"
        )
        with klamm.Consumer(typed) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            for _ in range(2):
                with pytest.raises(RegistryUnavailableError, match=why):
                    consumer.poll(10)
            front.decide = lambda *_: (401, {"error_code": 401, "message": "Unauthorized"})
            with pytest.raises(RegistryUnavailableError, match=rf"^topic '{topic}' partition 0 offset 0: .*status 401"):
                consumer.poll(10)
            front.decide = lambda *_: None
            found: list[Any] = []
            while len(found) < 2:
                found += consumer.poll(10)
            assert [one.value for one in found] == [ORDER, {"id": 2, "note": None}]


@pytest.mark.parametrize("envelope", ["confluent", "confluent-header"])
def test_a_record_that_cannot_be_read_says_where_and_may_be_skipped(
    envelope: str, broker: RunningBroker, registry: RunningRegistry, topic: str, tmp_path: Path
) -> None:
    typed = config(
        broker, topic, schema=schema_file(tmp_path, "avro"), envelope=envelope, schema_registry_url=registry.url
    )
    unknown = b"\0\x7f\xff\xff\xff{}" if envelope == "confluent" else b"\1" + b"\xab" * 16
    with klamm.Producer(config(broker, topic)) as plain:
        headers = [("__value_schema_id", unknown)] if envelope == "confluent-header" else []
        plain.send(topic, unknown, headers=headers).result(30)
    with klamm.Producer(typed) as producer:
        producer.send(topic, ORDER).result(30)
    named = "id 2147483647" if envelope == "confluent" else "GUID abababab-abab-abab-abab-abababababab"
    with klamm.Consumer(typed) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(UnreadableRecordError) as caught:
            consumer.poll(10)
        assert str(caught.value) == f"topic '{topic}' partition 0 offset 0: topic {topic}: unknown schema {named}"
        consumer.seek(TopicPartition(topic, 0), caught.value.next_offset)
        assert [one.value for one in consumer.poll(10)] == [ORDER]


def test_the_newest_version_is_written(
    broker: RunningBroker, registry: RunningRegistry, topic: str, tmp_path: Path
) -> None:
    wider = json.loads(AVRO)
    wider["fields"].append({"name": "price", "type": "double", "default": 0.5})
    keys = {"schema_registry_url": registry.url, "auto_register_schemas": False}
    own = config(broker, topic, schema=schema_file(tmp_path, "avro"), **keys)
    newest = config(broker, topic, serde="avro", use_latest_version=True, **keys)
    strict = config(broker, topic, schema=schema_file(tmp_path, "avro"), use_latest_version=True, **keys)
    with (
        klamm.Producer(own) as producer,
        pytest.raises(SchemaError, match=f"schema is not registered as {topic}-value"),
    ):
        producer.send(topic, ORDER)
    with klamm.Producer(newest) as producer, pytest.raises(SchemaError, match=f"no schema is registered as {topic}-va"):
        producer.send(topic, ORDER)
    assert registry.register(f"{topic}-value", json.loads(AVRO)).status == 200
    assert registry.register(f"{topic}-value", wider).status == 200
    for settings in (own, newest, strict):
        with klamm.Producer(settings) as producer:
            producer.send(topic, ORDER).result(30)
    reader = config(broker, topic, serde="avro", schema_registry_url=registry.url)
    assert [one.value for one in read(reader, topic, 3)] == [ORDER, {**ORDER, "price": 0.5}, {**ORDER, "price": 0.5}]
    registry.put(f"/config/{topic}-value", {"compatibility": "NONE"})
    other = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "must", "type": "int"}]}
    assert registry.register(f"{topic}-value", other).status == 200
    why = rf"the newest version of {topic}-value, id \d+, cannot read what the topic's schema writes: .*must"
    with klamm.Producer(strict) as producer, pytest.raises(SchemaError, match=why):
        producer.send(topic, ORDER)


def test_commands(broker: RunningBroker, registry: RunningRegistry, topic: str, tmp_path: Path) -> None:
    typed = config(
        broker, topic, serde="protobuf", schema=schema_file(tmp_path, "protobuf"), message="shop.Basket.Order",
        envelope="confluent-header", schema_registry_url=registry.url,
    )  # fmt: skip
    path = tmp_path / "klamm.yaml"
    path.write_text(yaml.safe_dump(typed))
    sent = command("produce", topic, "--config", str(path), given='{"id": "7", "note": "x"}\n{"nope": 1}\n')
    assert "1 record sent" in sent.stderr
    assert f"line 2: topic {topic}: the value does not fit its schema: " in sent.stderr
    assert [(one.value, len(dict(one.headers)["__value_schema_id"])) for one in read(config(broker, topic), topic)] == [
        (b"\x08\x07\x12\x01x", 20)
    ]
    shown = command("consume", topic, "--config", str(path), "-q")
    assert json.loads(shown.stdout) == {"id": "7", "note": "x"}
