"""Values of a schema as JSON and as cells of CSV; Avro's own bytes are the judge of a round trip."""

from __future__ import annotations

import io
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from klamm.core.errors import SchemaError
from klamm.schemas.avro.parsing import parse
from klamm.schemas.avro.values.json_values import cell_reader, fractions, json_reader, json_text
from klamm.schemas.avro.values.reading import value_reader
from klamm.schemas.avro.values.writing import value_writer

UUID_TEXT = "123e4567-e89b-12d3-a456-426614174000"
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
UUID_TYPE = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
POINTS = [
    {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]},
    {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]},
]


def schema(kind: Any) -> Any:
    return {"type": "record", "name": "n.R", "fields": [{"name": "f", "type": kind}]}


def encoded(kind: Any, document: str) -> bytes:
    root = parse(json.dumps(schema(kind))).root
    pieces: list[bytes] = []
    given = json.loads(document, parse_float=fractions(root))
    value_writer(root)(json_reader(root)({"f": given}), pieces.append)
    return b"".join(pieces)


def printed(kind: Any, payload: bytes) -> str:
    root = parse(json.dumps(schema(kind))).root
    value = value_reader(root, root)(io.BytesIO(payload))
    text = json_text(root)(value)
    assert text.startswith('{"f":'), text
    return text[len('{"f":') : -1]


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("string", '"ü"'),
        ("double", "1.5"),
        ("double", '"NaN"'),
        ("double", '"-Infinity"'),
        ("float", "2.0"),
        ("double", "1e-310"),
        ("double", "-1.7976931348623157e308"),
        ("long", "9007199254740993"),
        ("bytes", '"a\\u00ff\\u0000"'),
        ({"type": "fixed", "name": "F", "size": 2}, '"ÿa"'),
        ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, '"Y"'),
        (DECIMAL, '"12.10"'),
        (UUID_TYPE, f'"{UUID_TEXT}"'),
        ({"type": "string", "logicalType": "uuid"}, f'"{UUID_TEXT}"'),
        ({"type": "int", "logicalType": "date"}, '"2026-11-28"'),
        ({"type": "int", "logicalType": "time-millis"}, '"10:30:00.500000"'),
        (MILLIS, '"2026-11-28T10:30:00Z"'),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, '"2026-11-28T10:30:00.000001"'),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "1795824000000000001"),
        ({"type": "map", "values": DECIMAL}, '{"a": "0.01"}'),
        ({"type": "array", "items": ["null", MILLIS]}, '[null, "2026-11-28T10:30:00Z"]'),
        (["null", "string"], '"null"'),
        (["string", "bytes"], '"text"'),
        (["string", "bytes"], '{"bytes": "\u00ff"}'),
        (["string", MILLIS, "double"], '{"long": "2026-11-28T10:30:00Z"}'),
        (["string", MILLIS, "double"], "1.5"),
        (["null", "int", {"type": "map", "values": "int"}], '{"map": {"int": 1}}'),
        (["null", {"type": "map", "values": "int"}], '{"map": 1}'),
        (["null", *POINTS], '{"-type": "n.B", "x": 1}'),
        (["null", POINTS[0], "string"], '{"x": 1}'),
    ],
)
def test_a_document_is_printed_as_it_was_given(kind: Any, document: str) -> None:
    payload = encoded(kind, document)
    assert json.loads(printed(kind, payload)) == json.loads(document)
    stream = io.BytesIO(payload)
    fastavro.schemaless_reader(stream, fastavro.parse_schema(schema(kind)), None)
    assert not stream.read()


def test_fractions_are_exact_where_digits_count_or_choose_a_branch() -> None:
    exact = [DECIMAL, ["null", "double", "string"], {"type": "array", "items": DECIMAL}]
    assert [fractions(parse(json.dumps(schema(kind))).root) for kind in exact] == [Decimal] * len(exact)
    assert fractions(parse(json.dumps(schema(["null", "double"]))).root) is float
    for kind in (["null", "double", "string"], ["null", "double"]):
        assert encoded(kind, "0.1") == encoded(kind, '{"double": 0.1}')


def test_a_document_is_not_changed_and_may_lack_fields_with_defaults() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "at", "type": MILLIS}]}
    fields = [
        {"name": "in", "type": inner, "default": {"at": 0}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 0},
    ]
    root = parse(json.dumps({"type": "record", "name": "R", "fields": fields})).root
    assert json_reader(root)({}) == {}
    given = {"in": {"at": "1970-01-01T00:00:00Z"}, "day": "1970-01-02"}
    before = json.dumps(given)
    assert json_reader(root)(given)["day"].isoformat() == "1970-01-02"
    assert json.dumps(given) == before
    with pytest.raises(SchemaError, match="field in: expected an object for record In, got None"):
        json_reader(root)({"in": None})


