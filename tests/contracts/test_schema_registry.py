"""What typed clients need of a registry holds for the topic of schemas and for a registry that is asked by REST."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import SchemaKey
from klamm.core.records.codecs import CodecTable
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.names import AVRO, JSON, PROTOBUF
from klamm.schemas.options import RegistryAccess
from klamm.schemas.registry.log import kept_ids
from klamm.schemas.registry.registry import SchemaRegistry, open_registry
from klamm.schemas.store.schema import Reference
from klammtest.broker import RunningBroker, running_broker
from klammtest.registry import RunningRegistry, running_registry
from klammtest.schemas import embedded

_NUMBER = itertools.count()
PROTO = 'syntax = "proto3";\npackage shop;\n\nmessage Order {\n  string id = 1;\n}\n'


def avro(*names: str, record: str = "R", **more: Any) -> str:
    fields = [{"name": name, "type": "int", **more} for name in names]
    return json.dumps({"type": "record", "name": record, "fields": fields})


class Open(Protocol):
    def __call__(self, schema_type: str = AVRO) -> SchemaRegistry: ...


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def coordination(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordination]:
    made = embedded(tmp_path_factory.mktemp("coordination"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def service(broker: RunningBroker, coordination: Coordination) -> Iterator[RunningRegistry]:
    with running_registry(broker.bootstrap, kept_ids(coordination)) as running:
        yield running


@pytest.fixture(params=["log", "rest"])
def opened(
    request: pytest.FixtureRequest, broker: RunningBroker, coordination: Coordination, service: RunningRegistry
) -> Iterator[Open]:
    made: list[SchemaRegistry] = []

    def open_one(schema_type: str = AVRO) -> SchemaRegistry:
        access = RegistryAccess(schema_registry_url=(service.url,) if request.param == "rest" else ())
        made.append(
            open_registry(
                access,
                lambda: ClusterClient(broker.bootstrap, codecs=CodecTable(), client_id="contract"),
                lambda: coordination,
                schema_type=schema_type,
            )
        )
        return made[-1]

    yield open_one
    for registry in made:
        registry.close()


@pytest.fixture
def subject() -> str:
    return f"contract-{next(_NUMBER)}-value"


def keys(registry: SchemaRegistry, subject: str, text: str) -> list[SchemaKey]:
    found = registry.register(subject, text)
    return [
        SchemaKey(schema_id=found.schema_id),
        SchemaKey(md5=found.md5),
        SchemaKey(fingerprint=found.fingerprint),
        SchemaKey(guid=found.guid),
    ]


def test_a_schema_has_one_id_and_is_found_by_each_key(opened: Open, subject: str) -> None:
    text = avro("a", record=f"One{next(_NUMBER)}")
    first = opened().register(subject, text)
    reader = opened()
    assert opened().register(subject, text.replace(" ", "\n")) == first
    for key in keys(reader, subject, text):
        assert opened().lookup(key, subject) == first
    assert first.text == text.replace(" ", "")
    assert len(first.guid) == 16


def test_an_unknown_key_is_one_line(opened: Open, subject: str) -> None:
    reader = opened()
    keys = {
        "id 2147483647": SchemaKey(schema_id=2**31 - 1),
        "MD5 6d": SchemaKey(md5=b"m" * 16),
        "fingerprint 66": SchemaKey(fingerprint=b"f" * 8),
        "GUID 67": SchemaKey(guid=b"g" * 16),
    }
    for named, key in keys.items():
        with pytest.raises(SchemaError, match=f"unknown schema {named}"):
            reader.lookup(key, subject)


def test_an_incompatible_version_is_refused(opened: Open, subject: str) -> None:
    registry = opened()
    registry.register(subject, avro("a"))
    with pytest.raises(SchemaError, match=rf"{subject}.*\bb\b") as caught:
        registry.register(subject, avro("a", "b"))
    assert "\n" not in str(caught.value)
    assert [one.version for one in registry.newest_first(subject)] == [1]
    second = registry.register(subject, avro("a", "b", default=1))
    assert [one.version for one in opened().newest_first(subject)] == [2, 1]
    assert opened().latest(subject) == second


def test_the_level_comes_with_the_first_version(opened: Open, subject: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = opened()
    registry.register(subject, avro("a"), Compatibility.NONE)
    assert registry.register(subject, avro("b"), Compatibility.NONE).schema_id
    assert not caplog.records
    registry.register(subject, avro("c"), Compatibility.FULL)
    assert "compatibility is NONE in the registry, which counts" in caplog.text


def test_a_text_that_is_no_schema_is_refused(opened: Open, subject: str) -> None:
    with pytest.raises(SchemaError):
        opened().register(subject, '{"type": "record", "name": "R"}')


def test_a_schema_that_is_not_registered(opened: Open, subject: str) -> None:
    registry = opened()
    with pytest.raises(SchemaError, match=f"the schema is not registered as {subject}"):
        registry.registered(subject, avro("a"))
    with pytest.raises(SchemaError, match=f"no schema is registered as {subject}"):
        registry.latest(subject)
    assert list(registry.newest_first(subject)) == []
    made = registry.register(subject, avro("a"))
    assert registry.registered(subject, avro("a")) == made
    with pytest.raises(SchemaError, match=f"the schema is not registered as {subject}"):
        registry.registered(subject, avro("a", "b"))


def test_references_are_written_out(opened: Open, subject: str) -> None:
    registry = opened()
    registry.register(f"{subject}-money", avro("cents", record="Money"))
    text = '{"type":"record","name":"Sale","fields":[{"name":"price","type":"Money"}]}'
    reference = Reference("Money", f"{subject}-money", -1)
    with pytest.raises(SchemaError):
        registry.register(subject, text)
    made = registry.register(subject, text, references=[reference])
    assert json.loads(made.text)["fields"][0]["type"]["name"] == "Money"
    assert registry.register(subject, text, references=[reference]) == made
    assert opened().lookup(SchemaKey(schema_id=made.schema_id), subject) == made


def test_normalized_texts_are_one(opened: Open, subject: str) -> None:
    registry = opened()
    text = '{"type":"string","b":1,"a":2}'
    turned = '{"type":"string","a":2,"b":1}'
    assert registry.register(subject, text).schema_id != registry.register(subject, turned).schema_id
    made = registry.register(f"{subject}-n", text, normalize=True)
    assert registry.register(f"{subject}-n", turned, normalize=True) == made
    assert registry.registered(f"{subject}-n", turned, normalize=True) == made


def test_json_schema_and_protobuf(opened: Open, subject: str) -> None:
    document = '{"type":"object","title":"Order","properties":{"id":{"type":"string"}},"additionalProperties":false}'
    registry = opened(JSON)
    made = registry.register(f"{subject}-json", document)
    assert (made.schema_type, made.text, made.fingerprint) == (JSON, document, b"")
    assert opened(JSON).lookup(SchemaKey(schema_id=made.schema_id)) == made
    assert opened(JSON).lookup(SchemaKey(guid=made.guid)) == made
    with pytest.raises(SchemaError, match=f"{subject}-json"):
        registry.register(f"{subject}-json", document.replace('"string"', '"number"'))

    registry = opened(PROTOBUF)
    registry.register(f"{subject}-order", PROTO)
    imported = 'syntax = "proto3";\nimport "order.proto";\n\nmessage Cart {\n  repeated shop.Order orders = 1;\n}\n'
    cart = registry.register(subject, imported, references=[Reference("order.proto", f"{subject}-order", 1)])
    again = opened(PROTOBUF).lookup(SchemaKey(schema_id=cart.schema_id))
    assert (again.schema_type, dict(again.references)) == (PROTOBUF, {"order.proto": PROTO})
    with pytest.raises(SchemaError, match=subject):
        registry.register(subject, imported.replace("shop.Order orders", "int32 orders"), references=[
            Reference("order.proto", f"{subject}-order", 1)
        ])  # fmt: skip


def test_a_schema_of_another_format_says_which(opened: Open, subject: str) -> None:
    made = opened(PROTOBUF).register(subject, PROTO.replace("shop", f"shop{next(_NUMBER)}"))
    with pytest.raises(SchemaError, match=rf"schema {made.schema_id} \({subject}, version 1\).*PROTOBUF, not Avro"):
        opened().lookup(SchemaKey(schema_id=made.schema_id))
    with pytest.raises(SchemaError, match="PROTOBUF, not JSON Schema"):
        opened(JSON).lookup(SchemaKey(schema_id=made.schema_id))


def test_contexts_count_their_own_ids(opened: Open, subject: str) -> None:
    registry = opened()
    other = f":.c{next(_NUMBER)}:{subject}"
    text = avro("a", record=f"Ctx{next(_NUMBER)}")
    made = registry.register(other, text)
    assert made.schema_id == 1
    assert opened().lookup(SchemaKey(schema_id=1), other) == made
    assert opened().lookup(SchemaKey(guid=made.guid), other) == made
    assert opened().lookup(SchemaKey(guid=made.guid), subject).text == made.text


def test_a_withdrawn_version_is_read(
    opened: Open, subject: str, broker: RunningBroker, service: RunningRegistry
) -> None:
    made = opened().register(subject, avro("a", record=f"Gone{next(_NUMBER)}"))
    assert service.delete(f"/subjects/{subject}/versions/1").status == 200
    assert opened().lookup(SchemaKey(schema_id=made.schema_id), subject) == made
    assert list(opened().newest_first(subject)) == []


def test_a_job_takes_the_writers_to_its_tasks(opened: Open, subject: str) -> None:
    registry = opened()
    text = avro("a", record=f"Job{next(_NUMBER)}")
    made = registry.register(subject, text)
    writers = pickle.loads(pickle.dumps(registry.writers(subject)))
    assert writers.get(SchemaKey(schema_id=made.schema_id)) == made.text
    assert writers.get(SchemaKey(fingerprint=made.fingerprint)) == made.text
    assert writers.get(SchemaKey(schema_id=2**31 - 1)) is None
