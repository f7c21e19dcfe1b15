"""Record types that no lake can hold are refused with the path of the field, before a record is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from klamm.core.errors import SchemaError
from klamm.hadoop.lake.files import lake_files
from klamm.hadoop.lake.layout import TopicLayout
from klamm.hadoop.lake.verification.verify import verify_topic
from klamm.hadoop.load.rows import RowFormat
from klammtest.hadoop.load_jobs import TOPIC, MemoryTopics, flight, job

INT = {"name": "id", "type": "int"}


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [*fields]}


def inner(name: str, *fields: Any) -> dict[str, Any]:
    return {"name": name, "type": record(*fields, name=f"In_{name}")}


def format_of(schema: Any) -> RowFormat:
    return RowFormat("t", ("dt",), json.dumps(schema), {}, "", (), 0, 1, quarantine=False)


UP = {"name": "ID", "type": "string"}
REFUSED = [
    ("string", "topic t: its schema is string, not a record; a table needs columns"),
    (["null", record(INT)], "topic t: its schema is union, not a record"),
    (record(), "topic t: record R has no fields, and a table needs columns; give it a field; nothing is loaded"),
    (record(INT, UP), "topic t: field ID: differs only in case from id, which Spark takes for the same; rename one"),
    (record(inner("a", INT, UP)), "topic t: field a.ID: differs only in case from id"),
    (record({"name": "a", "type": {"type": "array", "items": record(INT, UP, name="E")}}), "field a[].ID: differs"),
    (record({"name": "a", "type": {"type": "map", "values": record(INT, UP, name="E")}}), "field a{}.ID: differs"),
    (record({"name": "a", "type": ["null", record(INT, UP, name="E")]}), "field a.ID: differs only in case"),
    (record({"name": "a", "type": ["null", "int", record(INT, UP, name="E")]}), "field a.member1.ID: differs"),
    (record(INT, inner("a")), "topic t: field a: record In_a has no fields"),
    (record(INT, inner("a", inner("b"))), "topic t: field a.b: record In_b has no fields"),
    (record({"name": "a", "type": {"type": "array", "items": record(name="E")}}), "field a[]: record E has no fields"),
    (record({"name": "DT", "type": "int"}), "topic t: field DT: the lake has a column dt of its own; rename the field"),
    (record({"name": "_Offset", "type": "int"}), "field _Offset: the lake has a column _offset of its own"),
    (record({"name": "a", "type": ["null", "R"], "default": None}), "topic t: "),
    ({"type": "record", "name": "R"}, "topic t: "),
]


@pytest.mark.parametrize(("schema", "problem"), REFUSED, ids=lambda value: str(value)[-60:])
def test_a_record_type_that_no_lake_can_hold(schema: Any, problem: str) -> None:
    with pytest.raises(SchemaError) as caught:
        format_of(schema).schema()
    assert problem in str(caught.value)
    assert str(caught.value).startswith("topic t: ")
    assert "\n" not in str(caught.value)


def test_several_problems_are_in_one_line() -> None:
    schema = record(*(inner(f"a{n}") for n in range(5)))
    with pytest.raises(SchemaError, match=r"topic t: field a0: .*; field a1: .*; field a2: .* \(and 2 more\)"):
        format_of(schema).schema()


def test_names_that_differ_by_case_at_different_levels_are_no_problem() -> None:
    schema = record(INT, inner("ID2", {"name": "ID", "type": "int"}), inner("b", INT))
    assert format_of(schema).schema().names[:3] == ["id", "ID2", "b"]


def test_nothing_is_read_or_published_for_it(spark: SparkSession, tmp_path: Path) -> None:
    topics = MemoryTopics()
    for number in range(3):
        topics.add(0, flight(number))
    job(spark, topics, str(tmp_path)).run(TOPIC)
    good = topics.row_format
    topics.add(0, b"no record of this schema")
    topics.configure(reader=json.dumps(record(INT, UP, name="Flight")))
    with pytest.raises(SchemaError, match="field ID: differs only in case from id"):
        job(spark, topics, str(tmp_path)).run(TOPIC)
    assert [path.name for path in (tmp_path / TOPIC).glob("load=*")] == ["load=000001"]
    assert verify_topic(lake_files(str(tmp_path)), TopicLayout(str(tmp_path), TOPIC)).findings == []
    topics.configure(reader=good.reader)
    topics.records.pop()
    topics.add(0, flight(7))
    done = job(spark, topics, str(tmp_path)).run(TOPIC)
    assert done is not None
    assert done.rows == 1
