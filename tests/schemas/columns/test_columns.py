"""Columns written and read are what fastavro writes and reads record by record, and errors are its errors."""

from __future__ import annotations

import datetime as dt
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core.client.producer.arrow import read_rows
from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey
from klamm.core.interfaces.serde import Serializer
from klamm.schemas.avro.parsing import parse_type
from klamm.schemas.avro.values.encoding import varint
from klamm.schemas.columns.arrowtype import arrow_type
from klamm.schemas.serdes.avro import AvroSerde
from klammtest.schemas import serde

UTC = dt.UTC
INSTANTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
FLOATS = st.floats(width=32, allow_nan=False)
TEXT = st.text(max_size=8)
PLAIN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", FLOATS),
    ("double", st.floats(allow_nan=False)),
    ("string", TEXT),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, st.sampled_from("AB")),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "timestamp-micros"}, INSTANTS),
    ({"type": "long", "logicalType": "timestamp-millis"},
     INSTANTS.map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    ("bytes", st.binary(max_size=5)),
]  # fmt: skip


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """An Avro type, and values of it as Arrow takes and gives them. Names are made unique by `named`."""
    shape = draw(st.sampled_from(["plain", "plain", "optional", "list", "map", "record"] if depth else ["plain"]))
    if shape == "plain":
        return draw(st.sampled_from(PLAIN))
    avro, values = draw(kinds(depth - 1))
    if shape == "optional":
        if isinstance(avro, list):
            return avro, values
        return draw(st.sampled_from([["null", avro], [avro, "null"]])), st.one_of(st.none(), values)
    if shape == "list":
        return {"type": "array", "items": avro}, st.lists(values, max_size=3)
    if shape == "map":
        return {"type": "map", "values": avro}, st.dictionaries(TEXT, values, max_size=3).map(lambda d: list(d.items()))
    second, others = draw(kinds(depth - 1))
    fields = [{"name": "x", "type": avro}, {"name": "y", "type": second}]
    return {"type": "record", "name": "R", "fields": fields}, st.fixed_dictionaries({"x": values, "y": others})


def named(avro: Any, names: list[str]) -> Any:
    if isinstance(avro, list):
        return [named(branch, names) for branch in avro]
    if not isinstance(avro, dict):
        return avro
    made = {key: named(item, names) if key in ("items", "values") else item for key, item in avro.items()}
    if "name" in made:
        names.append(f"N{len(names)}")
        made["name"] = names[-1]
    if "fields" in made:
        made["fields"] = [{**field, "type": named(field["type"], names)} for field in made["fields"]]
    return made


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    members = draw(st.lists(kinds(), min_size=1, max_size=4))
    names: list[str] = []
    fields = [{"name": f"f{i}", "type": named(avro, names)} for i, (avro, _) in enumerate(members)]
    rows = st.lists(st.fixed_dictionaries({f"f{i}": values for i, (_, values) in enumerate(members)}), max_size=6)
    return json.dumps({"type": "record", "name": "Row", "fields": fields}), draw(rows)


def plain(rows: pa.Array) -> list[Any]:
    """Maps as fastavro has them."""
    return [row.as_py(maps_as_pydicts="strict") for row in rows]


class Registry:
    """Takes any schema: what is compatible with what is not the matter here."""

    def __init__(self) -> None:
        self.found: dict[int, RegisteredSchema] = {}

    def register(self, _subject: str, text: str, _compatibility: object, **_more: object) -> RegisteredSchema:
        number = len(self.found) + 1
        self.found[number] = RegisteredSchema(number, text, b"", b"")
        return self.found[number]

    def lookup(self, key: SchemaKey, _subject: str) -> RegisteredSchema:
        if key.schema_id not in self.found:
            raise SchemaError(f"there is no schema {key.schema_id}")
        return self.found[key.schema_id]


Made = Callable[..., AvroSerde]


@pytest.fixture
def made() -> Made:
    """Serdes of one topic over the same registry."""
    schemas: Any = Registry()

    def make(text: str | None) -> AvroSerde:
        return serde(schemas, {"t": (text, "confluent", {})})

    return make


def written(one: AvroSerde, rows: pa.Array) -> list[bytes | None] | None:
    """As `Producer.send_arrow` does, less the prefix."""
    columnar = one.arrow_serializer("t")
    assert columnar is not None
    payloads = columnar.payloads(rows)
    return None if payloads is None else payloads.to_pylist()


