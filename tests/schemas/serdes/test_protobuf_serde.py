"""Values as Protobuf messages."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from klamm.core.errors import SchemaError
from klamm.core.interfaces.serde import HeaderDeserializer, HeaderSerializer, Serde
from klamm.schemas import message_indexes as indexes
from klamm.schemas.names import PROTOBUF
from klamm.schemas.options import ProtobufOptions
from klamm.schemas.registry.registry import LogRegistry
from klamm.schemas.serdes.protobuf import ProtobufSerde
from klamm.testing.contracts import SerdeContract
from klammtest.schemas import context, embedded, registry

ORDERS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";

message Order {
  string id = 1;
  int64 cents = 2;
  optional string note = 3;
  repeated Line lines = 4;
  map<string, Line> named = 5;
  map<int32, bytes> raw = 6;
  Kind kind = 7;
  oneof paid { string card = 8; Line voucher = 9; }
  google.protobuf.Timestamp at = 10;
  google.protobuf.Duration took = 11;
  google.protobuf.Int64Value rank = 12;
  google.protobuf.Struct extra = 13;
  bytes blob = 14;
  repeated double rates = 15;
  bool gift = 16;
  message Line { string sku = 1; uint32 count = 2; message Tag { string text = 1; } }
  enum Kind { WEB = 0; SHOP = 1; }
}
message Other { int32 a = 1; message Inner { int32 b = 1; } }
"""
EMPTY: dict[str, Any] = {
    "id": "", "cents": 0, "note": None, "lines": [], "named": {}, "raw": {}, "kind": "WEB", "card": None,
    "voucher": None, "at": None, "took": None, "rank": None, "extra": None, "blob": b"", "rates": [], "gift": False,
}  # fmt: skip
VALUE = {
    **EMPTY,
    "id": "ö1",
    "cents": -(2**63),
    "note": "",
    "lines": [{"sku": "a", "count": 2}, {"sku": "", "count": 0}],
    "named": {"x": {"sku": "b", "count": 2**32 - 1}},
    "raw": {-7: b"\0\xff"},
    "kind": "SHOP",
    "voucher": {"sku": "v", "count": 0},
    "at": datetime(1969, 12, 31, 23, 59, 59, 250_000, tzinfo=UTC),
    "took": timedelta(seconds=-1, milliseconds=-500),
    "rank": 0,
    "extra": {"a": [1.0, None, {"b": "c"}]},
    "blob": b"\xff",
    "rates": [0.5, float("inf")],
    "gift": True,
}


@dataclass
class Line:
    sku: str
    count: int = 0


@dataclass
class Inner:
    b: int


@pytest.fixture
def schemas(tmp_path: Path) -> Iterator[LogRegistry]:
    coordination = embedded(tmp_path)
    yield registry(coordination, schema_type=PROTOBUF)
    coordination.close()


def made(schemas: LogRegistry, envelope: str = "confluent", **options: Any) -> ProtobufSerde:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return ProtobufSerde(ProtobufOptions(), context({"t": (ORDERS, envelope, given)}), schemas)


class TestContract(SerdeContract):
    topic = "t"
    values: Sequence[Any] = (EMPTY, VALUE)
    unfit: Sequence[Any] = (
        {"no": 1},
        {"id": 7},
        {"cents": "1"},
        {"cents": 2**63},
        {"cents": True},
        {"kind": "NONE"},
        {"lines": {"sku": "a"}},
        {"lines": [{"sku": 1}]},
        {"named": [1]},
        {"raw": {"x": b""}},
        {"blob": "text"},
        {"at": datetime(2020, 1, 1)},  # noqa: DTZ001 - is refused
        {"card": "c", "voucher": {"sku": "v"}},
        {"rank": "x"},
        {"rates": ["x"]},
        {"extra": {"a": object()}},
        7,
        Timestamp(),
    )
    unreadable: Sequence[bytes] = (
        b"\xff" * 40,
        b"\0\0\0\0\x01",
        b"\0\0\0\0\x01\0\x0a\xff",
        b"\0\0\0\0\x01\x02\x08",
        b"\0\0\0\0\x01\x01",
        b"\0\0\0\0\x01" + b"\xff" * 9,
        b"\0\0\0\0\x07\0",
    )

    @pytest.fixture
    def serde(self, schemas: LogRegistry) -> Serde:
        return made(schemas)


@pytest.mark.parametrize(
    ("message", "prefix", "value"),
    [
        (None, b"\0", {**EMPTY, "id": "a"}),
        ("shop.Order", b"\0", {**EMPTY, "id": "a"}),
        ("shop.Order.Line", b"\x04\0\x04", {"sku": "a", "count": 1}),
        ("shop.Order.Line.Tag", b"\x06\0\x04\0", {"text": "a"}),
        ("shop.Other", b"\x02\x02", {"a": 1}),
        ("shop.Other.Inner", b"\x04\x02\0", {"b": 1}),
    ],
)
def test_the_indexes_of_the_message_follow_the_id(
    schemas: LogRegistry, message: str | None, prefix: bytes, value: dict[str, Any]
) -> None:
    serde = made(schemas, message=message)
    data = serde.serializer("t")(value)
    assert data is not None
    assert data.startswith(b"\0\0\0\0\x01" + prefix)
    assert serde.deserializer("t")(data) == value


def test_indexes() -> None:
    for places in ((0,), (1,), (0, 0), (63,), (64, 300), (2**31 - 1,)):
        assert indexes.decode(io.BytesIO(indexes.encode(places))) == places
    assert indexes.decode(io.BytesIO(b"\x02\0")) == (0,)  # without the short form


