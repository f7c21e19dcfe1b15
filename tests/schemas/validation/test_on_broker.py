"""Validation of schemas on a running broker: raw batches, foreign clients, Klamm's own, and topics that change."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import klamm
from klamm.core.config.settings import Settings
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.records.encode import encode_batch
from klamm.core.records.header import crc_of, set_crc
from klamm.core.transport.address import Address
from klammtest.broker import KLAMM, RunningBroker, running_broker
from klammtest.ports import free_port
from klammtest.registry import RunningRegistry, running_registry
from klammtest.requests import alter_topic, batch, create_topic, fetch, produce
from klammtest.waiting import eventually
from klammtest.wire import WireClient

NOW_MS = 1_700_000_000_000
CODECS = Settings().codec_table()
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
ID, FULL = {"confluent.value.schema.validation": "true"}, {"klamm.value.schema.validation": "full"}


def prefixed(schema_id: int, payload: bytes = b"\x02") -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[RunningBroker]:
    services = [{"plugin": "registry", "listeners": f"http://127.0.0.1:{port}"}]
    with running_broker(tmp_path_factory.mktemp("validation"), broker={"services": services}) as running:
        yield running
        assert "Traceback" not in running.log()
        assert " ERROR " not in running.log()


@pytest.fixture(scope="module")
def registry(broker: RunningBroker, port: int) -> RunningRegistry:
    """The broker's own, which has one table with the validator."""
    return RunningRegistry(cast(Any, None), Address("127.0.0.1", port))


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as client:
        yield client


def registered(registry: RunningRegistry, subject: str, schema: Any = ORDER, **more: Any) -> int:
    answer = registry.register(subject, schema, **more)
    assert answer.status == 200, answer
    return int(answer.body["id"])


def errors_of(outcome: Any) -> dict[int, str]:
    return {error.batch_index: error.batch_index_error_message for error in outcome.record_errors}


@pytest.mark.parametrize("codec", [None, *sorted(CODECS.names())])
def test_a_batch_with_a_bad_record_is_refused_and_names_it(
    registry: RunningRegistry, wire: WireClient, codec: str | None
) -> None:
    topic = f"orders-{codec}"
    create_topic(wire, topic, config=ID)
    schema_id = registered(registry, f"{topic}-value")
    made = None if codec is None else CODECS.by_name(codec)
    good, bad = prefixed(schema_id), prefixed(999)
    assert produce(wire, topic, batch(good, good, codec=made)).error_code is ErrorCode.none
    outcome = produce(wire, topic, batch(good, bad, b"plain", good, codec=made))
    assert outcome.error_code is ErrorCode.invalid_record
    assert errors_of(outcome) == {
        1: "value: schema id 999 is not registered",
        2: "value: the payload begins with 0x70, not with 0x00 and a schema id",
    }
    assert f"{topic}-0: 2 of 4 records refused: record 1: value: schema id 999" in outcome.error_message
    assert produce(wire, topic, batch(good, codec=made)).base_offset == 2


def test_what_another_registry_has_just_registered_is_accepted_at_once(
    broker: RunningBroker, registry: RunningRegistry, wire: WireClient
) -> None:
    create_topic(wire, "just", config=ID)
    with running_registry(broker.bootstrap) as other:
        for number in range(20):
            schema = {"type": "fixed", "name": "F", "size": 30 - number, "doc": str(number)}
            other.put("/config/just-value", {"compatibility": "NONE"})
            schema_id = registered(other, "just-value", schema)
            assert produce(wire, "just", batch(prefixed(schema_id))).error_code is ErrorCode.none


def test_a_topic_is_altered_while_it_is_written(
    broker: RunningBroker, registry: RunningRegistry, wire: WireClient
) -> None:
    create_topic(wire, "altered")
    assert produce(wire, "altered", batch(b"plain")).error_code is ErrorCode.none

    def alter(*settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [KLAMM, "topics", "alter", "altered", *settings, "--bootstrap", broker.bootstrap],
            capture_output=True, text=True, check=False, cwd=broker.folder,
        )  # fmt: skip

    def refused() -> bool:
        return produce(wire, "altered", batch(b"plain")).error_code is ErrorCode.invalid_record

    assert alter("--set", "klamm.value.schema.validation=id").returncode == 0
    eventually(refused, "the broker validates")
    schema_id = registered(registry, "altered-value")
    assert produce(wire, "altered", batch(prefixed(schema_id, b"no Avro"))).error_code is ErrorCode.none
    assert alter("--set", "klamm.value.schema.validation=full").returncode == 0
    eventually(
        lambda: produce(wire, "altered", batch(prefixed(schema_id, b"no Avro"))).error_code is not ErrorCode.none,
        "the broker decodes",
    )
    assert produce(wire, "altered", batch(prefixed(schema_id))).error_code is ErrorCode.none
    alter_topic(wire, "altered", "klamm.value.schema.validation", "none")
    eventually(lambda: not refused(), "the broker validates no more")
    wrong = alter("--set", "klamm.value.schema.validation=yes")
    assert wrong.returncode != 0
    assert "klamm.value.schema.validation: should be 'none', 'id' or 'full', got 'yes'" in wrong.stderr