def bodies(serialize: Serializer, rows: list[Any]) -> list[bytes | None]:
    return [payload and payload[5:] for payload in map(serialize, rows)]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(table=tables(), cut=st.integers(0, 2))
def test_columns_are_written_and_read_as_records_are(made: Made, table: tuple[str, list[Any]], cut: int) -> None:
    text, rows = table
    one = made(text)
    serialize, deserialize = one.serializer("t"), one.deserializer("t")
    array = pa.array(rows, arrow_type(parse_type(text)))[cut:]
    singly = [serialize(row) for row in plain(array)]
    columnar = written(one, array)
    assert columnar == [payload and payload[5:] for payload in singly] or (columnar is None and '"bytes"' in text)
    read = one.arrow_deserializer("t")
    assert read is not None
    found = read(pa.array([*singly, None], pa.binary()))
    assert found is not None
    values, error = found
    assert error is None
    assert values.type == (arrow_type(parse_type(text)))
    assert values[:-1].equals(array)
    assert not values[-1].is_valid
    assert plain(array) == [deserialize(payload) for payload in singly]


def row_of(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "Row", "fields": [{"name": n, "type": t} for n, t in fields]})


STAMP = {"type": "long", "logicalType": "timestamp-millis"}
MAP = {"type": "map", "values": "int"}
MISFITS: list[tuple[Any, pa.Array]] = [
    ("int", pa.array([2**31])),
    ("int", pa.array([1.0])),
    ("int", pa.array([None], pa.int32())),
    ("long", pa.array([2**63], pa.uint64())),
    ("float", pa.array([1e39])),
    ("double", pa.array(["1"])),
    ("string", pa.array([b"x"])),
    ("string", pa.array([None], pa.string())),
    (
        "string",
        pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("ii", 0, 1)), pa.py_buffer(b"\xff")]),
    ),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, pa.array(["B"])),
    (STAMP, pa.array([2**60], pa.timestamp("us", "UTC"))),
    ({"type": "array", "items": "int"}, pa.array([[1, None]])),
    (MAP, pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int32()))),
    (["null", "int", "string"], pa.array([1])),
]


@pytest.mark.parametrize(("avro", "column"), MISFITS)
def test_what_is_not_sure_to_fit_is_left_to_the_writer_of_rows(made: Made, avro: Any, column: pa.Array) -> None:
    one = made(row_of(("a", avro)))
    assert written(one, pa.StructArray.from_arrays([column], ["a"])) is None


@pytest.mark.parametrize(
    ("avro", "kind", "where"),
    [
        (STAMP, pa.timestamp("us"), "a"),
        (["null", STAMP], pa.timestamp("ms"), "a"),
        (["null", STAMP, "string"], pa.timestamp("ns"), "a"),
        ({"type": "array", "items": STAMP}, pa.large_list(pa.timestamp("us")), "a[]"),
        ({"type": "map", "values": ["null", STAMP]}, pa.map_(pa.string(), pa.timestamp("us")), "a{}"),
        (
            {"type": "record", "name": "In", "fields": [{"name": "at", "type": STAMP}]},
            pa.struct([("at", pa.timestamp("us"))]),
            "a.at",
        ),
    ],
)
def test_a_time_without_a_zone_is_no_instant(made: Made, avro: Any, kind: pa.DataType, where: str) -> None:
    """The writer of rows would take it for a time of the machine that it runs on."""
    one = made(row_of(("a", avro)))
    with pytest.raises(SchemaError, match=rf"field {re.escape(where)}: timestamp\[.s\] has no time zone"):
        written(one, pa.nulls(1, pa.struct([("a", kind)])))
    local = made(row_of(("a", {"type": "long", "logicalType": "local-timestamp-millis"})))
    rows = pa.array([{"a": dt.datetime(2020, 1, 1)}])  # noqa: DTZ001
    assert written(local, rows) is None


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"]])
def test_a_field_too_few_or_too_many(made: Made, names: list[str]) -> None:
    columns = pa.StructArray.from_arrays([pa.array([1])] * len(names), names)
    assert written(made(row_of(("a", "int"), ("b", "int"))), columns) is None


