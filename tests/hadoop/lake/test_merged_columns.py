"""Columns of older and newer loads as one: a type that holds the values of both as they are, or an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from klamm.core.errors import SchemaError
from klamm.hadoop.lake.columns import merged
from klamm.hadoop.lake.lineage import sources
from klamm.schemas.avro.model import AvroType
from klamm.schemas.avro.parsing import parse_type

INT, LONG, FLOAT, DOUBLE = IntegerType(), LongType(), FloatType(), DoubleType()


@pytest.mark.parametrize(
    ("newer", "older", "expected"),
    [
        (LONG, INT, LONG),
        (INT, LONG, LONG),
        (DOUBLE, LONG, DOUBLE),  # as readers of the newer schema have it
        (FLOAT, INT, FLOAT),
        (INT, FLOAT, DOUBLE),
        (INT, DOUBLE, DOUBLE),
        (FLOAT, DOUBLE, DOUBLE),
        (LONG, DOUBLE, None),
        (LONG, FLOAT, None),
        (StringType(), BinaryType(), StringType()),
        (DecimalType(10, 2), DecimalType(6, 4), DecimalType(12, 4)),
        (DecimalType(38, 0), DecimalType(38, 2), None),
        (StringType(), INT, None),
    ],
)
def test_no_value_is_changed(newer: DataType, older: DataType, expected: DataType | None) -> None:
    schemas = [StructType().add("a", kind) for kind in (newer, older)]
    if expected is None:
        with pytest.raises(SchemaError, match=r"column a is .* in newer loads and .*; no type holds both"):
            merged(schemas)
    else:
        assert merged(schemas) == StructType().add("a", expected)


def avro(*fields: dict[str, Any]) -> AvroType:
    return parse_type(json.dumps({"type": "record", "name": "R", "fields": [*fields]}))


def field(name: str, kind: Any = "int", *aliases: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "aliases": [*aliases]}


def lineage(*schemas: AvroType) -> dict[str, str]:
    """By column of the newest schema, which is given first, the column of the oldest."""
    wanted, there = ([f.name for f in schema.fields] for schema in (schemas[0], schemas[-1]))
    return {name: source.name for name, source in sources(wanted, there, schemas).items()}


def test_a_column_is_followed_through_each_rename() -> None:
    v1, v2, v3 = avro(field("a")), avro(field("b", "int", "a")), avro(field("c", "int", "b"))
    assert lineage(v2, v1) == {"b": "a"}
    assert lineage(v3, v2, v1) == {"c": "a"}
    assert lineage(v3, v1) == {}, "the last schema alone does not name the first name"
    assert lineage(avro(field("c", "int", "x", "a")), v1) == {"c": "a"}


def test_a_name_is_before_an_alias() -> None:
    both = avro(field("a"), field("b"))
    assert lineage(avro(field("b", "int", "a")), both) == {"b": "b"}
    assert lineage(avro(field("c", "int", "a"), field("a")), avro(field("a"))) == {"a": "a"}


def test_a_dropped_column_is_followed_from_the_newest_schema_that_has_it() -> None:
    v1, v2, v3 = avro(field("a"), field("z")), avro(field("b", "int", "a"), field("z")), avro(field("z"))
    found = sources(["z", "b"], ["a", "z"], (v3, v2, v1))
    assert {name: source.name for name, source in found.items()} == {"z": "z", "b": "a"}


def test_without_schemas_names_decide_in_any_case() -> None:
    assert {n: s.name for n, s in sources(["ID", "b"], ["b", "id"], ()).items()} == {"ID": "id", "b": "b"}


def test_columns_that_differ_only_in_case_but_are_other_fields_are_one_line() -> None:
    chain = avro(field("a", "int", "old")), avro(field("old"), field("A"))
    schemas = [StructType().add("a", INT), StructType().add("old", INT).add("A", INT)]
    with pytest.raises(SchemaError, match="column A of older loads differs only in case from a, which"):
        merged(schemas, [(), chain])


TIME: Any = {"type": "long", "logicalType": "timestamp-millis"}


@pytest.mark.parametrize(
    ("newer", "older", "expected"),
    [(TimestampType(), LONG, True), (LONG, TimestampType(), True), (TimestampType(), INT, False)],
)
def test_a_number_that_became_a_time_is_one_where_its_unit_is_known(
    newer: DataType, older: DataType, expected: bool
) -> None:
    schemas = [StructType().add("a", kind) for kind in (newer, older)]
    chain = avro(field("a", TIME)), avro(field("a", "long"))
    if expected:
        assert merged(schemas, [(), chain]) == schemas[0]
    for chains in [[(), ()]] if expected else [[(), ()], [(), chain]]:
        with pytest.raises(SchemaError, match="no type holds both"):
            merged(schemas, chains)
