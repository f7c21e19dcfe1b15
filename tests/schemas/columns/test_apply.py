"""What readers' columns have of writers' values; `make avro-judge` compares generated pairs with Java's Avro."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from klamm.schemas.avro.parsing import parse_type
from klamm.schemas.columns.decode import Decoded, PayloadDecoder
from klammtest.schemas import avro_bytes

Schema = Any


def table(*fields: dict[str, Any], name: str = "R", **more: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        (table({"name": "a", "type": "string"}), table({"name": "a", "type": "int"}), "string cannot be read as int"),
        (
            table({"name": "a", "type": "int"}),
            table({"name": "b", "type": "int"}),
            "b: is not in the data and has no default",
        ),
        (table({"name": "a", "type": "int"}), table({"name": "a", "type": "int"}, name="S"), "none of its aliases"),
        (table({"name": "a", "type": "long"}), table({"name": "a", "type": "int"}), "long cannot be read as int"),
    ],
)
def test_what_never_resolves_is_said_before_any_row(writer: str, reader: str, why: str) -> None:
    decoded = PayloadDecoder(writer, parse_type(reader)).decode([b"not even read", b""])
    assert all(why in reason for reason in decoded.bad.values())
    assert (sorted(decoded.bad), decoded.rows.null_count) == ([0, 1], 2)


def test_a_record_is_read_under_an_alias() -> None:
    reader = parse_type(table({"name": "a", "type": "int"}, name="S", namespace="n", aliases=["m.R"]))
    writer = {"type": "record", "name": "R", "namespace": "m", "fields": [{"name": "a", "type": "int"}]}
    decoded = PayloadDecoder(json.dumps(writer), reader).decode([avro_bytes(writer, {"a": 1})])
    assert decoded.rows.to_pylist() == [{"a": 1}]


TIMES = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
}


def one_field(logical: str) -> Schema:
    return {"type": "record", "name": "T", "fields": [
        {"name": "a", "type": {"type": TIMES[logical], "logicalType": logical}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "stored", "read", "expected"),
    [
        ("time-millis", 1500, "time-micros", 1_500_000),
        ("timestamp-millis", -1, "local-timestamp-micros", dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)),  # noqa: DTZ001
        ("local-timestamp-millis", 1500, "timestamp-micros", dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)),
        ("timestamp-nanos", -1, "timestamp-micros", dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC)),
        ("timestamp-nanos", 2_000_000, "timestamp-millis", dt.datetime(1970, 1, 1, 0, 0, 0, 2000, dt.UTC)),
        ("timestamp-millis", 2, "timestamp-nanos", 2_000_000),
        ("timestamp-millis", 2**53, "timestamp-nanos", "beyond what"),
        ("date", 15_000, "timestamp-millis", "int (date) cannot be read as long (timestamp-millis)"),
        ("date", 15_000, "time-millis", "int (date) cannot be read as int (time-millis)"),
        ("timestamp-micros", 1, "time-micros", "(timestamp-micros) cannot be read as long (time-micros)"),
    ],
)
def test_times_of_one_unit_are_not_taken_for_anothers(written: str, stored: int, read: str, expected: Any) -> None:
    raw = io.BytesIO()
    plain = {"type": "record", "name": "T", "fields": [{"name": "a", "type": TIMES[written]}]}
    fastavro.schemaless_writer(raw, fastavro.parse_schema(plain), {"a": stored})
    decoder = PayloadDecoder(json.dumps(one_field(written)), parse_type(json.dumps(one_field(read))))
    decoded = decoder.decode([raw.getvalue()])
    found = decoded.bad[0] if decoded.bad else decoded.rows[0].as_py()["a"]
    assert expected in found if isinstance(expected, str) else found == expected


def decoded(writer: Schema, reader: Schema, stored: Schema, value: Any) -> Decoded:
    """`stored` is the writer's schema without logical types."""
    decoder = PayloadDecoder(json.dumps(field_of(writer)), parse_type(json.dumps(field_of(reader))))
    return decoder.decode([avro_bytes(field_of(stored), {"a": value})])


def field_of(kind: Schema, **more: Any) -> Schema:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, **more}]}


def record(name: str, *fields: str, **defaults: Any) -> Schema:
    own = [{"name": field, "type": "string"} for field in fields]
    return {"type": "record", "name": name, "fields": own + [
        {"name": field, "type": "int", "default": value} for field, value in defaults.items()]}  # fmt: skip


