"""Canonical form and CRC-64-AVRO against the vectors of Avro's own test data (schema-tests.txt)."""

from __future__ import annotations

import hashlib

import pytest

from klamm.core.errors import SchemaError
from klamm.schemas.avro.parsing import check_new, parse
from klamm.schemas.registry.subject_schemas import registered
from klamm.schemas.store.schema import text_md5

VECTORS = [  # (text, canonical form, fingerprint as a signed number)
    ('"null"', '"null"', 7195948357588979594),
    ('{"type":"null"}', '"null"', 7195948357588979594),
    ('"boolean"', '"boolean"', -6970731678124411036),
    ('"int"', '"int"', 8247732601305521295),
    ('"long"', '"long"', -3434872931120570953),
    ('"float"', '"float"', 5583340709985441680),
    ('"double"', '"double"', -8181574048448539266),
    ('"bytes"', '"bytes"', 5746618253357095269),
    ('"string"', '"string"', -8142146995180207161),
]


@pytest.mark.parametrize(("text", "canonical", "number"), VECTORS, ids=[v[0] for v in VECTORS])
def test_vectors(text: str, canonical: str, number: int) -> None:
    assert parse(text).canonical == canonical
    assert registered(1, text).fingerprint == number.to_bytes(8, "little", signed=True)


def test_canonical_form_keeps_what_matters_in_its_order() -> None:
    text = """{"fields": [{"doc": "d", "default": 3, "name": "x", "type": {"type": "int", "logicalType": "date"}},
               {"name": "y", "type": ["null", "C"], "aliases": ["z"]}],
               "doc": "all", "namespace": "a.b", "name": "C", "type": "record"}"""
    assert parse(text).canonical == (
        '{"name":"a.b.C","type":"record","fields":[{"name":"x","type":"int"},{"name":"y","type":["null","a.b.C"]}]}'
    )


def test_md5_is_of_the_text_byte_for_byte() -> None:
    assert text_md5('"int" ') == hashlib.md5(b'"int" ').digest() != text_md5('"int"')


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('"in"', "unknown type 'in'"),
        ('{"type":"record","fields":[]}', "name"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int","default":"x"}]}',
            "default of field R.a is 'x'",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"int"},"default":[""]}]}',
            "default of field R.a",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
            "field a: occurs twice in R",
        ),
        ("[" * 100_000, "not an Avro schema"),
        ("3", "not an Avro schema"),
        ('"' + "x" * 300_000 + '"', "limit"),
    ],
    ids=["json", "type", "name", "default", "items", "twice", "deep", "number", "size"],
)
def test_no_schema_is_one_line(text: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words) as caught:
        check_new(text)
    assert "\n" not in str(caught.value)
