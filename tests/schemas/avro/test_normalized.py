"""The normalized text of Avro schemas; `make registry-avro-pairs` compares it with Confluent's on generated ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from klamm.schemas.avro.normalized import normalized_text
from klamm.schemas.avro.parsing import parse


def normalized(schema: Any) -> str:
    text = json.dumps(schema)
    return normalized_text(text, parse(text).root)


def record(**field: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "namespace": "n", "fields": [{"name": "f", **field}]}


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (record(type="float", default=7), '"default":7.0'),
        (record(type="float", default=2**31 - 1), '"default":2.1474836E9'),
        (record(type="double", default=2**31 - 1), '"default":2.147483647E9'),
        (record(type={"type": "map", "values": ["null", "double"]}, default={"b": 1, "a": None}), '{"a":null,"b":1.0}'),
        (record(type="int", zebra={"b": 1, "a": 2}, apple=1), '"apple":1,"zebra":{"a":2,"b":1}'),
        (record(type="int", doc=""), '"doc":""'),
        ({"type": "enum", "name": "E", "doc": "", "symbols": ["A"]}, '{"type":"enum","name":"E","symbols":["A"]}'),
        ({"type": "error", "name": "E", "fields": []}, '{"type":"record","name":"E","fields":[]}'),
        ({**record(type="int"), "aliases": ["z", "b.A"]}, '"aliases":["b.A","z"]'),
        ({"type": "int", "connect.name": "D", "logicalType": "date"}, '"logicalType":"date","connect.name":"D"'),
        ({"type": "int", "connect.name": "D", "logicalType": "dat"}, '"connect.name":"D","logicalType":"dat"'),
        ({"type": "string", "avro.java.string": "String", "logicalType": "uuid"}, '"String","logicalType":"uuid"'),
        (
            {"type": "bytes", "a": 1, "scale": 2, "precision": 4, "logicalType": "decimal"},
            '"logicalType":"decimal","precision":4,"scale":2,"a":1',
        ),
    ],
)
def test_what_means_the_same_has_one_text(schema: Any, wanted: str) -> None:
    text = normalized(schema)
    assert wanted in text
    assert normalized(json.loads(text)) == text


def test_the_text_is_javas_with_name_and_namespace_apart() -> None:
    assert normalized({**record(type="n.R"), "name": "n.R"}) == (
        '{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":"R"}]}'
    )
