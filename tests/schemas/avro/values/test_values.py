"""What `send` accepts and `poll` returns, type by type; what cannot be read is refused with the field's path."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.avro.parsing import check_new, parse
from klamm.schemas.avro.values.dataclass import from_plain
from klamm.schemas.avro.values.reading import value_reader
from klamm.schemas.avro.values.writing import value_writer

UTC = dt.UTC


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    made = [f if isinstance(f, dict) else {"name": f[0], "type": f[1]} for f in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def write(schema: Any, value: Any) -> bytes:
    pieces: list[bytes] = []
    value_writer(check_new(json.dumps(schema)).root)(value, pieces.append)
    return b"".join(pieces)


def read(writer: Any, payload: bytes, reader: Any = None, **more: Any) -> Any:
    written = parse(json.dumps(writer)).root
    wanted = written if reader is None else parse(json.dumps(reader)).root
    stream = io.BytesIO(payload)
    value = value_reader(written, wanted, **more)(stream)
    assert stream.tell() == len(payload)
    return value


def stored(schema: Any, value: Any) -> bytes:
    """The payload of stored values, by fastavro."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


DATE = logical("int", "date")
TIME_MS, TIME_US = logical("int", "time-millis"), logical("long", "time-micros")
MILLIS, MICROS, NANOS = (logical("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos"))
LOCAL = logical("long", "local-timestamp-micros")
TEXT_UUID = logical("string", "uuid")
KEY = {"type": "fixed", "name": "Key", "size": 2}
RAW_UUID = {**logical("fixed", "uuid"), "name": "Id", "size": 16}
RAW_DECIMAL = {**logical("fixed", "decimal", precision=4, scale=1), "name": "D", "size": 4}
STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}
NOON = dt.datetime(2024, 2, 29, 12, 0, 1, 234_567, tzinfo=UTC)
SOME = UUID("12345678-1234-5678-1234-567812345678")

