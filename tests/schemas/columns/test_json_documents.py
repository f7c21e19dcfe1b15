"""Documents by columns give what documents one by one give; `schemas.json_values` is the judge."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.avro.parsing import parse
from klamm.schemas.avro.values.json_values import json_reader, json_text
from klamm.schemas.avro.values.reading import value_reader
from klamm.schemas.columns.json_documents import DocumentReader, DocumentWriter
from klamm.schemas.serdes.avro import row_writer

PREFIX = b"\0\0\0\0\7"
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, -(2**63), 2**63 - 1])
EXTREMES = [0.0, -0.0, 1.0, -1.5, 1e9, 999999999.5, 1e15, 1e16, 1e300, -1e300, 5e-324, 1e-4, 9.9e-5, 0.1, 123456.789]
FLOATS = st.floats() | st.sampled_from(EXTREMES) | st.decimals(-(10**9), 10**9, places=3).map(float)
NUMBERS = FLOATS.filter(math.isfinite) | st.integers(-(2**70), 2**70)
CHARACTERS = st.characters(codec="utf-8")
TEXTS = st.text(CHARACTERS, max_size=6) | st.sampled_from(["", '"', "\\", "\x00\x1f\n", "\x7f\u2028", "ä", "😀"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
    "double": NUMBERS,
    "string": TEXTS,
}
WRONG = st.none() | NUMBERS | TEXTS | st.booleans() | st.sampled_from([[], {}, {"long": 1}, {"string": "x"}, "NaN"])
WRONG |= st.sampled_from([math.inf, "\ud800", 2**31, 2**63, -(2**63) - 1, 3.5e38, 1e39])
CHECKED = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def fields(draw: st.DrawFn) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(sorted(VALUES)))
        match draw(st.integers(0, 3)):
            case 0:
                made.append({"name": f"f{number}", "type": ["null", kind], "default": None})
            case 1:
                made.append({"name": f"f{number}", "type": [kind, "null"]})
            case _:
                made.append({"name": f"f{number}", "type": kind})
    return made


def schema(of: list[dict[str, Any]]) -> str:
    return json.dumps({"type": "record", "name": "n.R", "fields": of})


def document(draw: st.DrawFn, of: list[dict[str, Any]], wrong: int) -> Any:
    """Returns a document; up to `wrong` of its parts may be what the schema does not take."""
    made = {}
    for field in of:
        kinds = [field["type"]] if isinstance(field["type"], str) else field["type"]
        kind = draw(st.sampled_from(kinds))
        if "default" not in field or draw(st.booleans()):
            made[field["name"]] = None if kind == "null" else draw(VALUES[kind])
    for _ in range(wrong):
        match draw(st.integers(0, 3)):
            case 0:
                made[draw(st.sampled_from([*(field["name"] for field in of), "other"]))] = draw(WRONG)
            case 1:
                made.pop(draw(st.sampled_from([field["name"] for field in of])), None)
            case 2:
                return draw(WRONG)
    return made


@CHECKED
@given(data=st.data(), of=fields(), wrong=st.sampled_from([0, 0, 1]))
def test_documents_are_written_as_one_by_one(data: st.DataObject, of: list[dict[str, Any]], wrong: int) -> None:
    root = parse(schema(of)).root
    draw = data.draw
    documents = [document(draw, of, wrong and draw(st.integers(0, 1))) for _ in range(draw(st.integers(1, 6)))]
    serialize = row_writer("t", parse(schema(of)), PREFIX, json_reader(root))
    expected: list[bytes | None] | None
    try:
        expected = [serialize(one) for one in documents]
    except (SchemaError, ValueError):
        expected = None
    writer = DocumentWriter.of(root, PREFIX)
    assert writer is not None
    found = writer(documents)
    assert found is None or found == expected
    large = any(
        isinstance(item, int) and abs(item) >= 2**53 for one in documents if wrong == 0 for item in one.values()
    )
    assert found is not None or wrong or expected is None or large


@CHECKED
@given(data=st.data(), of=fields())
def test_payloads_are_printed_as_one_by_one(data: st.DataObject, of: list[dict[str, Any]]) -> None:
    draw = data.draw
    name = "Sub"
    inner = {"type": "record", "name": name, "fields": [{"name": "x", "type": ["null", "double"]}]}
    of = [
        *of,
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "s", "type": inner},
    ]
    of.append({"name": "o", "type": ["null", name]})
    text = schema(of)
    root = parse(text).root
    serialize = row_writer("t", parse(text), PREFIX)
    written: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 6))):
        value = document(draw, of[:-3], 0)
        for field in of[:-3]:
            kinds = field["type"]
            if "double" in kinds and value.get(field["name"]) is not None:
                value[field["name"]] = draw(FLOATS)
        value |= {"e": draw(st.sampled_from("AB")), "s": {"x": draw(st.none() | FLOATS)}}
        value["o"] = draw(st.none() | st.just({"x": 1e22}))
        written.append(serialize(value))
    if draw(st.booleans()):
        written.insert(draw(st.integers(0, len(written))), None)
    read, printed = value_reader(root, root), json_text(root)
    expected = [b"null" if raw is None else printed(read(io.BytesIO(raw[5:]))).encode() for raw in written]
    reader = DocumentReader(len(PREFIX), lambda _: text, draw(st.sampled_from([root, None])))
    assert reader(pa.array([b"before", *written], pa.binary())[1:]) == expected


def test_what_columns_do_not_read_is_left_to_single_records() -> None:
    of = [{"name": "f0", "type": "string"}]
    root = parse(schema(of)).root
    other = parse(schema([{"name": "f0", "type": ["null", "string"], "default": None}])).root
    payload = b"".join(filter(None, [row_writer("t", parse(schema(of)), PREFIX)({"f0": "ä"})]))

    def unknown(_: bytes) -> str:
        raise SchemaError("no such id")

    reader = DocumentReader(5, lambda _: schema(of), root)
    assert reader(pa.array([payload], pa.binary())) == ['{"f0":"ä"}'.encode()]
    for wrong in (
        payload[:-1],
        payload + b"x",
        b"\0\0\0\0\7\x02\xff",
        b"",
        b"\0",
        b"\1" + payload[1:],
        b"\0\0\0\0\7\x80\0",
    ):
        assert reader(pa.array([payload, wrong], pa.binary())) is None, wrong
    assert reader(pa.array([None], pa.binary())) is None
    assert DocumentReader(5, lambda _: schema(of), other)(pa.array([payload], pa.binary())) is None
    assert DocumentReader(5, unknown, None)(pa.array([payload], pa.binary())) is None
    for kind in (
        {"type": "array", "items": "int"},
        {"type": "long", "logicalType": "timestamp-millis"},
        ["int", "string"],
    ):
        text = schema([{"name": "f0", "type": kind}])
        assert DocumentWriter.of(parse(text).root, PREFIX) is None
        value = {"f0": [] if isinstance(kind, dict) and kind["type"] == "array" else 1}
        written = row_writer("t", parse(text), PREFIX, json_reader(parse(text).root))(value)
        assert DocumentReader(5, lambda _, text=text: text, None)(pa.array([written], pa.binary())) is None