def test_a_branch_is_chosen_by_its_full_name() -> None:
    writer = [record("n1.P", "x"), record("n2.P", "x", "y")]
    reader = [record("n1.P", "x"), record("n2.P", "x", "y", z=7)]
    found = decoded(writer, reader, writer, ("n2.P", {"x": "1", "y": "keep"}))
    assert found.rows.to_pylist() == [{"a": {"member0": None, "member1": {"x": "1", "y": "keep", "z": 7}}}]


@pytest.mark.parametrize(("branch", "value"), [("int", 5), ("long", 5), ("float", 0.5), ("double", 0.5)])
def test_a_union_keeps_the_branch_that_was_written(branch: str, value: float) -> None:
    union = ["double", "long", "null", "float", "int"]
    found = decoded(union, union, union, (branch, value))
    member = f"member{[one for one in union if one != 'null'].index(branch)}"
    assert {name: one for name, one in found.rows.to_pylist()[0]["a"].items() if one is not None} == {member: value}


def decimal(precision: int, scale: int) -> Schema:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("writer", "reader", "raw", "expected"),
    [
        (decimal(9, 2), decimal(9, 2), b"\x12\xd6\x87", Decimal("12345.67")),
        (decimal(9, 2), decimal(9, 2), b"\xff\xff\xff\xff\xff\xff", Decimal("-0.01")),
        (decimal(9, 2), "bytes", b"\x00\x00\x07", b"\x00\x00\x07"),
        ("bytes", decimal(9, 2), b"", Decimal("0.00")),
        (decimal(5, 2), decimal(5, 2), b"\x12\xd6\x87", "field a: 12345.67 has more digits than bytes (decimal(5,2))"),
        (decimal(5, 2), decimal(7, 2), b"\x12\xd6\x87", Decimal("12345.67")),
        (decimal(40, 2), decimal(40, 2), b"\x07", b"\x07"),
    ],
)
def test_a_decimal_is_exact_or_refused(writer: Schema, reader: Schema, raw: bytes, expected: Any) -> None:
    found = decoded(writer, reader, "bytes", raw)
    assert (found.bad[0] if found.bad else found.rows.to_pylist()[0]["a"]) == expected


DEFAULTS: list[tuple[Schema, Any, Any]] = [
    ("bytes", "\xff", b"\xff"),
    (["null", "bytes"], "\xff", b"\xff"),
    (["null", "long", "bytes"], "\xff", {"member0": None, "member1": b"\xff"}),
    (decimal(4, 2), "\x01\x00", Decimal("2.56")),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1500, dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)),
    ({"type": "int", "logicalType": "date"}, 1, dt.date(1970, 1, 2)),
    (record("D", z=7), {}, {"z": 7}),
    ({"type": "map", "values": decimal(4, 2)}, {"k": "\x07"}, [("k", Decimal("0.07"))]),
]


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_a_default_is_of_the_readers_type(kind: Schema, default: Any, expected: Any) -> None:
    reader = parse_type(json.dumps(field_of(kind, default=default)))
    decoder = PayloadDecoder(table({"name": "other", "type": "int"}), reader)
    assert decoder.decode([b"\2", b"\4"]).rows.to_pylist() == [{"a": expected}] * 2


def test_the_readers_logical_type_counts() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    assert decoded("long", millis, "long", 1500).rows.to_pylist()[0]["a"].microsecond == 500_000
    assert decoded("int", {"type": "int", "logicalType": "date"}, "int", 1).rows.to_pylist() == [
        {"a": dt.date(1970, 1, 2)}
    ]
    assert decoded(millis, "long", "long", 1500).rows.to_pylist() == [{"a": 1500}]


def test_items_of_type_null_are_kept_in_maps() -> None:
    kind = {"type": "map", "values": {"type": "array", "items": "null"}}
    found = decoded(kind, kind, kind, {"k": [None, None]})
    assert found.rows.to_pylist() == [{"a": [("k", [None, None])]}]


def test_symbols_that_are_no_names_are_read() -> None:
    kind = {"type": "enum", "name": "E", "symbols": ["a-b", "1"]}
    decoder = PayloadDecoder(json.dumps(field_of(kind)), parse_type(json.dumps(field_of(kind))))
    assert decoder.decode([b"\0", b"\2"]).rows.to_pylist() == [{"a": "a-b"}, {"a": "1"}]
