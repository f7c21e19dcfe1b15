"""Values as JSON, checked by their schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.serde import HeaderDeserializer, HeaderSerializer, Serde
from klamm.schemas.json_schema import patterns
from klamm.schemas.names import JSON
from klamm.schemas.options import JsonSchemaOptions
from klamm.schemas.registry.registry import LogRegistry
from klamm.schemas.serdes.json_schema import JsonSchemaSerde
from klamm.schemas.worker_process import WorkerProcess
from klamm.testing.contracts import SerdeContract
from klammtest.schemas import context, embedded, registry

TRIP = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Trip",
        "type": "object",
        "properties": {
            "rider": {"type": "string"},
            "km": {"type": "number", "minimum": 0},
            "stops": {"type": "array", "items": {"$ref": "#/definitions/stop"}},
        },
        "required": ["rider"],
        "definitions": {"stop": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}},
    }
)
VALUE = {"rider": "änn", "km": 1.5, "stops": [{"at": "x"}]}


@dataclass
class Trip:
    rider: str
    km: float = 0.0
    stops: list[Any] | None = None


@pytest.fixture
def schemas(tmp_path: Path) -> Iterator[LogRegistry]:
    coordination = embedded(tmp_path)
    yield registry(coordination, schema_type=JSON)
    coordination.close()


def made(schemas: LogRegistry, envelope: str = "confluent", **options: Any) -> JsonSchemaSerde:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return JsonSchemaSerde(JsonSchemaOptions(), context({"t": (TRIP, envelope, given)}), schemas)


class TestContract(SerdeContract):
    topic = "t"
    values: Sequence[Any] = (VALUE, {"rider": ""}, {"rider": "b", "more": [None, True, 2**70, {"a": 1e300}]})
    unfit: Sequence[Any] = (
        {"km": 1},
        {"rider": 7},
        {"rider": "a", "km": -1},
        {"rider": "a", "km": float("nan")},
        {"rider": b"a"},
        "text",
        {"rider": "a", "stops": [{"at": "x"}, {}]},
    )
    unreadable: Sequence[bytes] = (b"\xff" * 40, b"\0\0\0\0\x07{}", b"", b"\0")

    @pytest.fixture
    def serde(self, schemas: LogRegistry) -> Serde:
        return made(schemas)


def test_the_wire_form_is_the_id_and_the_json(schemas: LogRegistry) -> None:
    data = made(schemas).serializer("t")(VALUE)
    assert data == b"\0\0\0\0\x01" + json.dumps(VALUE, ensure_ascii=False, separators=(",", ":")).encode()


def test_dataclasses(schemas: LogRegistry) -> None:
    serde = made(schemas, record_class=f"{Trip.__module__}:Trip")
    data = serde.serializer("t")(Trip("ann", 2.5, [{"at": "x"}]))
    assert serde.deserializer("t")(data) == Trip("ann", 2.5, [{"at": "x"}])
    assert serde.json_deserializer("t")(data) == '{"rider":"ann","km":2.5,"stops":[{"at":"x"}]}'


def test_a_misfit_names_the_field(schemas: LogRegistry) -> None:
    write = made(schemas).serializer("t")
    with pytest.raises(SchemaError, match="topic t: the value does not fit its schema: field /stops/1: 'at' is a req"):
        write({"rider": "a", "stops": [{"at": "x"}, {}]})


def test_a_payload_that_does_not_fit_names_the_id(schemas: LogRegistry) -> None:
    serde = made(schemas)
    serde.serializer("t")
    for payload, why in (
        (b'{"km": 1}', "'rider' is a required"),
        (b'{"rider": "a", "km": NaN}', "NaN is not JSON"),
        (b"{", "Expecting"),
        (b"[" * 100_000, "recursion"),
    ):
        with pytest.raises(SchemaError, match=rf"^topic t: the payload does not fit its schema \(id 1\): .*{why}"):
            serde.deserializer("t")(b"\0\0\0\0\x01" + payload)


def checked(schemas: LogRegistry, schema: Any) -> Callable[[Any], Any]:
    """Returns the serializer of a topic with this schema."""
    text = json.dumps(schema)
    return JsonSchemaSerde(
        JsonSchemaOptions(), context({"t": (text, "confluent", {"subject": text})}), schemas
    ).serializer("t")


@pytest.mark.parametrize("draft", ["draft-07/schema#", "draft-04/schema#", "draft/2020-12/schema"])
def test_a_pattern_runs_in_linear_time(schemas: LogRegistry, draft: str) -> None:
    pattern, text = "^(a+)+$", "a" * 50_000 + "b"
    schema = {
        "$schema": f"http://json-schema.org/{draft}",
        "pattern": pattern,
        "patternProperties": {pattern: {}},
        "additionalProperties": False,
        "items": {"$ref": "#"},
    }
    write = checked(schemas, schema)
    for value in (text, {text: 1}, [text], [{text: 1}]):
        with pytest.raises(SchemaError, match=r"is not allowed|does not match '\^\(a\+\)\+\$'"):
            write(value)
    assert write([{"a": {}}, "aa"]) == b'\0\0\0\0\x01[{"a":{}},"aa"]'


def test_patterns_that_re2_does_not_know(schemas: LogRegistry) -> None:
    write = checked(schemas, {"items": {"pattern": r"^(?!x)\w+(\d)\1$"}})
    assert write(["a11", "b22"]) == b'\0\0\0\0\x01["a11","b22"]'
    for text in ("a12", "x11"):
        with pytest.raises(SchemaError, match=f"field /0: '{text}' does not match "):
            write([text])
    assert checked(schemas, {"pattern": r"^\p{L}+$"})("größe")
    with pytest.raises(SchemaError, match=r"does not fit its schema: the pattern '\(\?' cannot be run: "):
        checked(schemas, {"pattern": "(?"})("a")


def test_a_pattern_without_an_end_is_ended(schemas: LogRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = WorkerProcess(lambda: ((sys.executable, "-I", "-S", "-c", patterns.PROGRAM), None), 0.2)
    monkeypatch.setattr(patterns, "WORKER", impatient)
    write = checked(schemas, {"pattern": "^(?=(a+)+$)"})
    with pytest.raises(SchemaError, match=r"fit its schema: the pattern '\^\(\?=\(a\+\)\+\$\)' takes more than 2 s"):
        write("a" * 50 + "b")
    assert impatient.process is None
    impatient.close()


def test_checks_can_be_turned_off(schemas: LogRegistry) -> None:
    serde = made(schemas, json_fail_invalid_schema=False)
    data = serde.serializer("t")({"km": "far"})
    assert serde.deserializer("t")(data) == {"km": "far"}
    with pytest.raises(SchemaError, match="no JSON"):
        serde.serializer("t")({"km": object()})


def test_commands(schemas: LogRegistry) -> None:
    serde = made(schemas)
    write, fractions = serde.json_serializer("t")
    assert fractions is float
    assert serde.json_deserializer("t")(write({"rider": "ä", "km": 1.25})) == '{"rider":"ä","km":1.25}'
    with pytest.raises(SchemaError, match="rows of CSV need an Avro schema"):
        serde.row_serializer("t", ["rider"])


def test_the_header_form(schemas: LogRegistry) -> None:
    serde = made(schemas, "confluent-header")
    write, read = serde.serializer("t"), serde.deserializer("t")
    assert isinstance(write, HeaderSerializer)
    assert isinstance(read, HeaderDeserializer)
    data = write(VALUE)
    ((name, named),) = write.headers
    assert (name, named[:1], len(named)) == ("__value_schema_id", b"\1", 17)  # type: ignore[index, arg-type]
    assert json.loads(data or b"") == VALUE
    assert read.with_headers(data, (("other", b"x"), (name, named))) == VALUE
    assert read.with_headers(b"\0\0\0\0\x01" + (data or b""), ()) == VALUE
    assert read.with_headers(None, write.headers) is None
    with pytest.raises(SchemaError, match="unknown schema GUID"):
        read.with_headers(data, ((name, b"\1" + b"g" * 16),))
    for other in (b"", b"\1", b"\7" * 17):
        with pytest.raises(SchemaError, match="topic t: payload"):
            read.with_headers(b"", ((name, other),))


def test_an_envelope_of_avro_alone_is_refused(schemas: LogRegistry) -> None:
    with pytest.raises(SchemaError, match="topic t: the envelope single-object does not name JSON Schema schemas"):
        made(schemas, "single-object").serializer("t")
    linkedin = made(schemas, "linkedin")
    assert linkedin.deserializer("t")(linkedin.serializer("t")(VALUE)) == VALUE


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "t-value"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "Trip"),
        ("TopicRecordNameStrategy", "t-Trip"),
    ],
)
def test_subjects(schemas: LogRegistry, strategy: str, subject: str) -> None:
    made(schemas, value_subject_name_strategy=strategy).serializer("t")
    assert schemas.subjects() == [subject]