def test_tombstones_pass_and_a_compacted_topic_needs_its_keys_all_the_same(
    registry: RunningRegistry, wire: WireClient
) -> None:
    create_topic(wire, "compacted", config={"cleanup.policy": "compact", **ID})
    schema_id = registered(registry, "compacted-value")

    def sent(key: bytes | None, value: bytes | None) -> Any:
        return produce(wire, "compacted", encode_batch([(NOW_MS, key, value, ())]))

    assert sent(b"k", prefixed(schema_id)).error_code is ErrorCode.none
    assert sent(b"k", None).error_code is ErrorCode.none
    assert sent(b"k", b"").error_code is ErrorCode.invalid_record
    assert sent(None, None).error_code is ErrorCode.invalid_record


def test_control_batches_are_the_logs_to_refuse(wire: WireClient) -> None:
    create_topic(wire, "control", config=ID)
    made = bytearray(batch(b"\0\0\0\1"))
    made[22] |= 0x20
    set_crc(made, 0, crc_of(made, 0, len(made)))
    outcome = produce(wire, "control", bytes(made))
    assert (outcome.error_code, list(outcome.record_errors)) == (ErrorCode.invalid_record, [])
    assert "control batches" in outcome.error_message


def test_confluents_serializers_pass_and_others_get_the_error_of_their_record(
    broker: RunningBroker, registry: RunningRegistry, wire: WireClient
) -> None:
    create_topic(wire, "foreign", config=FULL)
    answers: dict[bytes, KafkaError | None] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 10_000, "enable.idempotence": True})
    with SchemaRegistryClient({"url": registry.url}) as client:
        context = SerializationContext("foreign", MessageField.VALUE)
        good = AvroSerializer(client, json.dumps(ORDER))({"id": 7}, context)
        document = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}}
        registry.put("/config/foreign-value", {"compatibility": "NONE"})
        also = JSONSerializer(json.dumps(document), client)({"id": 7}, context)
        sent = {b"avro": good, b"json": also, b"null": None, b"bytes": b"plain", b"more": good, b"bytes 2": b"plain"}
        for name, value in sent.items():
            producer.produce(
                "foreign", value, key=name, on_delivery=lambda error, message: answers.update({message.key(): error})
            )
            if name == b"null":
                assert producer.flush(30) == 0
        assert producer.flush(30) == 0
    assert [answers[name] for name in (b"avro", b"json", b"null")] == [None] * 3
    error = answers[b"bytes"]
    assert error is not None
    assert error.code() == KafkaError.INVALID_RECORD
    beside = answers[b"more"]
    assert beside is not None
    assert beside.code() == KafkaError._INVALID_DIFFERENT_RECORD, "of the same batch, where two others are at fault"


def test_klamms_own_producer_writes_by_its_schema_and_reports_a_refusal(
    broker: RunningBroker, wire: WireClient, tmp_path: Path
) -> None:
    create_topic(wire, "own", config=FULL)
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    settings = {
        "producer": {"bootstrap.servers": broker.bootstrap},
        "coordination": {"plugin": "embedded", "path": str(broker.folder / "coordination.db")},
        "topics": {"own": {"schema": str(tmp_path / "order.avsc")}},
    }
    with klamm.Producer(settings) as producer:
        assert producer.send("own", {"id": 7}).result(30).offset == 0
    with klamm.Producer({"producer": {"bootstrap.servers": broker.bootstrap}}) as producer:
        refusal = producer.send("own", b"plain").exception(30)
    assert isinstance(refusal, KlammError)
    assert "record 0: value: the payload begins with 0x70" in str(refusal)
    assert [fetch(wire, "own", 0).error_code] == [ErrorCode.none]