ACCEPTED = [  # (type, value, value read)
    ("int", -(2**31), -(2**31)),
    ("long", 2**63 - 1, 2**63 - 1),
    ("float", 3.4028234663852886e38, 3.4028234663852886e38),
    ("float", -math.inf, -math.inf),
    ("double", 3, 3.0),
    ("boolean", False, False),
    ("string", "é𝄞", "é𝄞"),
    ("bytes", bytearray(b"x"), b"x"),
    (KEY, b"ab", b"ab"),
    (STATE, "DONE", "DONE"),
    (DATE, dt.date(1, 1, 1), dt.date(1, 1, 1)),
    (DATE, dt.date(9999, 12, 31), dt.date(9999, 12, 31)),
    (TIME_MS, dt.time(23, 59, 59, 999_999), dt.time(23, 59, 59, 999_000)),
    (TIME_US, dt.time(), dt.time()),
    (NANOS, 5, 5),
    (MILLIS, NOON, NOON.replace(microsecond=234_000)),
    (MILLIS, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
    (MICROS, NOON.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON),
    (NANOS, NOON, 1_709_208_001_234_567_000),
    (NANOS, pd.Timestamp(-1, tz="UTC"), -1),
    (LOCAL, NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
    (TEXT_UUID, str(SOME), SOME),
    (RAW_UUID, SOME, SOME),
    (decimal(5, 2), Decimal("-999.99"), Decimal("-999.99")),
    (decimal(5, 2), Decimal("1E+2"), Decimal("100.00")),
    (decimal(5, 2), b"\x30\x39", Decimal("123.45")),
    (decimal(110_001, 0), Decimal(10**110_000 + 1), Decimal(10**110_000 + 1)),
    (RAW_DECIMAL, Decimal("-1.50"), Decimal("-1.5")),
    ({"type": "array", "items": "int"}, (1, 2), [1, 2]),
    ({"type": "map", "values": "bytes"}, {"k": b"v"}, {"k": b"v"}),
    (logical("bytes", "decimal", precision=2, scale=5), b"xyz", b"xyz"),  # an invalid logical type is ignored
]


@pytest.mark.parametrize(("kind", "value", "back"), ACCEPTED)
def test_values_that_are_accepted(kind: Any, value: Any, back: Any) -> None:
    for schema in (kind, ["null", kind]):
        payload = write(record(("a", schema)), {"a": value})
        found = read(record(("a", schema)), payload)["a"]
        assert (found, type(found)) == (back, type(back))
        assert read(record(("a", schema)), write(record(("a", schema)), {"a": found}))["a"] == back


REFUSED = [
    ("int", 1.9, "field a: expected int, got 1.9"),
    ("int", 2**31, "field a: 2147483648 is too large for int"),
    ("long", True, "field a: expected long, got True"),
    ("long", "1", "field a: expected long, got '1'"),
    ("float", 1e39, "field a: 1e.39 is too large for float"),
    ("double", "1.5", "field a: expected double, got '1.5'"),
    ("double", 10**400, "is too large for double"),
    ("boolean", 1, "field a: expected boolean, got 1"),
    ("string", b"x", "field a: expected string, got b'x'"),
    ("string", "\ud800", "field a: .* cannot be UTF-8"),
    ("bytes", 1.5, "field a: expected bytes, got 1.5"),
    (KEY, b"abc", "field a: 3 bytes, not the 2 of fixed Key"),
    (STATE, "LOST", "field a: 'LOST' is no symbol of enum State: NEW, DONE"),
    (DATE, 2**40, "field a: .* is beyond the range of int .date."),
    (DATE, NOON, "field a: expected a date, got"),
    (TIME_MS, 86_400_000, "field a: 86400000 is beyond the range of int .time-millis."),
    (TIME_US, -1, "field a: -1 is beyond the range"),
    (
        DATE,
        19_000,
        r"^field a: expected a date for int .date., got the number 19000; .* is datetime.date\(2022, 1, 8\)$",
    ),
    (
        TIME_MS,
        1,
        r"field a: expected a time for int .time-millis., got the number 1; .* is datetime.time\(0, 0, 0, 1000\)",
    ),
    (TIME_US, np.int64(0), r"field a: expected a time for long .time-micros., got the number 0; "),
    (
        MILLIS,
        5,
        "field a: expected a datetime with a time zone for long .timestamp-millis., got the number 5; the value that "
        r"is stored as this number is datetime.datetime\(1970, 1, 1, 0, 0, 0, 5000, tzinfo=datetime.timezone.utc\)$",
    ),
    (MILLIS, True, "field a: expected a datetime with a time zone for long .timestamp-millis., got True$"),
    (
        LOCAL,
        5,
        "field a: expected a datetime without a time zone for long .local-timestamp-micros., got the number 5; ",
    ),
    (NANOS, "5", "field a: expected a datetime with a time zone or a whole number for long .timestamp-nanos., got '5'"),
    (NANOS, 2**63, "field a: .* is beyond the range of long .timestamp-nanos."),
    (MILLIS, 1.7e15, "field a: expected a datetime with a time zone for long .timestamp-millis., got"),
    (MILLIS, 1_700_000_000_000_000, "field a: .* is beyond the range of long .timestamp-millis."),
    (MICROS, dt.datetime(2024, 1, 1), "no time zone, so it is no instant, .*local-timestamp-micros takes it"),  # noqa: DTZ001
    (LOCAL, NOON, "has a time zone, and local-timestamp-micros is a local time"),
    (MICROS, pd.NaT, "field a: expected a datetime, got NaT"),
    (LOCAL, pd.NaT, "field a: expected a datetime, got NaT"),
    (NANOS, pd.NaT, "field a: expected a datetime, got NaT"),
    (DATE, pd.NaT, "field a: expected a date, got NaT"),
    (TIME_US, pd.NaT, "field a: expected a time without a time zone, got NaT"),
    (NANOS, dt.datetime(3000, 1, 1, tzinfo=UTC), "beyond the range of long .timestamp-nanos."),
    (TEXT_UUID, "not-a-uuid", "field a: expected a UUID, got 'not-a-uuid'"),
    (decimal(5, 2), 1.5, "field a: expected a Decimal for bytes .decimal.5,2.., got 1.5"),
    (decimal(5, 2), Decimal("1.005"), "field a: 1.005 has more than the 2 decimal places"),
    (decimal(5, 2), Decimal("1E+900000"), "field a: .* has more than the 5 digits"),
    (decimal(5, 2), Decimal("NaN"), "expected a Decimal"),
    (decimal(5, 2), (1_234_567).to_bytes(4, "big"), "field a: .* has more than the 5 digits of bytes .decimal"),
    ({"type": "array", "items": "int"}, "12", r"field a: expected array, got '12'"),
    ({"type": "array", "items": "int"}, np.array(3), r"field a: expected array, got array\(3\)"),
    ({"type": "array", "items": record(("n", "int"), name="I")}, [{"n": "x"}], r"field a\[\].n: expected int"),
    ({"type": "map", "values": "int"}, {1: 1}, "the key of a: expected string, got 1"),
    ({"type": "map", "values": "int"}, {"k": None}, r"field a\{\}: expected int, got None"),
]


@pytest.mark.parametrize(("kind", "value", "why"), REFUSED)
def test_a_value_that_nobody_could_read_is_refused(kind: Any, value: Any, why: str) -> None:
    """Issue 29, A5 and A9."""
    for schema in (kind, ["null", kind]):
        with pytest.raises(SchemaError, match=why):
            write(record(("a", schema)), {"a": value})


@pytest.mark.parametrize(
    ("kind", "plain", "raw", "back"),
    [
        (MILLIS, "long", 1_700_000_000_000_000, 1_700_000_000_000_000),
        (MICROS, "long", -(2**63), -(2**63)),
        (LOCAL, "long", 2**62, 2**62),
        (DATE, "int", 2**30, 2**30),
        (TIME_MS, "int", 86_400_000, 86_400_000),
        (TIME_MS, "int", -1, -1),
        (TEXT_UUID, "string", "not-a-uuid", "not-a-uuid"),
        (decimal(5, 2), "bytes", (1_234_567).to_bytes(4, "big"), Decimal("12345.67")),
        (decimal(3, 0), "bytes", (12345).to_bytes(2, "big"), Decimal(12345)),
    ],
)
def test_what_others_have_written_is_read_exactly(kind: Any, plain: Any, raw: Any, back: Any) -> None:
    """Issue 29, A4 and A5: decimals were rounded to the precision, times beyond Python's failed."""
    assert read(record(("a", kind)), stored(record(("a", plain)), {"a": raw})) == {"a": back}


TREE = record(("v", "int"), ("next", ["null", "R"]))


def test_a_list_of_800_records_is_written_in_proportion_to_its_length() -> None:
    """Issue 29, A12: counted in calls of a field's mapping, not in seconds."""
    calls = 0

    class Counted(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal calls
            calls += 1
            return super().get(key, default)

        def __iter__(self) -> Any:
            nonlocal calls
            calls += 1
            return super().__iter__()

    value = None
    for number in range(800):
        value = Counted(v=number, next=value)
    payload = write(TREE, value)
    assert calls < 10 * 800
    found, length = read(TREE, payload), 0
    while found is not None:
        found, length = found["next"], length + 1
    assert length == 800
    for _ in range(5000):
        value = {"v": 0, "next": value}
    with pytest.raises(RecursionError):
        write(TREE, value)


def test_a_payload_that_is_nested_too_deeply_is_refused() -> None:
    """fastavro nests C calls: 5 KB ended the process."""
    chain = record(("next", ["null", "R"]))
    assert read(chain, b"\2" * 900 + b"\0")["next"]["next"] is not None
    tree = record(("children", {"type": "array", "items": "R"}))
    pairs = record(("more", {"type": "map", "values": ["R", "null"]}))
    for schema, payload in (
        (chain, b"\2" * 100_000 + b"\0"),
        (tree, b"\2" * 100_000 + b"\0" * 100_001),
        (pairs, b"\1\x0a\0\0" * 50_000),
    ):
        with pytest.raises(SchemaError, match="values are nested deeper than 1000"):
            read(schema, payload)
    flat = [{"children": []}] * 3000
    assert read(tree, write(tree, {"children": flat})) == {"children": flat}
    with pytest.raises(EOFError):
        read(tree, b"\xd0\x0f" + b"\0" * 900 + b"\2")


P1, P2 = record(("x", "int"), name="n1.P"), record(("x", "int"), ("y", "string"), name="n2.P")
SAME = record(("x", "int"), name="n2.P")
E1, E2 = ({"type": "enum", "name": f"E{n}", "symbols": ["A", f"B{n}"]} for n in (1, 2))
NANOS = logical("long", "timestamp-nanos")
UNIONS = [  # (union, value, index of the branch, value read)
    (["null", P1, SAME], {"-type": "n2.P", "x": 1}, 2, {"-type": "n2.P", "x": 1}),
    (["null", P1, SAME], ("n2.P", {"x": 1}), 2, {"-type": "n2.P", "x": 1}),
    (["null", P1, P2], {"x": 1}, 1, {"x": 1}),
    (["null", P1, P2], {"x": 1, "y": ""}, 2, {"x": 1, "y": ""}),
    (["null", P1, {"type": "map", "values": "int"}], ("map", {"x": 1}), 2, ("map", {"x": 1})),
    (["null", P1, {"type": "map", "values": "int"}], {"z": 1}, 2, ("map", {"z": 1})),
    (["null", "string", {"type": "map", "values": "string"}], {"-type": "string"}, 2, {"-type": "string"}),
    (["double", "long"], 2**53 + 1, 1, 2**53 + 1),
    (["double", "long"], 1.0, 0, 1.0),
    (["float", "double"], 0.1, 1, 0.1),
    (["int", "long"], 2**40, 1, 2**40),
    (["null", "double"], 3, 1, 3.0),
    ([E1, "string"], "A", 1, "A"),
    ([E1, "string"], ("E1", "A"), 0, ("E1", "A")),
    ([E1, E2], ("E2", "A"), 1, ("E2", "A")),
    ([E1, E2], "B2", 1, ("E2", "B2")),
    (["bytes", KEY], ("Key", b"ab"), 1, ("Key", b"ab")),
    (["bytes", KEY], b"ab", 0, b"ab"),
    (["string", RAW_UUID], SOME, 1, SOME),
    ([DATE, "long"], dt.date(2024, 1, 1), 0, dt.date(2024, 1, 1)),
    ([DATE, "long"], 5, 1, 5),
    ([MILLIS, "double"], 5, 1, 5.0),
    ([MILLIS, "int"], NOON.replace(microsecond=0), 0, NOON.replace(microsecond=0)),
    (["null", "boolean", "int"], True, 1, True),
    ([TIME_MS, TIME_US], dt.time(0, 0, 0, 1), 1, dt.time(0, 0, 0, 1)),
    ([TIME_MS, NANOS], 1, 1, 1),
    (["int", NANOS], 5, 0, 5),
    (["int", NANOS], ("long", 5), 1, ("long", 5)),
    ([decimal(4, 2), RAW_DECIMAL], Decimal("1.5"), 0, Decimal("1.50")),
    ([decimal(4, 2), RAW_DECIMAL], Decimal("100.5"), 1, Decimal("100.5")),
    (["null", {"type": "array", "items": "string"}, "string"], ["string", "x"], 1, ["string", "x"]),
]


@pytest.mark.parametrize(("union", "value", "index", "back"), UNIONS)
def test_branches_of_unions_and_what_is_read_can_be_sent(union: Any, value: Any, index: int, back: Any) -> None:
    """Issue 29, A10."""
    schema = record(("a", union))
    payload = write(schema, {"a": value})
    assert payload[0] == 2 * index
    found = read(schema, payload)
    assert found == {"a": back}
    assert type(found["a"]) is type(back)
    assert write(schema, found) == payload


@pytest.mark.parametrize(
    ("union", "value", "why"),
    [
        ([P1, SAME], {"x": 1}, r'field a: the value may be of n1.P or n2.P: name one, as \("n1.P", value\), .*"-type"'),
        ([P1, {"type": "map", "values": "int"}], {"x": 1}, "may be of n1.P or map"),
        ([E1, E2], "A", r'may be of E1 or E2: name one, as \("E1", value\)$'),
        ([P1, P2], {"z": 1}, "field a: a value with the keys z fits no branch"),
        (["null", "int"], 1.9, "field a: expected int, got 1.9"),
        (["int", "string"], 1.9, "field a: 1.9 is of no branch of the union of int, string"),
        ([P1, P2], ("n3.P", {}), "is of no branch|fits no branch"),
        ([P1, P2], {"-type": "n3.P"}, "field a: 'n3.P' is no branch of the union of record n1.P, record n2.P"),
        (["int", "long"], 2**70, "is too large for"),
        (
            ["string", DATE, MILLIS],
            5,
            "field a: 5 is of no branch of the union of string, int .date., long .timestamp-m",
        ),
        (["string", MILLIS], ("long", 5), "field a: expected a datetime with a time zone .* got the number 5; "),
    ],
)
def test_a_union_refuses_what_could_be_taken_for_another(union: Any, value: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        write(record(("a", union)), {"a": value})


BEYOND = [  # (union, stored types, stored value, index of the branch, value read)
    ([DATE, "long"], ["int", "long"], 2**30, 0, ("int", 2**30)),
    ([MILLIS, "double"], ["long", "double"], 2**62, 0, ("long", 2**62)),
    ([NANOS, TIME_MS], ["long", "int"], 86_400_000, 1, ("int", 86_400_000)),
    ([STATE, TEXT_UUID], [STATE, "string"], "NEW", 1, ("string", "NEW")),
    (["null", MILLIS, "string"], ["null", "long", "string"], 2**62, 1, 2**62),  # no other branch takes a number
]


@pytest.mark.parametrize(("union", "plain", "raw", "index", "back"), BEYOND)
def test_what_others_have_written_beyond_a_branch_is_not_sent_to_another(
    union: Any, plain: Any, raw: Any, index: int, back: Any
) -> None:
    """A number that Python has no date for went to `long`, and text that is no UUID to an enum."""
    payload = stored(record(("a", plain)), {"a": (plain[index], raw)})
    assert payload[0] == 2 * index
    found = read(record(("a", union)), payload)
    assert found == {"a": back}
    with pytest.raises(SchemaError, match="field a: "):
        write(record(("a", union)), found)


@dataclass
class Made:
    id: int


@dataclass
class Lost:
    id: int


@dataclass
class Event:
    what: Made | Lost | None


def test_dataclasses_name_their_branch_both_ways() -> None:
    schema = record(("what", ["null", record(("id", "int"), name="n.Made"), record(("id", "int"), name="n.Lost")]))
    for value, index in ((Event(None), 0), (Event(Made(1)), 1), (Event(Lost(1)), 2)):
        payload = write(schema, value)
        assert payload[0] == 2 * index
        assert from_plain(Event)(read(schema, payload, name_records=True)) == value


@dataclass
class Chained:
    v: int
    next: Chained | None = None


def test_a_dataclass_that_contains_itself() -> None:
    value = Chained(1, Chained(2))
    schema = record(("v", "int"), ("next", ["null", "Chained"]), name="Chained")
    assert from_plain(Chained)(read(schema, write(schema, value), name_records=True)) == value


@dataclass
class Several:
    many: list[Made] | None
    text: str | list[Made]
    named: dict[str, Made] | None
    each: list[Made | None] | dict[str, Lost] | None
    one: Made | Lost | dict[str, Made] | None


def test_dataclasses_in_lists_and_maps_of_unions() -> None:
    """A null in the place of a list failed, and text became a list of its letters."""
    made, lost = (record(("id", "int"), name=f"n.{name}") for name in ("Made", "Lost"))
    schema = record(
        ("many", ["null", {"type": "array", "items": made}]),
        ("text", ["string", {"type": "array", "items": "n.Made"}]),
        ("named", ["null", {"type": "map", "values": "n.Made"}]),
        ("each", ["null", {"type": "array", "items": ["null", "n.Made"]}, {"type": "map", "values": lost}]),
        ("one", ["null", "n.Made", "n.Lost", {"type": "map", "values": "n.Made"}]),
    )
    for value in (
        Several(None, "abc", None, None, None),
        Several([Made(1)], [Made(2)], {"a": Made(3)}, [None, Made(4)], Lost(5)),
        Several([], [], {}, {"a": Lost(6)}, ("map", {"-type": Made(7)})),  # type: ignore[arg-type]
    ):
        assert from_plain(Several)(read(schema, write(schema, value), name_records=True)) == value


DEFAULTS = [  # (type, default in JSON, value)
    ("bytes", "\u00ff\u0000", b"\xff\0"),
    (["null", "bytes"], "ÿ", b"\xff"),
    (KEY, "ab", b"ab"),
    (decimal(9, 2), "\u0000", Decimal("0.00")),
    (TEXT_UUID, str(SOME), SOME),
    (MILLIS, 0, dt.datetime(1970, 1, 1, tzinfo=UTC)),
    (DATE, 1, dt.date(1970, 1, 2)),
    (TIME_MS, 1000, dt.time(0, 0, 1)),
    ("double", "NaN", None),
    ("float", 1, 1.0),
    (record(("n", "int"), {"name": "m", "type": MILLIS, "default": 0}, name="D"), {"n": 1},
     {"n": 1, "m": dt.datetime(1970, 1, 1, tzinfo=UTC)}),
    ({"type": "array", "items": "bytes"}, ["x"], [b"x"]),
    (["string", "null"], None, None),
    ([E1, "string"], "A", ("E1", "A")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS)
def test_defaults_are_values_of_their_type(kind: Any, default: Any, value: Any) -> None:
    """Issue 29, A6: a reader's default came as its raw JSON."""
    reader = record({"name": "a", "type": kind, "default": default})
    found = [read(record(), b"", reader)["a"], read(reader, write(reader, {}))["a"]]
    assert found == [value, value] if value is not None or default != "NaN" else all(map(math.isnan, found))


def test_a_default_is_not_shared_between_records() -> None:
    reader = record({"name": "a", "type": {"type": "array", "items": "int"}, "default": [1]})
    decode = value_reader(parse(json.dumps(record())).root, parse(json.dumps(reader)).root)
    decode(io.BytesIO())["a"].append(2)
    assert decode(io.BytesIO()) == {"a": [1]}


EVOLUTIONS = [  # (writer's type, stored value, reader's type, value read or the error)
    ("long", 0, MILLIS, dt.datetime(1970, 1, 1, tzinfo=UTC)),
    (MILLIS, 5, "long", 5),
    ("int", 1, DATE, dt.date(1970, 1, 2)),
    ("int", 1, MICROS, dt.datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
    (NANOS, -1, MICROS, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
    (MILLIS, 2**53, NANOS, "a timestamp-millis beyond what timestamp-nanos holds"),
    (TIME_MS, 1500, TIME_US, dt.time(0, 0, 1, 500_000)),
    (DATE, 1, MILLIS, "field a: int .date. cannot be read as long .timestamp-millis."),
    ("bytes", b"\x01\x00", decimal(5, 2), Decimal("2.56")),
    (decimal(4, 2), b"\x01\x00", decimal(9, 2), Decimal("2.56")),
    (decimal(4, 2), b"\x01\x00", decimal(4, 1), "another scale"),
    ("long", 2**24 + 1, "float", float(2**24)),
    ("string", "é", "bytes", "é".encode()),
    ("bytes", b"\xff", "string", "invalid start byte"),
    ({**STATE, "symbols": ["NEW", "OLD"]}, "OLD", {**STATE, "default": "DONE"}, "DONE"),
    ({**STATE, "symbols": ["NEW", "OLD"]}, "OLD", STATE, "symbol OLD is not in enum State, which has no default"),
    ([P1, P2], ("n2.P", {"x": 1, "y": "keep"}), [P1, record(*P2["fields"], {"name": "z", "type": "int", "default": 7},
     name="n2.P")], {"x": 1, "y": "keep", "z": 7}),
    (P1, {"x": 1}, {**P1, "name": "n1.Q", "aliases": ["n1.P"]}, {"x": 1}),
    (P1, {"x": 1}, {**P1, "name": "n1.Q"}, "record n1.P is not n1.Q and none of its aliases"),
    (KEY, b"ab", {**KEY, "name": "n.Key"}, b"ab"),
    (["null", "int"], None, "int", "null cannot be read as int"),
    (["int", "string"], 5, ["string", "double"], 5.0),
    ({"type": "array", "items": "string"}, [], {"type": "array", "items": "int"}, []),
    ({"type": "array", "items": "string"}, ["x"], {"type": "array", "items": "int"}, r"a\[\]: string cannot be"),
    (record(("b", "int"), ("c", KEY), ("d", "int"), name="S"), {"b": 1, "c": b"ab", "d": 2},
     record({"name": "e", "type": "long", "aliases": ["d"]}, ("b", "int"), name="S"), {"e": 2, "b": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value", "wanted", "back"), EVOLUTIONS)
def test_a_reader_s_schema_decides(written: Any, value: Any, wanted: Any, back: Any) -> None:
    """Issue 29, A3 and A7: branches by short name, the first one; the reader's logical type was ignored."""
    payload = stored(record(("a", _plain(written))), {"a": value})
    if isinstance(back, str) and back != "DONE":
        with pytest.raises((SchemaError, UnicodeDecodeError), match=back):
            read(record(("a", written)), payload, record(("a", wanted)))
        return
    found = read(record(("a", written)), payload, record(("a", wanted)))["a"]
    assert (found, type(found)) == (back, type(back))


def _plain(schema: Any) -> Any:
    return schema["type"] if isinstance(schema, dict) and "logicalType" in schema and "name" not in schema else schema


def test_one_type_of_the_writer_is_read_as_two() -> None:
    written = record(("a", P1), ("b", "n1.P"))
    wanted = record(("a", {**P1, "name": "A.P"}), ("b", record(("x", "double"), name="B.P")))
    assert read(written, write(written, {"a": {"x": 1}, "b": {"x": 2}}), wanted) == {"a": {"x": 1}, "b": {"x": 2.0}}


def test_a_type_that_cannot_be_read_may_occur_twice() -> None:
    """`UnknownType` of fastavro came for the second place."""
    fixed, other = ({"type": "fixed", "name": name, "size": 1} for name in ("F", "G"))
    written, wanted = record(("a", fixed), ("b", "F")), record(("a", other), ("b", "G"))
    with pytest.raises(SchemaError, match="field a: fixed F is not G and none of its aliases"):
        read(written, write(written, {"a": b"1", "b": b"2"}), wanted)


def test_a_time_goes_to_the_branch_that_keeps_its_microseconds() -> None:
    millis, micros = (
        {"type": kind, "logicalType": f"time-{unit}"} for kind, unit in (("int", "millis"), ("long", "micros"))
    )
    schema = record(("a", [millis, micros]))
    for value in (dt.time(1, 2, 3, 4), dt.time(1, 2, 3), ("int", dt.time(1, 2, 3))):
        found = read(schema, write(schema, {"a": value}))
        assert found["a"] == value
        assert write(schema, found) == write(schema, {"a": value})


NAMES = ["a.b", "a b", "a-b", "é", "1a", ""]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_java_refuses_are_not_registered(name: str) -> None:
    """Issue 29, A8; `é` is refused by the specification, and by Java's strict check."""
    for schema in (
        record((name, "int")),
        {**STATE, "symbols": [name]},
        *(() if name == "a.b" else (record(name=name), {**KEY, "name": f"n.{name}"}, {**KEY, "aliases": [name]})),
    ):
        with pytest.raises(SchemaError, match=r"is no Avro name \(a letter or _"):
            check_new(json.dumps(schema))
        parse(json.dumps(schema))  # what others have registered is read


def nested(depth: int, kind: Any = "int") -> Any:
    return kind if not depth else {"type": "array", "items": nested(depth - 1, kind)}


def test_types_may_be_nested_64_deep() -> None:
    """Deeper ones were registered, and ended `poll` with a RecursionError; by references too, which are not nested in
    the text."""
    schema, value = record(("a", nested(62))), 1
    for _ in range(62):
        value = [value]  # type: ignore[assignment]
    assert read(schema, write(schema, {"a": value})) == {"a": value}
    chain = [record(("a", "int"), name="N0"), *(record(("a", f"N{n}"), name=f"N{n + 1}") for n in range(70))]
    fields = [(f"f{n}", kind) for n, kind in enumerate(chain)]
    check_new(json.dumps(record(*fields[:60])))
    for deep in (record(("a", nested(64))), record(*fields), record(*fields[:61], ("z", nested(9, "N60")))):
        with pytest.raises(SchemaError, match="its types are nested deeper than 64"):
            check_new(json.dumps(deep))
    check_new(json.dumps(TREE))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(name="int"), "has the name of a primitive type"),
        (["int", "int"], "a union with two branches int"),
        ([["int"], "null"], "a union directly within a union"),
        ({**STATE, "symbols": ["A", "A"]}, "the symbol A of State occurs twice"),
        ({**STATE, "default": "LOST"}, "the default 'LOST' of State is none of its symbols"),
        (record({"name": "a", "type": "int", "default": 1.5}), "the default of field R.a is 1.5"),
        (record(("a", {"type": {"type": "int"}})), "field a: 'type' is no name; write its content in its place"),
        (record({"name": "a", "type": "int", "aliases": "b"}), "field a: 'aliases' is 'b', not a list of names"),
        ({**record(("a", "int")), "unit": 2**63}, "the property 'unit' has a whole number beyond 64 bits"),
        (record(("a", {"type": "array", "items": "int", "unit": {"at": [2**64]}})), "field a: the property 'unit' has"),
        # A name before its definition is of the namespace around it.
        ([{**record(("a", "Q")), "name": "n.P"}, {"type": "fixed", "name": "Q", "size": 4}], "unknown type 'n.Q'"),
    ],
)
def test_what_else_java_refuses(schema: Any, why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        check_new(json.dumps(schema))


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=9),
    "bytes": st.binary(max_size=9),
}


@settings(max_examples=200, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(st.sampled_from(sorted(PLAIN)), min_size=1, max_size=6), st.data())
def test_payloads_are_those_of_fastavro(kinds: list[str], data: st.DataObject) -> None:
    fields, value = [], {}
    for index, kind in enumerate(kinds):
        shape = data.draw(st.sampled_from(["plain", "optional", "array", "map"]))
        inner = PLAIN[kind]
        made: Any = {"plain": kind, "optional": [kind, "null"], "array": {"type": "array", "items": kind},
                     "map": {"type": "map", "values": ["null", kind]}}[shape]  # fmt: skip
        drawn = {"plain": inner, "optional": st.none() | inner, "array": st.lists(inner, max_size=3),
                 "map": st.dictionaries(st.text(max_size=3), st.none() | inner, max_size=3)}[shape]  # fmt: skip
        fields.append((f"f{index}", made))
        value[f"f{index}"] = data.draw(drawn)
    schema = record(*fields)
    payload = write(schema, value)
    assert payload == stored(schema, value)
    assert read(schema, payload) == value
