"""What others write to the schemas topic: it fails only where a record needs it, and what they deleted is not new."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import SchemaKey
from klamm.schemas.avro.parsing import parse
from klamm.schemas.registry.subject_schemas import SubjectSchemas, registered
from klamm.schemas.store.records import SchemaRecord, SchemaTombstone, SubjectDeletion, encode
from klamm.schemas.store.schema import text_md5 as md5
from klammtest.schemas import foreign, store_of, stored


def fingerprint(text: str) -> bytes:
    return registered(1, text).fingerprint


def record(*fields: dict[str, Any], name: str = "Order", **more: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


READABLE = {
    "a wrong default": record({"name": "note", "type": "string", "default": None}),
    "a default of no branch": record({"name": "a", "type": ["null", "int"], "default": "x"}),
    "NaN": record({"name": "a", "type": "double", "default": "NaN"}),
    "a scale above the precision": record({"name": "a", "type": decimal(2, 5)}),
    "a negative scale": record({"name": "a", "type": decimal(5, -2)}),
    "no precision": record({"name": "a", "type": {"type": "bytes", "logicalType": "decimal"}}),
    "a precision in text": record({"name": "a", "type": {**decimal(5, 2), "precision": "5"}}),
    "a logical type of another kind": record({"name": "a", "type": {"type": "string", "logicalType": "date"}}),
    "an unknown logical type": record({"name": "a", "type": {"type": "string", "logicalType": "of nobody"}}),
    "names": record({"name": "a-b", "type": "int"}, name="é 1"),
    "a decimal of 400 digits of precision": record({"name": "a", "type": decimal(10**400, 2)}),
    "a default that is no UTF-8": record({"name": "a", "type": "string", "default": "\ud800"}),
    "a text over 256 KiB": record({"name": "a", "type": "int", "doc": "x" * 300_000}),
}
UNREADABLE = {
    "no JSON": ("{", "not JSON"),
    "no type": (record({"name": "a", "type": "Missing"}), "field a: unknown type 'Missing'"),
    "no fields": ('{"type":"record","name":"R"}', "'fields' is missing"),
    "a name twice": (record({"name": "a", "type": {"type": "fixed", "name": "Order", "size": 1}}), "defined twice"),
    "a number": ("3", "3 is no type"),
    "a name that is no UTF-8": (record(name="\ud800"), "a name cannot be UTF-8"),
    "a text that is no UTF-8": ('"\ud800"', "unknown type"),
    "a size that no number holds": (
        json.dumps({"type": "fixed", "name": "F", "size": 10**400, "logicalType": "decimal", "precision": 5}),
        "the size of F is 1000",
    ),
    "a union in a union": (
        record({"name": "a", "type": [["int"], "null"]}),
        "field a: a union directly within a union",
    ),
    "types nested too deeply": ('{"type":"array","items":' * 64 + '"int"' + "}" * 64, "nested deeper than 64"),
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE)
def test_what_avro_lets_a_reader_ignore_is_read(text: str) -> None:
    """Issue 29, A1."""
    table = SubjectSchemas(store_of(foreign("orders-value", 1, 7, text)))
    found = table.find(SchemaKey(schema_id=7))
    assert found is not None
    assert found.text == text
    assert table.find(SchemaKey(md5=md5(text))) == table.find(SchemaKey(fingerprint=fingerprint(text))) == found


@pytest.mark.parametrize(("text", "why"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_entry_fails_only_where_it_is_named(text: str, why: str) -> None:
    """Issue 29, A1: `writers_by_key` failed for every topic, without subject and id."""
    good = record({"name": "a", "type": "int"})
    table = SubjectSchemas(store_of(foreign("orders-value", 2, 7, text), foreign("t-value", 1, 8, good)))
    for one in (table, pickle.loads(pickle.dumps(table))):
        for key in (
            SchemaKey(schema_id=8),
            SchemaKey(md5=md5(good)),
            SchemaKey(fingerprint=fingerprint(good)),
        ):
            assert one.get(key) == good
        for key in (SchemaKey(schema_id=7), SchemaKey(md5=md5(text))):
            with pytest.raises(SchemaError, match=rf"^schema 7 \(orders-value, version 2\) cannot be read: .*{why}"):
                one.get(key)
        assert one.get(SchemaKey(schema_id=9)) is one.get(SchemaKey(fingerprint=b"?" * 8)) is None


MONEY = json.dumps({"type": "fixed", "name": "Money", "namespace": "shop", "size": 8})
ITEM = record({"name": "price", "type": "Money"}, {"name": "next", "type": ["null", "Item"]}, name="shop.Item")
CART = record({"name": "items", "type": {"type": "array", "items": "shop.Item"}}, {"name": "tip", "type": "shop.Money"})
REFERRING = [
    stored("money", 3, 1, MONEY),
    stored("item", 1, 2, ITEM, ("shop.Money", "money", 3)),
    stored("cart-value", 1, 3, CART, ("shop.Item", "item", 1), ("shop.Money", "money", 3)),
]


def test_references_are_written_out() -> None:
    """Issue 29, A1: Confluent's schema references."""
    table = SubjectSchemas(store_of(*REFERRING))
    text = table.get(SchemaKey(schema_id=3))
    assert text is not None
    root = parse(text).root  # it needs no other text
    item = root.fields[0].type.inner
    assert (item.name, item.fields[0].type.size, item.fields[1].type.branches[1]) == ("shop.Item", 8, item)
    assert root.fields[1].type is item.fields[0].type
    assert table.get(SchemaKey(md5=md5(CART))) == text  # the MD5 is that of the text as registered


