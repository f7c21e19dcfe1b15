"""Decoding and resolution against fastavro, on generated pairs of schemas."""

from __future__ import annotations

import datetime as dt
import io
import itertools
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.columns.arrowtype import arrow_type
from klamm.schemas.columns.avrotype import parse_type
from klamm.schemas.columns.decode import PayloadDecoder
from klamm.schemas.columns.pyvalue import converter
from klammtest.schemas import avro_bytes

Schema = Any
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
}
PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
            "string": ["bytes"], "bytes": ["string"]}  # fmt: skip
SYMBOLS = ["A", "B", "C"]


class Names:
    """Named types get names that no other has."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def new(self, kind: str) -> str:
        return f"{kind}{next(self._count)}"


def types(names: Names, depth: int = 2) -> st.SearchStrategy[Schema]:
    leaf = st.one_of(
        st.sampled_from(sorted(VALUES)),
        st.builds(lambda: {"type": "enum", "name": names.new("E"), "symbols": SYMBOLS}),
        st.builds(lambda: {"type": "fixed", "name": names.new("F"), "size": 3}),
    )
    if depth == 0:
        return leaf
    inner = types(names, depth - 1)
    plain = st.one_of(
        leaf,
        st.builds(lambda t: {"type": "array", "items": t}, inner.filter(lambda t: True)),
        st.builds(lambda t: {"type": "map", "values": t}, inner),
        records(names, depth - 1),
    )
    return st.one_of(
        plain,
        st.builds(lambda t: ["null", t], plain.filter(lambda t: not isinstance(t, list))),
        st.just(["null", "long", "string"]),
        st.just(["string", "boolean"]),
    )


def records(names: Names, depth: int) -> st.SearchStrategy[Schema]:
    def build(kinds: list[Schema]) -> Schema:
        fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]
        return {"type": "record", "name": names.new("R"), "fields": fields}

    return st.builds(build, st.lists(types(names, depth), min_size=1, max_size=4))


def values(schema: Schema) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([st.none() if branch == "null" else values(branch) for branch in schema])
    if isinstance(schema, str):
        return VALUES[schema]
    match schema["type"]:
        case "enum":
            return st.sampled_from(schema["symbols"])
        case "fixed":
            return st.binary(min_size=3, max_size=3)
        case "array":
            return st.lists(values(schema["items"]), max_size=3)
        case "map":
            return st.dictionaries(st.text(max_size=3), values(schema["values"]), max_size=3)
        case _:
            return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})


def evolved(schema: Schema, names: Names) -> st.SearchStrategy[Schema]:
    """Readers that Avro, or luck, can resolve the schema to."""
    if isinstance(schema, list):
        kept = st.tuples(*[st.just("null") if b == "null" else evolved_plain(b, names) for b in schema])
        whole = kept.map(list).filter(_is_union)
        return st.one_of(whole, evolved_plain(schema[-1], names)) if schema[0] == "null" else whole
    wrapped = evolved_plain(schema, names)
    return st.one_of(wrapped, wrapped, wrapped.map(lambda t: ["null", t]))


def _is_union(branches: list[Schema]) -> bool:
    """No two branches that a value could go to."""
    kinds = [b if isinstance(b, str) else b["type"] for b in branches]
    return (len(branches) == 2 and "null" in kinds) or kinds in (["null", "long", "string"], ["string", "boolean"])


def evolved_plain(schema: Schema, names: Names) -> st.SearchStrategy[Schema]:
    if isinstance(schema, list):
        return evolved(schema, names)
    if isinstance(schema, str):
        return st.sampled_from([schema, schema, *PROMOTED.get(schema, [])])
    match schema["type"]:
        case "enum":
            fewer = {**schema, "symbols": SYMBOLS[:2]}
            return st.sampled_from([schema, fewer, {**fewer, "default": "B"}])
        case "array":
            return evolved(schema["items"], names).map(lambda t: {"type": "array", "items": t})
        case "map":
            return evolved(schema["values"], names).map(lambda t: {"type": "map", "values": t})
        case "record":
            return evolved_record(schema, names)
        case _:
            return st.just(schema)


DEFAULTS: list[tuple[Schema, Any]] = [
    ("int", 7), ("double", 1), ("string", "x"), (["null", "int"], None), (["string", "null"], "s"),
    ({"type": "array", "items": "long"}, [1, 2]), ({"type": "map", "values": "int"}, {"k": 1}), ("boolean", True),
]  # fmt: skip


@st.composite
def evolved_record(draw: st.DrawFn, schema: Schema, names: Names) -> Schema:
    fields = []
    for field in schema["fields"]:
        fate = draw(st.sampled_from(["keep", "keep", "keep", "drop", "rename"]))
        if fate == "drop":
            continue
        kind = draw(evolved(field["type"], names))
        renamed = {"name": names.new("n"), "aliases": [field["name"]], "type": kind}
        fields.append(renamed if fate == "rename" else {"name": field["name"], "type": kind})
    if draw(st.booleans()) or not fields:
        kind, default = draw(st.sampled_from(DEFAULTS))
        fields.append({"name": names.new("d"), "type": kind, "default": default})
    return {"type": "record", "name": schema["name"], "fields": draw(st.permutations(fields))}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Schema, Schema, list[Any]]:
    names = Names()
    writer = draw(records(names, 2))
    reader = draw(evolved_record(writer, names))
    return writer, reader, draw(st.lists(values(writer), min_size=1, max_size=4))


def by_fastavro(payload: bytes, writer: Schema, reader: Schema) -> tuple[bool, Any]:
    """(whether it can be read, the row as Arrow gives it back)."""
    kind = parse_type(json.dumps(reader))
    try:
        raw = fastavro.schemaless_reader(
            io.BytesIO(payload), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
        convert = converter(kind)
        return True, pa.array([convert(raw) if convert else raw], arrow_type(kind)).to_pylist()[0]
    except (fastavro.read.SchemaResolutionError, UnicodeDecodeError):
        return False, None


@settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)
@given(pairs())
def test_rows_are_those_that_fastavro_resolves(pair: tuple[Schema, Schema, list[Any]]) -> None:
    writer, reader, rows = pair
    payloads = [avro_bytes(writer, row) for row in rows]
    expected = [by_fastavro(payload, writer, reader) for payload in payloads]
    kind = parse_type(json.dumps(reader))
    try:
        decoder = PayloadDecoder(json.dumps(writer), kind)
    except SchemaError:
        assert not any(ok for ok, _ in expected)
        return
    decoded = decoder.decode(payloads)
    decoded.rows.validate(full=True)
    assert decoded.rows.type == arrow_type(kind)
    assert sorted(decoded.bad) == [i for i, (ok, _) in enumerate(expected) if not ok]
    assert decoded.rows.to_pylist() == [row for _, row in expected]


def table(*fields: dict[str, Any], name: str = "R", **more: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


@pytest.mark.parametrize(
    ("writer", "reader", "why"),
    [
        (table({"name": "a", "type": "string"}), table({"name": "a", "type": "int"}), "string cannot be read as int"),
        (table({"name": "a", "type": "int"}), table({"name": "b", "type": "int"}), "b of R has no default"),
        (table({"name": "a", "type": "int"}), table({"name": "a", "type": "int"}, name="S"), "no such alias"),
        (table({"name": "a", "type": "long"}), table({"name": "a", "type": "int"}), "long cannot be read as int"),
    ],
)
def test_what_never_resolves_is_said_before_any_row(writer: str, reader: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        PayloadDecoder(writer, parse_type(reader))


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
        ("date", 15_000, "timestamp-millis", "date cannot be read as timestamp-millis"),
        ("date", 15_000, "time-millis", "date cannot be read as time-millis"),
        ("timestamp-micros", 1, "time-micros", "timestamp-micros cannot be read as time-micros"),
    ],
)
def test_times_of_one_unit_are_not_taken_for_anothers(written: str, stored: int, read: str, expected: Any) -> None:
    raw = io.BytesIO()
    plain = {"type": "record", "name": "T", "fields": [{"name": "a", "type": TIMES[written]}]}
    fastavro.schemaless_writer(raw, fastavro.parse_schema(plain), {"a": stored})
    try:
        decoded = PayloadDecoder(json.dumps(one_field(written)), parse_type(json.dumps(one_field(read)))).decode(
            [raw.getvalue()]
        )
        found = decoded.bad[0] if decoded.bad else decoded.rows[0].as_py()["a"]
    except SchemaError as error:
        found = str(error)
    assert expected in found if isinstance(expected, str) else found == expected
