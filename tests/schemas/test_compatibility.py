"""Each of Avro's resolution rules; and what the check passes, fastavro reads."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from fastavro.schema import parse_schema
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.avro.parsing import parse
from klamm.schemas.avro.resolution import FromUnion, IntoUnion, refusals, resolve
from klamm.schemas.compatibility import Compatibility, check


def record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


A = field("a", "int")
LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "L"]}],
}


def mismatches(reader: Any, writer: Any) -> list[str]:
    return list(refusals(resolve(parse(json.dumps(writer)).root, parse(json.dumps(reader)).root)))


READABLE = [  # reader, writer
    (record(A), record(A)),
    (record(A), record(A, field("b", "string"))),
    (record(A, field("b", "string", default="")), record(A)),
    (record(field("z", "int", aliases=["a"])), record(A)),
    (record(A, name="S", aliases=["R"]), record(A)),
    (record(A, namespace="x"), record(A, namespace="y")),
    (record(field("a", ["null", "int"])), record(A)),
    (record(field("a", ["null", "long"])), record(A)),
    (record(field("a", enum("A", default="A"))), record(field("a", enum("A", "B")))),
    (record(field("a", enum("A", "B"))), record(field("a", enum("A")))),
    (LIST, LIST),
    ("long", "int"),
    ("float", "int"),
    ("double", "int"),
    ("float", "long"),
    ("double", "long"),
    ("double", "float"),
    ("bytes", "string"),
    ("string", "bytes"),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": ["null", "int"]}, {"type": "map", "values": "int"}),
]
UNREADABLE = [
    (record(A, field("b", "string")), record(A), "field b: is not in the data and has no default"),
    (record(A), record(field("a", "long")), "field a: long cannot be read as int"),
    (record(A), record(field("a", ["null", "int"])), "field a: null cannot be read as int"),
    (record(A, name="S"), record(A), "record R is not S"),
    (record(field("a", ["null", "string"])), record(A), "field a: int is in no branch of the union of null, string"),
    (record(field("a", enum("A"))), record(field("a", enum("A", "B"))), "field a: enum E lacks B and has no default"),
    (
        record(field("s", record(A, field("b", "int"), name="S"))),
        record(field("s", record(A, name="S"))),
        "field s.b: is not in the data",
    ),
    (
        record(field("s", {"type": "array", "items": "int"})),
        record(field("s", {"type": "array", "items": "string"})),
        "field s[]: string cannot be read as int",
    ),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, "has 8 bytes, not 4"),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
        "cannot be read as bytes (decimal(9,2)): another scale",
    ),
]


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_readable(reader: Any, writer: Any) -> None:
    assert mismatches(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "words"), UNREADABLE)
def test_unreadable_names_the_field(reader: Any, writer: Any, words: str) -> None:
    (problem,) = mismatches(reader, writer)
    assert words in problem


DATE, TIME_MS, TIME_US = (
    {"type": kind, "logicalType": name}
    for kind, name in (("int", "date"), ("int", "time-millis"), ("long", "time-micros"))
)
MILLIS, MICROS, NANOS, LOCAL = (
    {"type": "long", "logicalType": name}
    for name in ("timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis")
)
UUID = {"type": "string", "logicalType": "uuid"}


def decimal(precision: int, scale: int) -> Any:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [  # the table of docs/schemas.md
        (MILLIS, "long", True),
        (MILLIS, "int", True),
        ("long", MILLIS, True),
        ("double", DATE, True),
        (decimal(4, 2), "bytes", True),
        ("string", UUID, True),
        (MICROS, NANOS, True),
        (NANOS, MILLIS, True),
        (LOCAL, MICROS, True),
        (TIME_US, TIME_MS, True),
        (decimal(9, 2), decimal(4, 2), True),
        (decimal(4, 2), decimal(9, 2), False),
        (decimal(9, 3), decimal(9, 2), False),
        (MILLIS, DATE, False),
        (MILLIS, TIME_MS, False),
        (TIME_US, DATE, False),
        (TIME_US, MICROS, False),
        (decimal(9, 2), UUID, False),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
            decimal(9, 2),
            True,
        ),  # bytes
    ],
)
def test_logical_types(reader: Any, writer: Any, fits: bool) -> None:
    """Issue 29, A7: the check passed `date` to `timestamp-millis`, which loads refused."""
    problems = mismatches(record(field("a", reader)), record(field("a", writer)))
    assert (problems == []) == fits
    assert all("field a: " in problem and " cannot be read as " in problem for problem in problems)


def named(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return record(*(fields or (A,)), name=name, **more)


@pytest.mark.parametrize(
    ("reader", "writer", "branches"),
    [
        ([named("n1.P"), named("n2.P")], [named("n2.P"), named("n1.P")], [1, 0]),  # full names first
        (["null", named("n1.P"), named("n2.P")], named("n2.P"), [2]),
        ([named("n1.Q", aliases=["n2.P"]), named("n3.P")], named("n2.P"), [0]),  # aliases are full names
        ([named("n1.Q", aliases=["P"]), named("n3.P")], named("n2.P"), [1]),  # n1.P, not n2.P: by the short name
        (["null", named("n1.P"), named("n3.P", field("b", "int"))], named("n2.P"), [1]),  # the one that resolves
        ([named("n1.Q")], named("n2.P"), [None]),  # another name is another type, whatever its fields
        (["double", "float", "string"], "long", [0]),
        (["string", "long"], "int", [1]),
        ([enum("A", namespace="n1"), enum("A", namespace="n2")], enum("A", namespace="n2"), None),
    ],
)
def test_branches_of_the_readers_union(reader: Any, writer: Any, branches: list[int | None] | None) -> None:
    """Issue 29, A3: the first branch with the short name was taken."""
    if branches is None:  # enums and fixed alike
        reader, branches = [{**part, "name": f"{part.pop('namespace')}.E"} for part in map(dict, reader)], [1]
    plan = resolve(parse(json.dumps(writer)).root, parse(json.dumps(reader)).root)
    plans = plan.parts() if isinstance(plan, FromUnion) else [plan]
    assert [one.index if isinstance(one, IntoUnion) else None for one in plans] == branches


OLD = json.dumps(record(A))
ADDED = json.dumps(record(A, field("b", "int")))
ADDED_WITH_DEFAULT = json.dumps(record(A, field("b", "int", default=0)))


@pytest.mark.parametrize(
    ("rule", "new", "fits"),
    [
        ("BACKWARD", ADDED, False),
        ("BACKWARD", ADDED_WITH_DEFAULT, True),
        ("FORWARD", ADDED, True),
        ("FULL", ADDED, False),
        ("FULL", ADDED_WITH_DEFAULT, True),
        ("NONE", '"string"', True),
    ],
)
def test_rules(rule: str, new: str, fits: bool) -> None:
    if fits:
        check("t-value", new, [(1, OLD)], Compatibility(rule))
        return
    with pytest.raises(SchemaError, match=f"t-value: not {rule} compatible: .*version 1: field b"):
        check("t-value", new, [(1, OLD)], Compatibility(rule))


def test_transitive_looks_at_all_versions() -> None:
    first, second, third = OLD, json.dumps(record()), json.dumps(record(field("a", "string", default="")))
    check("s", third, [(1, first), (2, second)], Compatibility.BACKWARD)
    with pytest.raises(SchemaError, match="version 1: field a: int cannot be read as string"):
        check("s", third, [(1, first), (2, second)], Compatibility.BACKWARD_TRANSITIVE)


_PRIMITIVES = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
_TYPES = st.recursive(
    _PRIMITIVES,
    lambda inner: st.one_of(
        inner.map(lambda t: {"type": "array", "items": t}),
        inner.map(lambda t: {"type": "map", "values": t}),
        _PRIMITIVES.map(lambda t: ["null", t]),
        st.lists(st.sampled_from("ABC"), min_size=1, unique=True).map(lambda s: enum(*s)),
    ),
    max_leaves=3,
)


@st.composite
def _records(draw: st.DrawFn) -> dict[str, Any]:
    """Fields a, b, c, some of them; enums are named apart, since a name may stand once."""
    fields = []
    for name in sorted(draw(st.sets(st.sampled_from("abc")))):
        kind = json.loads(json.dumps(draw(_TYPES)).replace('"name": "E"', f'"name": "E{name}"'))
        more = {"default": None} if isinstance(kind, list) and draw(st.booleans()) else {}
        fields.append(field(name, kind, **more))
    return record(*fields)


def with_text(value: Any) -> Any:
    """The value with ASCII for `bytes`: Avro lets a reader take `bytes` as `string`, which only UTF-8 can be."""
    match value:
        case bytes():
            return value.hex().encode()
        case dict():
            return {key: with_text(inner) for key, inner in value.items()}
        case list():
            return [with_text(inner) for inner in value]
        case _:
            return value


@settings(max_examples=300)
@given(reader=_records(), writer=_records())
def test_what_the_check_passes_fastavro_reads(reader: dict[str, Any], writer: dict[str, Any]) -> None:
    if mismatches(reader, writer):
        return
    written, wanted = parse_schema(writer), parse_schema(reader)
    buffer = io.BytesIO()
    schemaless_writer(buffer, written, with_text(generate_one(written)))
    got = schemaless_reader(io.BytesIO(buffer.getvalue()), written, wanted)
    assert isinstance(got, dict)
    assert set(got) == {f["name"] for f in reader["fields"]}
