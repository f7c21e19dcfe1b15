"""Tests of the types that pyruhvro is proven for, of logical types, and of payloads that cannot be read."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.avro.parsing import parse_type
from klamm.schemas.avro.values.reading import value_reader
from klamm.schemas.columns import native
from klamm.schemas.columns.arrowtype import arrow_type
from klamm.schemas.columns.decode import PayloadDecoder
from klammtest.schemas import avro_bytes

UTC = dt.UTC
INSTANT = dt.datetime(2013, 1, 1, 5, 15, 0, 123000, tzinfo=UTC)
LOCAL = INSTANT.replace(tzinfo=None)
# type, value, the Arrow value, whether pyruhvro is proven for it
TYPES: list[tuple[Any, Any, Any, bool]] = [
    ("boolean", True, True, True),
    ("int", -5, -5, True),
    ("long", 2**40, 2**40, True),
    ("float", 1.5, 1.5, True),
    ("double", 0.1, 0.1, True),
    ("string", "hé", "hé", True),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B", True),
    ({"type": "array", "items": "int"}, [1, 2], [1, 2], True),
    ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None], True),
    ({"type": "array", "items": {"type": "array", "items": "string"}}, [["a"], []], [["a"], []], True),
    ({"type": "map", "values": "long"}, {"k": 3}, [("k", 3)], True),
    (["null", "int"], None, None, True),
    (["int", "null"], 7, 7, True),
    (["null", {"type": "array", "items": "string"}], None, None, True),
    (["null", {"type": "map", "values": "int"}], None, None, True),
    ({"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}]}, {"x": 1}, {"x": 1}, True),
    (["null", {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}]}], None, None, True),
    ({"type": "array", "items": {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}]}},
     [{"x": 1}], [{"x": 1}], True),
    ({"type": "map", "values": {"type": "record", "name": "S", "fields": [{"name": "x", "type": "int"}]}},
     {"k": {"x": 1}}, [("k", {"x": 1})], True),
    ({"type": "int", "logicalType": "date"}, dt.date(2013, 1, 1), dt.date(2013, 1, 1), True),
    ({"type": "long", "logicalType": "timestamp-millis"}, INSTANT, INSTANT, True),
    ({"type": "long", "logicalType": "timestamp-micros"}, INSTANT, INSTANT, True),
    (["null", {"type": "long", "logicalType": "timestamp-millis"}], INSTANT, INSTANT, True),
    ("bytes", b"x\xff", b"x\xff", False),
    ("null", None, None, False),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc", False),
    ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-1.05"), Decimal("-1.05"),
     False),
    ({"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 2},
     Decimal("7.10"), Decimal("7.10"), False),
    ({"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 0}, Decimal(1), b"\x01", False),
    ({"type": "string", "logicalType": "uuid"}, "a" * 8, "a" * 8, False),
    ({"type": "int", "logicalType": "time-millis"}, dt.time(0, 0, 1), 1000, False),
    ({"type": "long", "logicalType": "time-micros"}, dt.time(0, 0, 1), 1000000, False),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, LOCAL, LOCAL, False),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, LOCAL, LOCAL, False),
    ({"type": "int", "logicalType": "of nobody"}, 5, 5, True),
    (["int", "string"], "s", {"member0": None, "member1": "s"}, False),
    (["null", "int", "string"], 3, {"member0": 3, "member1": None}, False),
    (["null", "long", "double", "boolean"], True, {"member0": None, "member1": None, "member2": True}, False),
    (["null", {"type": "enum", "name": "E", "symbols": ["A"]}, {"type": "fixed", "name": "F", "size": 1}], b"x",
     {"member0": None, "member1": b"x"}, False),
    (["int"], 5, 5, False),
    ({"type": "record", "name": "Empty", "fields": []}, {}, {}, False),
]  # fmt: skip


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "namespace": "n", "fields": [{"name": "a", "type": kind}]}


@pytest.mark.parametrize(("kind", "value", "expected", "proven"), TYPES, ids=lambda v: str(v)[:40])
def test_each_type_comes_out_right_and_natively_where_proven(
    kind: Any, value: Any, expected: Any, proven: bool
) -> None:
    text = json.dumps(record(kind))
    reader = parse_type(text)
    payload = avro_bytes(record("bytes") if kind == "raw" else record(_plain(kind)), {"a": value})
    decoder = PayloadDecoder(text, reader)
    assert decoder.native is proven
    decoded = decoder.decode([payload, payload])
    assert decoded.bad == {}
    assert decoded.rows.type == arrow_type(reader)
    assert decoded.rows.to_pylist() == [{"a": expected}] * 2
    with mock.patch.object(native, "can_decode", return_value=False):
        slow = PayloadDecoder(text, reader)
    assert slow.decode([payload, payload]).rows.equals(decoded.rows)


def _plain(kind: Any) -> Any:
    """fastavro checks a uuid's form; what is stored is a string."""
    return "string" if isinstance(kind, dict) and kind.get("logicalType") == "uuid" else kind