def test_indexes_that_cannot_be_read_are_named(schemas: LogRegistry) -> None:
    serde = made(schemas)
    data = serde.serializer("t")({"id": "1"})
    assert data is not None
    read = serde.deserializer("t")
    for damaged, why in (
        (b"", r"is truncated \(.*\): the Protobuf message indexes are cut off"),
        (b"\xff\x01", r"does not fit its schema \(.*\): the Protobuf message indexes claim to be -128"),
        (b"\x80" * 6, r"does not fit its schema \(.*\): a Protobuf message index has more than 5 bytes"),
    ):
        with pytest.raises(SchemaError, match=f"^topic t: the payload {why}$"):
            read(data[:5] + damaged)


def test_a_misfit_names_the_field(schemas: LogRegistry) -> None:
    write = made(schemas).serializer("t")
    for value, why in (
        ({"lines": [{"sku": "a"}, {"count": -1}]}, r"field lines\[1\].count: "),
        ({"named": {"x": {"sku": b"a"}}}, r"field named\['x'\].sku: expected text, got b'a'"),
        ({"lines": [{"nmae": 1}]}, r"field lines\[0\].nmae: shop.Order.Line has no such field"),
    ):
        with pytest.raises(SchemaError, match=f"^topic t: the value does not fit its schema: {why}"):
            write(value)


def test_an_unknown_message_is_refused(schemas: LogRegistry) -> None:
    why = r"topic t: the schema has no message Order \(there are: shop.Order, shop.Order.Line, "
    with pytest.raises(SchemaError, match=why):
        made(schemas, message="Order").serializer("t")


def test_dataclasses_and_messages(schemas: LogRegistry) -> None:
    serde = made(schemas, message="shop.Other.Inner", record_class=f"{Inner.__module__}:Inner")
    assert serde.deserializer("t")(serde.serializer("t")(Inner(3))) == Inner(3)
    plain = made(schemas)
    assert plain.deserializer("t")(plain.serializer("t")({"lines": [Line("a")]}))["lines"] == [{"sku": "a", "count": 0}]


def test_a_generated_class(schemas: LogRegistry) -> None:
    text = 'syntax = "proto3";\npackage google.protobuf;\nmessage Timestamp { int64 seconds = 1; int32 nanos = 2; }\n'
    options = {"record.class": "google.protobuf.timestamp_pb2:Timestamp"}
    serde = ProtobufSerde(ProtobufOptions(), context({"t": (text, "confluent", options)}), schemas)
    data = serde.serializer("t")(Timestamp(seconds=7, nanos=1))
    assert serde.deserializer("t")(data) == Timestamp(seconds=7, nanos=1)
    with pytest.raises(SchemaError, match=r"it is a message shop.Order, and record.class is google.protobuf.Timestamp"):
        made(schemas, subject="o", record_class=options["record.class"]).deserializer("t")(
            made(schemas, subject="o").serializer("t")({})
        )


def test_commands(schemas: LogRegistry) -> None:
    serde = made(schemas)
    document = {"id": "a", "cents": "9007199254740993", "blob": "/w==", "at": "2020-01-01T00:00:00Z", "kind": "SHOP"}
    write, fractions = serde.json_serializer("t")
    assert fractions is float
    printed = json.loads(serde.json_deserializer("t")(write(document)))
    assert document.items() <= printed.items()
    with pytest.raises(SchemaError, match=r"topic t: the value does not fit its schema: .*nope"):
        write({"nope": 1})
    with pytest.raises(SchemaError, match="rows of CSV need an Avro schema"):
        serde.row_serializer("t", ["id"])


def test_what_is_written_is_what_protobufs_own_json_says(schemas: LogRegistry) -> None:
    """The library's mapping to JSON judges the conversion of Python's values."""
    serde = made(schemas)
    shown = json.loads(serde.json_deserializer("t")(serde.serializer("t")(VALUE)))
    assert shown == {
        "id": "ö1",
        "cents": "-9223372036854775808",
        "note": "",
        "lines": [{"sku": "a", "count": 2}, {"sku": "", "count": 0}],
        "named": {"x": {"sku": "b", "count": 4294967295}},
        "raw": {"-7": "AP8="},
        "kind": "SHOP",
        "voucher": {"sku": "v", "count": 0},
        "at": "1969-12-31T23:59:59.250Z",
        "took": "-1.500s",
        "rank": "0",
        "extra": {"a": [1.0, None, {"b": "c"}]},
        "blob": "/w==",
        "rates": [0.5, "Infinity"],
        "gift": True,
    }


def test_the_header_form(schemas: LogRegistry) -> None:
    serde = made(schemas, "confluent-header", message="shop.Other")
    write, read = serde.serializer("t"), serde.deserializer("t")
    assert isinstance(write, HeaderSerializer)
    assert isinstance(read, HeaderDeserializer)
    data = write({"a": 5})
    ((name, named),) = write.headers
    assert (data, name, (named or b"")[17:]) == (b"\x08\x05", "__value_schema_id", b"\x02\x02")
    assert read.with_headers(data, write.headers) == {"a": 5}
    assert read.with_headers(b"\0\0\0\0\x01\x02\x02\x08\x05", ()) == {"a": 5}


def test_subjects(schemas: LogRegistry) -> None:
    made(schemas, value_subject_name_strategy="RecordNameStrategy").serializer("t")
    made(schemas, value_subject_name_strategy="TopicRecordNameStrategy", message="shop.Other").serializer("t")
    assert schemas.subjects() == ["shop.Order", "t-shop.Other"]