def test_other_columns_that_fit_are_written_too(made: Made) -> None:
    text = json.dumps({"type": "record", "name": "Row", "fields": [
        {"name": "n", "type": "int"}, {"name": "w", "type": "float"}, {"name": "s", "type": "string"},
        {"name": "t", "type": STAMP}, {"name": "l", "type": {"type": "array", "items": "long"}},
        {"name": "d", "type": ["null", "string"], "default": None}, {"name": "e", "type": "int", "default": 7},
    ]})  # fmt: skip
    one = made(text)
    stamps = [dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), dt.datetime(2020, 1, 1, tzinfo=UTC)]
    rows = pa.StructArray.from_arrays(
        [
            pa.array([1, 2], pa.uint8()),
            pa.array([2**53 + 1, 3], pa.int64()),
            pa.array(["ä", "b"]).dictionary_encode(),
            pa.array(stamps, pa.timestamp("us", "Europe/Berlin")),
            pa.array([[1], []], pa.large_list(pa.int32())),
        ],
        names=["n", "w", "s", "t", "l"],
        mask=pa.array([False, False]),
    )
    serialize = one.serializer("t")
    expected = bodies(serialize, rows.to_pylist())
    assert written(one, rows) == expected
    holes = pa.concat_arrays([rows[1:], pa.nulls(1, rows.type), rows[:1]])
    assert written(one, holes) == [expected[1], None, expected[0]]


def test_rows_of_several_writers_are_read_by_the_topics_schema(made: Made) -> None:
    old = made(row_of(("a", "int")))
    new = made(row_of(("a", "long"), ("b", ["null", "string"])))
    reader_text = json.dumps({"type": "record", "name": "Row", "fields": [
        {"name": "b", "type": ["null", "string"], "default": None}, {"name": "a", "type": "double"}]})  # fmt: skip
    put_old, put_new = old.serializer("t"), new.serializer("t")
    payloads = [put_old({"a": 1}), put_new({"a": 2, "b": "x"}), None, put_old({"a": 3})]
    for text, expected in (
        (reader_text, [{"b": None, "a": 1.0}, {"b": "x", "a": 2.0}, None, {"b": None, "a": 3.0}]),
        (None, [{"a": 1, "b": None}, {"a": 2, "b": "x"}, None, {"a": 3, "b": None}]),
    ):
        read = made(text).arrow_deserializer("t")
        assert read is not None
        found = read(pa.array(payloads, pa.binary()))
        assert found is not None
        assert found[0].to_pylist() == expected
    assert [made(reader_text).deserializer("t")(p) for p in payloads][1] == {"b": "x", "a": 2.0}


@pytest.mark.parametrize(
    ("bad", "match"),
    [(b"\0\0\0\0\x63x", "99"), (b"x", "too short"), (b"cut", "IndexError|EOFError|truncated|end|read|Avro|EOF|buffer")],
)
def test_the_first_bad_payload_ends_the_values(made: Made, bad: bytes, match: str) -> None:
    one = made(row_of(("a", "string")))
    put = one.serializer("t")
    good = put({"a": "x"})
    assert good is not None
    wrong = good[:5] + b"\x50ab" if bad == b"cut" else bad
    read = one.arrow_deserializer("t")
    assert read is not None
    found = read(pa.array([good, None, good, wrong, good, wrong], pa.binary()))
    assert found is not None
    assert found[0].to_pylist() == [{"a": "x"}, None, {"a": "x"}]
    with pytest.raises(SchemaError, match=match):
        raise found[1] or AssertionError


def test_types_that_contain_themselves_go_record_by_record(made: Made) -> None:
    text = row_of(("next", ["null", "Row"]), ("a", "int"))
    one = made(text)
    assert one.arrow_serializer("t") is None
    assert one.arrow_deserializer("t") is None
    read = made(None).arrow_deserializer("t")
    assert read is not None
    assert read(pa.array([one.serializer("t")({"next": None, "a": 1})], pa.binary())) is None