@pytest.mark.parametrize(
    ("kind", "document", "same_as"),
    [
        (DECIMAL, "12.1", '"12.10"'),
        (DECIMAL, "12", '"12.00"'),
        (MILLIS, "1795861800000", '"2026-11-28T10:30:00Z"'),
        ({"type": "int", "logicalType": "date"}, "5", '"1970-01-06"'),
        ({"type": "long", "logicalType": "time-micros"}, "5", '"00:00:00.000005"'),
        (["null", "bytes", MILLIS], "5", '{"long": "1970-01-01T00:00:00.005Z"}'),
        (["null", "string", {"type": "int", "logicalType": "time-millis"}, MILLIS], "86400000", '{"long": 86400000}'),
        (MILLIS, '"2026-11-28T12:30:00+02:00"', '"2026-11-28T10:30:00Z"'),
        (["null", "string"], '{"string": "a"}', '"a"'),
        (["null", MILLIS], '{"long": 0}', '"1970-01-01T00:00:00Z"'),
        (["null", *POINTS], '{"n.B": {"x": 1}}', '{"-type": "B", "x": 1}'),
        (["null", *POINTS], '{"A": {"x": 1}}', '{"-type": "A", "x": 1}'),
        (["bytes", MILLIS], '"2026-11-28T10:30:00Z"', '{"long": "2026-11-28T10:30:00Z"}'),
        (["bytes", UUID_TYPE], f'"{UUID_TEXT}"', f'{{"n.Id": "{UUID_TEXT}"}}'),
    ],
)
def test_other_forms_are_read(kind: Any, document: str, same_as: str) -> None:
    assert encoded(kind, document) == encoded(kind, same_as)


@pytest.mark.parametrize(
    ("kind", "document", "why"),
    [
        ("double", '"x"', "field f: expected double, got 'x'"),
        ("int", "1.5", "field f: expected int, got 1.5"),
        ("double", "1e400", "field f: the number is too large for double"),
        (["null", "float", DECIMAL], "-1e400", "field f: the number is too large for float"),
        ("double", "1" + "0" * 400, "is too large for double"),
        ("float", "1e39", "field f: 1e.39 is too large for float"),
        (POINTS[0], "[1]", r"field f: expected an object for record n.A, got \[1\]"),
        (["null", POINTS[0]], "5", "field f: expected an object for record n.A, got 5"),
        (
            "bytes",
            '"€"',
            "field f: expected text with one character .* for each byte for bytes, got '€'",
        ),
        (DECIMAL, '"a"', r"field f: expected a decimal number for bytes \(decimal\(9,2\)\), got 'a'"),
        (DECIMAL, "0.001", "has more than the 2 decimal places"),
        (MILLIS, "18014398509481984", "field f: 18014398509481984 is beyond the range of long .timestamp-millis."),
        (["null", "bytes", MILLIS], "18014398509481984", "field f: 18014398509481984 is beyond the range of long"),
        (MILLIS, "true", "field f: expected a datetime with a time zone for long .timestamp-millis., got True"),
        (MILLIS, '"2026-11-28"', "field f: expected a time such as 2026-11-28T10:30:00Z"),
        (MILLIS, '"2026-11-28T10:30:00"', "has no time zone"),
        (UUID_TYPE, '"1"', "field f: expected a UUID"),
        (["null", *POINTS], '{"x": 1}', "the value may be of n.A or n.B: name one"),
        ({"type": "array", "items": "int"}, '{"a": 1}', "field f: expected array, got"),
    ],
)
def test_what_is_wrong_is_named(kind: Any, document: str, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        encoded(kind, document)


def test_the_number_of_a_time_that_python_has_no_object_for_is_printed() -> None:
    number = 2**54
    assert printed(MILLIS, encoded("long", str(number))) == str(number)
    union = ["null", "bytes", MILLIS]
    assert printed(union, encoded(["null", "bytes", "long"], str(number))) == str(number)


def test_cells() -> None:
    fields = [
        {"name": "s", "type": "string"},
        {"name": "n", "type": "long", "default": 7},
        {"name": "d", "type": ["null", "double"]},
        {"name": "b", "type": "boolean"},
        {"name": "dec", "type": DECIMAL},
        {"name": "at", "type": MILLIS},
        {"name": "l", "type": {"type": "array", "items": "int"}},
        {"name": "u", "type": ["null", "long", "string"]},
    ]
    root = parse(json.dumps({"type": "record", "name": "R", "fields": fields})).root
    read, write = cell_reader(root, [field["name"] for field in fields]), json_text(root)
    row = {"s": "1", "n": "", "d": "", "b": "true", "dec": "1.50", "at": "0", "l": "[1,2]", "u": "5"}
    pieces: list[bytes] = []
    value_writer(root)(read(row), pieces.append)
    found = write(value_reader(root, root)(io.BytesIO(b"".join(pieces))))
    assert json.loads(found) == {
        "s": "1", "n": 7, "d": None, "b": True, "dec": "1.50", "at": "1970-01-01T00:00:00Z", "l": [1, 2], "u": "5",
    }  # fmt: skip
    assert math.isnan(read({"d": "NaN"})["d"])
    for name, text, why in (
        ("n", "x", "field n: expected long, got 'x'"),
        ("b", "yes", "field b: expected true or false, got 'yes'"),
        ("b", "", "field b: expected true or false, got ''"),
        ("l", "1,2", "field l: expected array as JSON, got '1,2'"),
        ("at", "noon", "field at: expected a time such as"),
    ):
        with pytest.raises(SchemaError, match=why):
            read({name: text})
    with pytest.raises(SchemaError, match="CSV rows are records, and the schema is string"):
        cell_reader(parse('"string"').root, ["s"])
    with pytest.raises(SchemaError, match="column 'm' is no field of record R; fields: s, n, d, b, dec, at, l, u"):
        cell_reader(root, ["s", "m"])
    with pytest.raises(SchemaError, match="no column for the field 'd', which has no default; columns: s, b"):
        cell_reader(root, ["s", "b"])