PROVEN = st.recursive(
    st.sampled_from([kind for kind, _, _, proven in TYPES if proven and not isinstance(kind, list | dict)]),
    lambda inner: st.one_of(
        inner.map(lambda t: {"type": "array", "items": t}),
        inner.map(lambda t: {"type": "map", "values": t}),
        inner.filter(lambda t: not isinstance(t, list)).map(lambda t: ["null", t]),
    ),
    max_leaves=4,
)
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
}


def data(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.one_of(st.none(), data(kind[1]))
    if isinstance(kind, str):
        return PLAIN[kind]
    if kind["type"] == "array":
        return st.lists(data(kind["items"]), max_size=3)
    return st.dictionaries(st.text(max_size=2), data(kind["values"]), max_size=3)


@settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data(), st.lists(PROVEN, min_size=1, max_size=4))
def test_pyruhvro_and_fastavro_agree_on_every_proven_type(draw: st.DataObject, kinds: list[Any]) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": k} for i, k in enumerate(kinds)]}
    row = st.fixed_dictionaries({f"f{i}": data(kind) for i, kind in enumerate(kinds)})
    payloads = [avro_bytes(schema, value) for value in draw.draw(st.lists(row, min_size=1, max_size=5))]
    text = json.dumps(schema)
    fast = PayloadDecoder(text, parse_type(text))
    assert fast.native
    with mock.patch.object(native, "can_decode", return_value=False):
        slow = PayloadDecoder(text, parse_type(text))
    assert fast.decode(payloads).rows.equals(slow.decode(payloads).rows)


FLIGHT = record("string")
GOOD = avro_bytes(FLIGHT, {"a": "ok"})


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize("bad", [b"", b"\x0aab", b"\xff" * 12, b"\x01", b"\x04\xff\xfe", GOOD + b"\0"])
def test_a_payload_that_cannot_be_read_is_found_among_the_good(bad: bytes, proven: bool) -> None:
    text = json.dumps(FLIGHT)
    with mock.patch.object(native, "can_decode", return_value=proven):
        decoder = PayloadDecoder(text, parse_type(text))
    decoded = decoder.decode([GOOD, GOOD, bad, GOOD, bad])
    assert sorted(decoded.bad) == [2, 4]
    assert all(decoded.bad.values())
    assert decoded.rows.to_pylist() == [{"a": "ok"}, {"a": "ok"}, None, {"a": "ok"}, None]


def test_a_panic_of_pyruhvro_is_an_error_like_any_other(capfd: pytest.CaptureFixture[str]) -> None:
    schema = record("bytes")
    with pytest.raises(SchemaError, match="panicked"):
        native.decode(
            pa.array([avro_bytes(schema, {"a": b"x"})]), json.dumps(schema), arrow_type(parse_type(json.dumps(schema)))
        )