def test_a_reference_that_is_missing_is_named() -> None:
    with pytest.raises(SchemaError, match=r"schema 2 .*: its reference shop.Money \(money, version 3\) is not in the"):
        SubjectSchemas(store_of(*REFERRING[1:])).get(SchemaKey(schema_id=2))
    mutual = [stored(a, 1, i, f'"X{i}"', ("X", b, 1)) for i, (a, b) in enumerate([("a", "b"), ("b", "a")], 1)]
    with pytest.raises(SchemaError, match=r"its references contain [ab], version 1, itself"):
        SubjectSchemas(store_of(*mutual)).get(SchemaKey(schema_id=1))


THREE = [stored("t-value", 1, 1, '"int"'), stored("t-value", 2, 2, '"long"'), stored("t-value", 3, 3, '"string"')]


@pytest.mark.parametrize(
    ("records", "left", "found"),
    [
        ([], [3, 2, 1], [1, 2, 3]),
        ([replace(THREE[2], deleted=True)], [2, 1], [1, 2, 3]),
        ([SubjectDeletion("t-value", 2)], [3], [1, 2, 3]),
        ([replace(THREE[2], deleted=True), SchemaTombstone("t-value", 3)], [2, 1], [1, 2]),
        ([replace(THREE[1], deleted=True), THREE[1]], [3, 2, 1], [1, 2, 3]),
        ([stored("t-value", 4, 4, 'syntax = "proto3";', schema_type="PROTOBUF")], [4, 3, 2, 1], [1, 2, 3]),
    ],
    ids=["none", "deleted", "subject", "tombstone", "registered again", "protobuf"],
)
def test_a_deleted_version_is_never_the_newest_and_is_found_by_its_id(
    records: list[SchemaRecord], left: list[int], found: list[int]
) -> None:
    """Issue 29, A11: a lake got the withdrawn column."""
    schemas = SubjectSchemas(store_of(*THREE, *records), "t-value")
    assert [one.version for one in schemas.newest_first()] == left
    assert [i for i in (1, 2, 3) if schemas.get(SchemaKey(schema_id=i)) is not None] == found
    if 4 in left:
        with pytest.raises(SchemaError, match=r"schema 4 .*: it is PROTOBUF, not Avro"):
            schemas.get(SchemaKey(schema_id=4))


def test_ids_are_of_the_context_of_the_subject() -> None:
    store = store_of(stored("t-value", 1, 1, '"int"'), stored(":.c:t-value", 1, 1, '"long"'))
    for subject, text in (("t-value", '"int"'), (":.c:t-value", '"long"')):
        schemas = SubjectSchemas(store, subject)
        assert schemas.get(SchemaKey(schema_id=1)) == schemas.get(SchemaKey(md5=md5(text))) == text
        assert schemas.get(SchemaKey(fingerprint=fingerprint(text))) == text
    assert SubjectSchemas(store, ":.d:t-value").get(SchemaKey(schema_id=1)) is None


def test_what_is_registered_later_is_found() -> None:
    store = store_of(*REFERRING[1:])
    schemas = SubjectSchemas(store)
    assert schemas.get(SchemaKey(fingerprint=fingerprint(MONEY))) is None
    store.apply(store.position, 0, *encode(REFERRING[0]))
    assert schemas.get(SchemaKey(fingerprint=fingerprint(MONEY))) == MONEY
    cart = schemas.find(SchemaKey(schema_id=3))
    assert cart is not None
    assert schemas.find(SchemaKey(fingerprint=cart.fingerprint)) == cart
