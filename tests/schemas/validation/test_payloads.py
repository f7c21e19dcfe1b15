"""What a payload must be: the bytes that fastavro writes, hostile ones, JSON and its limits."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer
from fastavro.utils import generate_one

from klamm.core.errors import SchemaError
from klamm.schemas.validation.payload import PayloadFormat, payload_format

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
EVERYTHING = {
    "type": "record", "name": "n.Everything",
    "fields": [
        {"name": "a", "type": ["null", "boolean", "int", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "b", "type": {"type": "map", "values": {"type": "array", "items": ["string", "bytes", "double"]}}},
        {"name": "c", "type": {"type": "enum", "name": "E", "symbols": ["x", "y", "z"]}},
        {"name": "d", "type": [{"type": "fixed", "name": "F", "size": 3}, "float", "E"]},
        {"name": "e", "type": {"type": "array", "items": {"type": "record", "name": "R", "fields": [
            {"name": "f", "type": "long"}, {"name": "g", "type": "boolean"}, {"name": "h", "type": "string"}]}}},
    ],
}  # fmt: skip


def avro(schema: Any) -> PayloadFormat:
    return payload_format("AVRO", json.dumps(schema), {})


def refusal(form: PayloadFormat, payload: bytes) -> str:
    try:
        form.check(payload, 0, ())
    except SchemaError as error:
        return str(error)
    return ""


def test_what_fastavro_writes_is_accepted_and_a_part_of_it_is_not() -> None:
    schema, form, rng = parse_schema(EVERYTHING), avro(EVERYTHING), random.Random(7)
    random.seed(7)
    for _ in range(200):
        stream = io.BytesIO()
        schemaless_writer(stream, schema, generate_one(EVERYTHING))
        payload = stream.getvalue()
        form.check(b"prefix" + payload, 6, ())
        cut = rng.randrange(len(payload))
        assert "is truncated" in refusal(form, payload[:cut]) or payload[cut:] == b"\0"
        assert "left over" in refusal(form, payload + b"\0")


def doubled(depth: int) -> Any:
    """Returns a record that has 2^depth records without fields."""
    inner = doubled(depth - 1) if depth else {"type": "record", "name": "Empty", "fields": []}
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": inner["name"]}]
    return {"type": "record", "name": f"R{depth}", "fields": fields}


@pytest.mark.parametrize(
    ("schema", "payload", "words"),
    [
        ("boolean", b"\2", "a boolean is 0x02"),
        ("int", b"\xff" * 5 + b"\1", "a number has more than 5 bytes"),
        ("long", b"\xff" * 10 + b"\1", "a number has more than 10 bytes"),
        ("string", b"\1", "a length is -1"),
        ("string", b"\4\xff\xfe", "a string is not UTF-8"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "is truncated"),
        (["null", "int"], b"\1", "a union of 2 types has the index -1"),
        (["null", "int"], b"\4", "a union of 2 types has the index 2"),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, b"\1", "an enum of 1 symbols has the index -1"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "items that take no bytes"),
        (
            {"type": "array", "items": {"type": "record", "name": "N", "fields": []}},
            b"\xfe\xff\xff\xff\x0f",
            "no bytes",
        ),
        ({"type": "array", "items": doubled(1)}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "no bytes"),
        (doubled(60), b"", ""),
        (doubled(60), b"\0", "1 bytes left over"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f\2", "is truncated"),
        ({"type": "array", "items": "int"}, b"\1\2\2\0", ""),
        (NODE, b"\2" * 100_000 + b"\0", "nested too deeply"),
        (NODE, b"\2" * 100 + b"\0", ""),
        ("null", b"", ""),
    ],
    ids=lambda value: value.hex()[:12] if isinstance(value, bytes) else None,
)
def test_bytes_that_are_no_avro_are_refused_with_the_reason(schema: Any, payload: bytes, words: str) -> None:
    found = refusal(avro(schema), payload)
    assert words in found
    assert bool(words) == bool(found)
    assert "\n" not in found


PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Person", "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0},
                   "sub": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(a+)+$"}},
    "patternProperties": {"^x-": True}, "additionalProperties": False, "required": ["name"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ('{"name": "Ada", "age": 3, "x-y": null}', ""),
        ('{"name": "Ada", "sub": "' + "a" * 5000 + '!"}', "#/sub: "),
        ('{"name": "ada"}', "#/name: 'ada' does not match '^[A-Z]'"),
        ('{"name": "Ada", "age": -1}', "#/age: -1 is less than the minimum of 0"),
        ('{"name": "Ada", "y": 1}', "#/: it has the property 'y', which is not allowed"),
        ('{"name": "Ada", "age": NaN}', "is no JSON: NaN is no JSON number"),
        ("{", "is no JSON: "),
        ("[" * 100_000, "nested too deeply"),
        ("\udcff", "is no JSON: "),
        ('{"name": "\\ud800"}', "#/name: "),
        ("1" * 5000, "is no JSON: "),
    ],
    ids=lambda value: value[:30].encode("ascii", "replace").decode(),
)
def test_json_by_its_schema(document: str, words: str) -> None:
    found = refusal(payload_format("JSON", json.dumps(PERSON), {}), document.encode(errors="surrogateescape"))
    assert words in found
    assert bool(words) == bool(found)


def test_a_json_schema_whose_work_grows_without_bound_ends() -> None:
    one = {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}] * 2}
    deep = '{"a": ' * 40 + "1" + "}" * 40
    assert "more than 20000 references" in refusal(payload_format("JSON", json.dumps(one), {}), deep.encode())
    assert refusal(payload_format("JSON", '{"$ref": "#"}', {}), b"1") != ""


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"unevaluatedProperties": False}, "unevaluatedProperties is not supported"),
        ({"properties": {"a": {"pattern": "(?=a)b"}}}, "RE2 does not support '(?=a)b'"),
        ({"patternProperties": {"(a)\\1": True}}, "RE2 does not support"),
    ],
)
def test_json_schemas_that_cannot_be_checked_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match="values cannot be checked by its schema: ") as caught:
        payload_format("JSON", json.dumps(schema), {})
    assert words in str(caught.value)


def test_a_required_field_of_proto2_must_be_there() -> None:
    form = payload_format("PROTOBUF", 'syntax = "proto2"; message M { required int32 id = 1; }', {})
    form.check(b"\x08\1", 0, (0,))
    with pytest.raises(SchemaError, match="required fields are missing: id"):
        form.check(b"", 0, (0,))
    assert form.name((0,)) == "M"