def test_a_timestamp_beyond_microseconds_is_a_bad_row() -> None:
    schema = record({"type": "long", "logicalType": "timestamp-millis"})
    text = json.dumps(schema)
    payload = avro_bytes(record("long"), {"a": 2**62})
    for proven in (True, False):
        with mock.patch.object(native, "can_decode", return_value=proven):
            assert sorted(PayloadDecoder(text, parse_type(text)).decode([payload]).bad) == [0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not an Avro schema"),
        ('"nothing"', "not an Avro schema"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}', "contains itself"),
    ],
)
def test_schemas_that_no_table_can_have_are_refused(text: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        parse_type(text)


def test_references_that_grow_beyond_all_bounds_are_refused() -> None:
    fields = [{"name": "a0", "type": {"type": "record", "name": "T0", "fields": [{"name": "x", "type": "int"}]}}]
    for i in range(1, 20):
        doubled = [{"name": n, "type": f"T{i - 1}"} for n in "xyz"]
        fields.append({"name": f"a{i}", "type": {"type": "record", "name": f"T{i}", "fields": doubled}})
    with pytest.raises(SchemaError, match="more than"):
        parse_type(json.dumps({"type": "record", "name": "R", "fields": fields}))


@pytest.mark.parametrize("proven", [True, False])
def test_numbers_that_are_longer_than_their_type_are_bad_rows(proven: bool) -> None:
    """pyruhvro reads the first as 0."""
    schema = record("int")
    text = json.dumps(schema)
    with mock.patch.object(native, "can_decode", return_value=proven):
        decoder = PayloadDecoder(text, parse_type(text))
    good = avro_bytes(schema, {"a": 5})
    decoded = decoder.decode([b"\xff\xff\xff\xff\xff\xff\x01", good])
    assert sorted(decoded.bad) == [0]
    assert decoded.rows.to_pylist() == [None, {"a": 5}]


def test_arrays_in_blocks_with_sizes_are_read_like_any() -> None:
    """Java writes a negative count and the block's size: other bytes, the same value."""
    schema = record({"type": "array", "items": "int"})
    text = json.dumps(schema)
    decoder = PayloadDecoder(text, parse_type(text))
    assert decoder.native
    assert decoder.decode([b"\x03\x04\x02\x04\x00", b"\x04\x02\x04\x00"]).rows.to_pylist() == [{"a": [1, 2]}] * 2


@pytest.mark.parametrize("part", ["array", "map"])
def test_types_as_deep_as_a_schema_may_be_are_columns(part: str) -> None:
    """pyruhvro's parser and the export of Arrow types end earlier."""
    inner, value = "int", 7
    for _ in range(62):
        inner = {"type": part, "items" if part == "array" else "values": inner}  # type: ignore[assignment]
        value = [value] if part == "array" else {"k": value}  # type: ignore[assignment]
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": inner}]}
    text = json.dumps(schema)
    decoded = PayloadDecoder(text, parse_type(text)).decode([avro_bytes(schema, {"a": value})])
    assert not decoded.bad
    assert decoded.rows.to_pylist(maps_as_pydicts="strict") == [{"a": value}]


def test_of_a_key_twice_in_a_map_the_last_counts() -> None:
    """pyruhvro keeps both, which no reader of records does."""
    inner = record({"type": "array", "items": {"type": "map", "values": "int"}})
    decoder = PayloadDecoder(json.dumps(inner), parse_type(json.dumps(inner)))
    assert decoder.native
    once, twice = b"\2\2\2k\2\0\0", b"\2\4\2k\2\2k\4\0\0"
    assert decoder.decode([once, twice]).rows.to_pylist() == [{"a": [[("k", 1)]]}, {"a": [[("k", 2)]]}]


def test_symbols_that_occur_twice_are_read() -> None:
    """fastavro and pyruhvro refuse the schema."""
    text = json.dumps(record({"type": "enum", "name": "E", "symbols": ["A", "A", "B"]}))
    decoded = PayloadDecoder(text, parse_type(text)).decode([b"\0", b"\2", b"\4"])
    assert decoded.rows.to_pylist() == [{"a": "A"}, {"a": "A"}, {"a": "B"}]
    read = value_reader(parse_type(text), parse_type(text))
    assert [read(io.BytesIO(raw)) for raw in (b"\2", b"\4")] == [{"a": "A"}, {"a": "B"}]