def union_rows(union: list[Any], rows: list[Any]) -> pa.Array:
    """Rows of a record whose field `a` is the union's struct."""
    kind = arrow_type(parse_type(json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": union}]})))
    return pa.array([{"a": row} for row in rows], kind)


SHAPES = [{"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]} for name in ("P", "Q")]
UNIONS: list[tuple[list[Any], list[dict[str, Any] | None]]] = [
    (["null", "string", "long"], [{"member0": "text"}, {"member1": 2**53 + 1}, None]),
    (["null", "string", {"type": "map", "values": ["null", "string"]}],
     [{"member0": "text"}, {"member1": [("k", None)]}, None, {"member1": []}]),
    (["double", "long", "int", "float"],
     [{"member0": 0.5}, {"member1": 5}, {"member2": 5}, {"member3": 0.5}]),
    (["null", *SHAPES], [{"member0": {"x": 1}}, {"member1": {"x": 1}}, None]),
    (["string", {"type": "array", "items": ["int", "string"]}], [{"member1": [{"member0": 1}, {"member1": "1"}]}]),
]  # fmt: skip


@pytest.mark.parametrize(("union", "rows"), UNIONS)
def test_a_table_that_was_read_is_written_as_the_same_bytes(made: Made, union: list[Any], rows: list[Any]) -> None:
    one = made(json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": union}]}))
    sent = union_rows(union, rows)
    found = sent_rows(one, sent)
    read = one.arrow_deserializer("t")
    assert read is not None
    back = read(pa.array(found, pa.binary()))
    assert back is not None
    assert back[0].to_pylist() == sent.to_pylist()
    assert [raw and raw[5:] for raw in sent_rows(one, back[0])] == [raw and raw[5:] for raw in found]


def sent_rows(one: AvroSerde, rows: pa.Array) -> list[bytes | None]:
    """The payloads of `Producer.send_arrow`, each with the id of the schema."""
    table = pa.table({"value": rows})
    serialize, columnar = one.serializer("t"), one.arrow_serializer("t")
    return [
        part.prefix + value
        for part in read_rows("t", table, None, None, serialize, columnar, typed=True)
        for value in part.values.to_pylist()
    ]


@pytest.mark.parametrize(
    ("logical", "kind", "stored"),
    [
        ("timestamp-nanos", pa.timestamp("ns", "UTC"), [1, -1, 1_001]),
        ("local-timestamp-nanos", pa.timestamp("ns"), [1, -1, 1_001]),
        ("timestamp-micros", pa.timestamp("ns", "UTC"), [0, -1, 1]),
        ("timestamp-millis", pa.timestamp("ns", "UTC"), [0, -1, 0]),
    ],
)
def test_nanoseconds_are_lost_only_by_a_larger_unit(made: Made, logical: str, kind: Any, stored: list[int]) -> None:
    field = {"name": "a", "type": {"type": "long", "logicalType": logical}}
    one = made(json.dumps({"type": "record", "name": "N", "fields": [field]}))
    table = pa.table({"a": pa.array([1, -1, 1_001]).cast(kind)})
    found = [raw[5:] for raw in sent_rows(one, table.to_struct_array().combine_chunks()) if raw]
    assert found == [varint(number) for number in stored]


MAP_OF_TEXT = {"type": "map", "values": "string"}


def test_a_key_twice_in_a_map_of_a_union_is_refused_by_its_row(made: Made) -> None:
    kind = ["null", "string", MAP_OF_TEXT]
    one = made(json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": kind}]}))
    maps = pa.array([[("k", "1")], [("k", "1"), ("k", "2")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(SchemaError, match=r"row 1: .*field a: a key occurs twice in a map"):
        sent_rows(one, pa.StructArray.from_arrays([maps], names=["a"]))


@pytest.mark.parametrize(
    ("kind", "rows", "why"),
    [
        (
            ["string", "long"],
            [{"member1": 1}, {"member0": None}, {"member0": "a"}],
            "row 1: .*field a: no member of the union is set",
        ),
        (
            ["null", "string", "long"],
            [{"member0": "a"}, {"member0": "a", "member1": 1}],
            "row 1: .*member0 and member1",
        ),
        (["null", "string", MAP_OF_TEXT], [{"member0": "a", "other": 1}], "field a: struct.* is no union of null"),
        (["null", "string", MAP_OF_TEXT], [{"k": "a"}], "field a: struct.* is no union of null"),
        (MAP_OF_TEXT, [{"k": "a"}], "field a: struct.* is no map"),
        ({"type": "array", "items": MAP_OF_TEXT}, [[{"k": "a"}]], r"field a\[\]: struct.* is no map"),
    ],
)
def test_a_struct_is_a_union_by_its_members_and_never_a_map(made: Made, kind: Any, rows: list[Any], why: str) -> None:
    one = made(json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": kind}]}))
    with pytest.raises(SchemaError, match=why):
        sent_rows(one, pa.array([{"a": row} for row in rows]))


def test_times_beyond_pythons_years_are_refused_by_their_row(made: Made) -> None:
    date = {"type": "int", "logicalType": "date"}
    one = made(json.dumps({"type": "record", "name": "U", "fields": [{"name": "a", "type": ["null", date, "bytes"]}]}))
    days = pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32())
    union = pa.StructArray.from_arrays([days, pa.nulls(2, pa.binary())], names=["member0", "member1"])
    with pytest.raises(SchemaError, match=r"row 1: .*field a"):
        sent_rows(one, pa.StructArray.from_arrays([union], names=["a"]))
