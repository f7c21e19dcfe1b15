"""Typed values: what goes in comes out, evolved by Avro's rules; what does not fit is one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from klamm.core.errors import ConfigError, SchemaError
from klamm.schemas.registry.registry import SchemaRegistry
from klammtest.schemas import embedded, registry, serde

ENVELOPES = ("confluent", "linkedin", "single-object")


def text(*fields: Any, name: str = "Trip") -> str:
    made = [f if isinstance(f, dict) else {"name": f[0], "type": f[1]} for f in fields]
    return json.dumps({"type": "record", "name": name, "fields": made})


STOP = {"type": "record", "name": "Stop", "fields": [{"name": "at", "type": "string"}]}
TRIP = text(
    ("rider", "string"),
    ("km", "double"),
    ("seats", "int"),
    ("note", ["null", "string"]),
    ("first", STOP),
    ("stops", {"type": "array", "items": "Stop"}),
    ("named", {"type": "map", "values": "Stop"}),
)


@dataclass
class Stop:
    at: str


@dataclass
class Trip:
    rider: str
    km: float
    seats: int
    note: str | None
    first: Stop
    stops: list[Stop] = field(default_factory=list)
    named: dict[str, Stop] = field(default_factory=dict)


VALUE = Trip("ann", 1.5, 2, None, Stop("x"), [Stop("y"), Stop("z")], {"n": Stop("w")})
PLAIN = {
    "rider": "ann",
    "km": 1.5,
    "seats": 2,
    "note": None,
    "first": {"at": "x"},
    "stops": [{"at": "y"}, {"at": "z"}],
    "named": {"n": {"at": "w"}},
}


@pytest.fixture
def schemas(tmp_path: Path) -> Iterator[SchemaRegistry]:
    coordination = embedded(tmp_path)
    yield registry(coordination)
    coordination.close()


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_dicts_and_dataclasses_round_trip(schemas: SchemaRegistry, envelope: str) -> None:
    """Hook `klamm_serdes`."""
    typed = {"record.class": f"{Trip.__module__}:Trip"}
    made = serde(schemas, {"trips": (TRIP, envelope, {})})
    data = made.serializer("trips")(VALUE)
    assert data == made.serializer("trips")(PLAIN)
    assert made.deserializer("trips")(data) == PLAIN
    made = serde(schemas, {"trips": (TRIP, envelope, typed)})
    assert made.deserializer("trips")(data) == VALUE


def test_defaults_of_bytes_are_written_for_missing_fields(schemas: SchemaRegistry) -> None:
    key = {"type": "fixed", "name": "Key", "size": 2}
    part = {"type": "record", "name": "Part", "fields": [{"name": "raw", "type": "bytes", "default": "\u00fe"}]}
    written = text(
        ("rider", "string"),
        {"name": "hash", "type": "bytes", "default": "\u00ff\u0000"},
        {"name": "key", "type": key, "default": "ab"},
        {"name": "other", "type": ["Key", "null"], "default": "cd"},
        {"name": "list", "type": {"type": "array", "items": "bytes"}, "default": ["x"]},
        {"name": "part", "type": part, "default": {"raw": "y"}},
        {"name": "parts", "type": {"type": "map", "values": "Part"}, "default": {"n": {"raw": "z"}}},
    )
    trips = serde(schemas, {"trips": (written, "confluent", {})})
    payload = trips.serializer("trips")({"rider": "ann"})
    assert trips.deserializer("trips")(payload) == {
        "rider": "ann",
        "hash": b"\xff\0",
        "key": b"ab",
        "other": b"cd",
        "list": [b"x"],
        "part": {"raw": b"y"},
        "parts": {"n": {"raw": b"z"}},
    }


def test_none_is_none(schemas: SchemaRegistry) -> None:
    made = serde(schemas, {"t": (TRIP, "confluent", {})})
    assert made.serializer("t")(None) is None
    assert made.deserializer("t")(None) is None


def test_a_reader_without_schema_uses_the_writers(schemas: SchemaRegistry) -> None:
    made = serde(schemas, {"w": (text(("a", "int")), "confluent", {}), "r": (None, "confluent", {})})
    assert made.deserializer("r")(made.serializer("w")({"a": 1})) == {"a": 1}
    with pytest.raises(SchemaError, match=r"topic r: no schema to write with; name its file in topics.r.schema"):
        made.serializer("r")


EVOLUTIONS = [  # (written with, read with, value written, value read)
    (text(("a", "int")), text(("a", "long")), {"a": 1}, {"a": 1}),
    (text(("a", "int")), text(("a", "double")), {"a": 1}, {"a": 1.0}),
    (text(("a", "int"), ("b", "int")), text(("b", "int")), {"a": 1, "b": 2}, {"b": 2}),
    (
        text(("a", "int")),
        text(("a", "int"), {"name": "b", "type": "string", "default": "?"}),
        {"a": 1},
        {"a": 1, "b": "?"},
    ),
    (text(("a", "int")), text({"name": "z", "type": "int", "aliases": ["a"]}), {"a": 1}, {"z": 1}),
    (text(("a", "int")), text(("a", ["null", "int"])), {"a": 1}, {"a": 1}),
    (text(("a", ["null", "int"])), text(("a", "int")), {"a": 1}, {"a": 1}),
    (
        text(("a", "int"), ("b", "string")),
        text(("b", "bytes"), ("a", "float")),
        {"a": 1, "b": "é"},
        {"b": "é".encode(), "a": 1.0},
    ),
]


@pytest.mark.parametrize(("written", "wanted", "value", "read"), EVOLUTIONS)
def test_evolution(schemas: SchemaRegistry, written: str, wanted: str, value: Any, read: Any) -> None:
    writer = serde(schemas, {"t": (written, "confluent", {})})
    reader = serde(schemas, {"t": (wanted, "confluent", {})})
    assert reader.deserializer("t")(writer.serializer("t")(value)) == read


def test_data_of_two_versions_in_one_topic(schemas: SchemaRegistry) -> None:
    old = serde(schemas, {"t": (text(("a", "int")), "linkedin", {})})
    newer = text(("a", "int"), {"name": "b", "type": "int", "default": 0})
    new = serde(schemas, {"t": (newer, "linkedin", {})})
    written = [old.serializer("t")({"a": 1}), new.serializer("t")({"a": 2, "b": 3})]
    assert [new.deserializer("t")(d) for d in written] == [{"a": 1, "b": 0}, {"a": 2, "b": 3}]
    assert [old.deserializer("t")(d) for d in written] == [{"a": 1}, {"a": 2}]


def test_a_value_that_no_longer_resolves_says_so(schemas: SchemaRegistry) -> None:
    writer = serde(schemas, {"t": (text(("a", ["null", "int"])), "confluent", {})})
    reader = serde(schemas, {"t": (text(("a", "int")), "confluent", {})})
    with pytest.raises(SchemaError, match=r"^topic t: the payload does not fit its schema"):
        reader.deserializer("t")(writer.serializer("t")({"a": None}))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": "x"}, "field a: expected int, got 'x'"),
        ({"a": 1.5}, "field a: expected int, got 1.5"),
        ({"a": True}, "field a: expected int, got True"),
        ({"a": 2**31}, "field a: 2147483648 is too large for int"),
        ({}, "field a: is missing and has no default"),
        ({"a": 1, "typo": 2}, "field typo: is no field of record Trip"),
        (7, "expected a dict or a dataclass, got int"),
        ({"a": 1, "n": [1.5]}, r"field n\[\]: expected long, got 1.5"),
        ({"a": 1, "u": 1.5}, "field u: expected int, got 1.5"),
        (Stop("x"), "field a: is missing"),
    ],
)
def test_a_value_that_does_not_fit_is_one_line(schemas: SchemaRegistry, value: Any, words: str) -> None:
    fields = [
        ("a", "int"),
        {"name": "n", "type": {"type": "array", "items": "long"}, "default": []},
        {"name": "u", "type": ["null", "int"], "default": None},
    ]
    write = serde(schemas, {"t": (text(*fields), "confluent", {})}).serializer("t")
    with pytest.raises(SchemaError, match=f"^topic t: the value does not fit its schema: .*{words}") as caught:
        write(value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_a_truncated_payload_is_an_error_at_every_length(schemas: SchemaRegistry, envelope: str) -> None:
    made = serde(schemas, {"t": (TRIP, envelope, {})})
    data = made.serializer("t")(PLAIN)
    read = made.deserializer("t")
    assert data is not None
    for size in range(len(data)):
        with pytest.raises(SchemaError, match=r"^topic t: .*(truncated|too short)"):
            read(data[:size])
    with pytest.raises(SchemaError, match="topic t: 1 bytes left over after the payload"):
        read(data + b"x")


def test_unknown_id_and_other_envelope(schemas: SchemaRegistry) -> None:
    read = serde(schemas, {"t": (TRIP, "confluent", {})}).deserializer("t")
    with pytest.raises(SchemaError, match=r"^topic t: unknown schema id 77$"):
        read(b"\0\0\0\0\x4dxxxx")
    with pytest.raises(SchemaError, match=r"^topic t: payload does not have the confluent envelope"):
        read(b"\xc3\x01" + b"x" * 20)


def test_the_topics_rule_is_kept(schemas: SchemaRegistry) -> None:
    serde(schemas, {"t": (text(("a", "int")), "confluent", {})}).serializer("t")
    second = text(("a", "int"), ("b", "int"))
    with pytest.raises(SchemaError, match="topic t: t-value: not BACKWARD compatible"):
        serde(schemas, {"t": (second, "confluent", {})}).serializer("t")
    serde(schemas, {"u": (text(("a", "int")), "confluent", {"compatibility": "FORWARD"})}).serializer("u")
    serde(schemas, {"u": (second, "confluent", {"compatibility": "FORWARD"})}).serializer("u")


def test_an_envelope_by_fingerprint_is_refused_where_it_would_name_two_schemas(schemas: SchemaRegistry) -> None:
    formats = [text(("a", "int")), text(("a", {"type": "int", "logicalType": "date"}))]
    serde(schemas, {"t": (formats[0], "single-object", {})}).serializer("t")
    with pytest.raises(SchemaError, match=r"topic t: fingerprint .* names the schemas 1, 2, which differ in"):
        serde(schemas, {"t": (formats[1], "single-object", {})}).serializer("t")
    serde(schemas, {"t": (formats[1], "confluent", {})}).serializer("t")


def test_a_class_that_does_not_fit_is_said_once_and_clearly(schemas: SchemaRegistry) -> None:
    made = serde(schemas, {"t": (text(("a", "int")), "confluent", {"record.class": "dataclasses:Field"})})
    with pytest.raises(ConfigError, match=r"topics.t.record.class: dataclasses:Field is not a dataclass"):
        made.deserializer("t")
    made = serde(schemas, {"t": (text(("a", "int")), "confluent", {"record.class": "no.such:Thing"})})
    with pytest.raises(ConfigError, match="cannot be loaded"):
        made.deserializer("t")
    wrong = {"record.class": "klamm.schemas.store.schema:Reference"}
    made = serde(schemas, {"t": (text(("a", "int")), "confluent", wrong)})
    data = made.serializer("t")({"a": 1})
    with pytest.raises(SchemaError, match="topic t: Reference has no field a"):
        made.deserializer("t")(data)


def test_values_that_are_no_records(schemas: SchemaRegistry) -> None:
    made = serde(schemas, {"t": ('["null", "string", "int"]', "confluent", {}), "s": ('"string"', "confluent", {})})
    for value in ("x", 3):
        assert made.deserializer("t")(made.serializer("t")(value)) == value
    assert made.deserializer("s")(made.serializer("s")("x")) == "x"
