"""Which texts are Protobuf schemas, their canonical text, references, the compiler's process, and what is refused."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.protobuf.comparison import differences
from klamm.schemas.protobuf.compiler import WORKER, ProtocWorker
from klamm.schemas.protobuf.known import known_files
from klamm.schemas.protobuf.schema import parse

ORDER = """// the order of a customer
syntax = "proto3";
package shop.orders;
import "google/protobuf/timestamp.proto";
import "confluent/meta.proto";
option java_package = "shop"; /* Java */
option (confluent.file_meta) = {doc: "a \\"file\\"", tags: ["x", "y"]};
message Order {
  option deprecated = true;
  reserved 20, 30 to 39, 100 to max;
  reserved "old";
  string id = 2 [json_name = "ID", (confluent.field_meta).tags = "PII"];
  google.protobuf.Timestamp at = 1;
  optional int32 count = 3;
  repeated Line lines = 4 [deprecated = true];
  map<string, Line> by_name = 5;
  oneof payment { bytes card = 6; Cash cash = 7; }
  message Line { sint64 price = 1; Kind kind = 2; }
  message Cash {}
  enum Kind { option allow_alias = true; UNKNOWN = 0; NONE = 0; GIFT = 1 [deprecated = true]; }
}
service Orders { rpc Place (Order) returns (stream Order.Line) { option idempotency_level = IDEMPOTENT; } }
"""
CANONICAL = """syntax = "proto3";
package shop.orders;

import "google/protobuf/timestamp.proto";
import "confluent/meta.proto";

option java_package = "shop";
option (confluent.file_meta) = { doc: "a \\"file\\"" tags: "x" tags: "y" };

message Order {
  option deprecated = true;
  reserved 20, 30 to 39, 100 to max;
  reserved "old";
  string id = 2 [json_name = "ID", (confluent.field_meta) = { tags: "PII" }];
  .google.protobuf.Timestamp at = 1;
  optional int32 count = 3;
  repeated .shop.orders.Order.Line lines = 4 [deprecated = true];
  map<string, .shop.orders.Order.Line> by_name = 5;
  oneof payment {
    bytes card = 6;
    .shop.orders.Order.Cash cash = 7;
  }
  message Line {
    sint64 price = 1;
    .shop.orders.Order.Kind kind = 2;
  }
  message Cash {
  }
  enum Kind {
    option allow_alias = true;
    UNKNOWN = 0;
    NONE = 0;
    GIFT = 1 [deprecated = true];
  }
}

service Orders {
  rpc Place (.shop.orders.Order) returns (stream .shop.orders.Order.Line) {
    option idempotency_level = IDEMPOTENT;
  }
}
"""
OLD = """syntax = "proto2";
package a.b;
message M {
  extensions 100 to 199, 1000 to max;
  required string s = 1 [default = "a\\n\\"\\303\\244"];
  optional bytes b = 2 [default = "\\377\\000"];
  optional double d = 3 [default = -inf];
  optional E e = 4 [default = B];
  optional group Part = 5 { repeated int32 n = 1 [packed = true]; }
  oneof o { group Other = 6 { optional M m = 1; } uint32 u = 7; }
  enum E { reserved -5 to -1, 9 to max; A = 0; B = -7; }
  extend M { optional M inner = 101; }
}
extend M { repeated string more = 100; optional group Outer = 102 { optional bool yes = 1; } }
"""
EDITION = """edition = "2023";
package e;
option features.field_presence = IMPLICIT;
message M {
  reserved old;
  int32 a = 1 [features.field_presence = LEGACY_REQUIRED];
  M m = 2 [features.message_encoding = DELIMITED];
  repeated string r = 3;
}
enum E { option features.enum_type = CLOSED; A = 1; }
"""


def test_canonical_is_the_text_without_comments() -> None:
    assert parse(ORDER).canonical == CANONICAL
    assert parse(CANONICAL).canonical == CANONICAL


@pytest.mark.parametrize("text", [ORDER, OLD, EDITION, *sorted(known_files().values())[:4]], ids=range(7))
def test_the_canonical_text_describes_the_same_file(text: str) -> None:
    made = parse(text)
    again = parse(made.canonical)
    assert again.files.file[-1] == made.files.file[-1]
    assert again.canonical == made.canonical
    assert parse(made.normalized).normalized == made.normalized
    assert parse(made.serialized).canonical == made.canonical
    assert differences(made, parse(made.normalized)) == []


def test_normalized_sorts_fields_imports_and_options() -> None:
    lines = parse(ORDER).normalized.splitlines()
    assert lines.index('import "confluent/meta.proto";') < lines.index('import "google/protobuf/timestamp.proto";')
    assert [line.split(" = ")[0].split()[-1] for line in lines if " = " in line and line.startswith("  ")][1:5] == [
        "at",
        "id",
        "count",
        "lines",
    ]
    assert lines.index('option (confluent.file_meta) = { doc: "a \\"file\\"" tags: "x" tags: "y" };') < lines.index(
        'option java_package = "shop";'
    )


def test_formats() -> None:
    made = parse(ORDER)
    file = FileDescriptorProto.FromString(base64.b64decode(made.serialized))
    assert [message.name for message in file.message_type] == ["Order"]
    assert "(confluent" not in made.without_extensions
    assert 'json_name = "ID"]' in made.without_extensions
    assert "extend" not in parse(OLD).without_extensions.replace("extensions", "")
    assert {"id", "at", "card", "by_name"} < made.fields


def test_a_name_that_an_inner_scope_hides_is_printed_with_a_dot() -> None:
    text = (
        'syntax = "proto3"; package io.confluent.x; import "confluent/meta.proto";'
        ' message M { int32 a = 1 [(.confluent.field_meta).doc = "d"]; }'
    )
    made = parse(text)
    assert '[(.confluent.field_meta) = { doc: "d" }]' in made.canonical
    assert parse(made.canonical).canonical == made.canonical


def test_references() -> None:
    references = {
        "a/b.proto": 'syntax = "proto3"; package a; import "c.proto"; message B { c.C c = 1; }',
        "c.proto": 'syntax = "proto3"; package c; message C { int32 x = 1; }',
    }
    text = 'syntax = "proto3"; import "a/b.proto"; message M { a.B b = 1; }'
    made = parse(text, references)
    assert made.canonical == 'syntax = "proto3";\n\nimport "a/b.proto";\n\nmessage M {\n  .a.B b = 1;\n}\n'
    coded = {**references, "c.proto": parse(references["c.proto"]).serialized}
    assert differences(made, parse(text, coded)) == []
    with pytest.raises(SchemaError, match=r"line 1, column 20: import 'a/b\.proto' is neither well known nor among"):
        parse(text)
    with pytest.raises(SchemaError, match=r"reference a/b\.proto, line 1, column 31: import 'c\.proto' is neither"):
        parse(text, {"a/b.proto": references["a/b.proto"]})


@pytest.mark.parametrize(
    "name", ["../x.proto", "/etc/passwd", "a//b.proto", "./a.proto", "a\\b.proto", "a\0b", "", "x" * 300]
)
def test_a_reference_is_named_by_an_import_path(name: str) -> None:
    with pytest.raises(SchemaError, match=r"^the reference .* (is no import path|has a part of more than 255 bytes)"):
        parse('syntax = "proto3";', {name: 'syntax = "proto3";'})


HEAD = 'syntax = "proto3"; '
REFUSED = [
    ("", "the text is empty"),
    ("  \n", "the text is empty"),
    ("hello", "line 1, column 1: "),
    (HEAD + "message A { int32 a = 1;", "line 1, column 44: Reached end of input in message definition"),
    (HEAD + "message A { Missing a = 1; }", 'line 1, column 32: "Missing" is not defined.'),
    (HEAD + "message A { int32 a = 1; int32 b = 1; }", "line 1, column 55: Field number 1 has already been used"),
    (HEAD + 'import "/etc/passwd";', "line 1, column 20: import '/etc/passwd' is neither well known"),
    (HEAD + 'import "../../etc/passwd";', "line 1, column 20: import '../../etc/passwd' is neither"),
    (HEAD + 'import "schema.proto";', "line 1, column 20: File recursively imports itself"),
    (HEAD + "message A {" * 100_000 + "}" * 100_000, "line 1, column "),
    (HEAD + "option (x) = {" + "a: {" * 100_000 + "}" * 100_000 + "};", "line 1, column "),
    (HEAD + "message " + "A" * 1_000_000 + " {}", "line 1, column 28: Name too long."),
    (HEAD + "// \ud800", "half of a surrogate pair"),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED, ids=[line[:40] for _text, line in REFUSED])
def test_refused_in_one_line(text: str, expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    if len(text) > 1_048_576:
        text = text[:1_000_000]
    with pytest.raises(SchemaError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"not a Protobuf schema: {expected}")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_text_over_the_limit() -> None:
    with pytest.raises(SchemaError, match="a schema of 1048577 characters; the limit is 1048576"):
        parse(" " * 1_048_577)


def test_references_that_import_each_other() -> None:
    loop = {"a.proto": HEAD + 'import "b.proto";', "b.proto": HEAD + 'import "a.proto";'}
    with pytest.raises(
        SchemaError, match=r"reference a\.proto, .*: File recursively imports itself: a\.proto -> b\.proto"
    ):
        parse(HEAD + 'import "a.proto";', loop)


def descriptor(**fields: Any) -> str:
    return base64.b64encode(FileDescriptorProto(**fields).SerializeToString()).decode()


def test_base64_that_describes_no_file() -> None:
    bad_type = {"name": "A", "field": [{"name": "a", "number": 1, "type": 11, "label": 1, "type_name": ".X"}]}
    bad_oneof = {"name": "A", "field": [{"name": "a", "number": 1, "type": 5, "label": 1, "oneof_index": 7}]}
    bad_name = {"name": "A {} message B"}
    bad_default = {"name": "a", "number": 1, "type": 5, "label": 1, "default_value": "1]; int32 b = 2 [default = 1"}
    injected = {"name": "A", "field": [bad_default]}
    for message, expected in (
        (bad_type, "not defined"),
        (bad_oneof, "the base64 is no FileDescriptorProto"),
        (bad_name, "is no name"),
        (injected, "is no default"),
    ):
        with pytest.raises(SchemaError, match=expected):
            parse(descriptor(syntax="proto3", message_type=[message]))
    option = (
        base64.b64decode(descriptor(syntax="proto3", dependency=["confluent/meta.proto"]))
        + b"\x42\x06\x82\x44\x03\x0a\x01\x80"
    )
    with pytest.raises(SchemaError, match="the base64 is no FileDescriptorProto"):
        parse(base64.b64encode(option).decode())
    assert (
        parse(descriptor(syntax="proto3", message_type=[{"name": "A"}])).canonical
        == 'syntax = "proto3";\n\nmessage A {\n}\n'
    )


def test_a_text_that_the_topic_has_already_is_taken_as_it_is() -> None:
    text = 'syntax = "proto3"; message A { gone.B b = 1; }'
    made = parse(text, new=False)
    assert made.canonical == text
    with pytest.raises(SchemaError, match="is not defined"):
        differences(made, parse(HEAD))


@pytest.fixture
def worker() -> Iterator[ProtocWorker]:
    made = ProtocWorker()
    yield made
    made.close()


def test_the_process_is_started_again(worker: ProtocWorker) -> None:
    good = worker.compile("a.proto", HEAD, {})
    process = worker.worker.process
    assert process is not None
    process.kill()
    assert worker.compile("a.proto", HEAD, {}) == good
    assert worker.worker.process is not process
    worker.close()
    assert worker.compile("a.proto", HEAD, {}) == good


def test_the_process_ends_with_its_parent_and_leaves_no_file(worker: ProtocWorker) -> None:
    worker.compile("a.proto", HEAD, {})
    process, folder = worker.worker.process, worker.worker.folder
    assert process is not None
    assert process.stdin is not None
    assert folder is not None
    assert folder.exists()
    process.stdin.close()  # as when the parent is killed
    assert process.wait(30) == 0
    assert not folder.exists()


def test_a_text_that_crashes_the_process(tmp_path: Any) -> None:
    program = "import sys; sys.stdin.buffer.read(4); sys.exit(11)"
    worker = ProtocWorker((sys.executable, "-c", program))
    with pytest.raises(SchemaError, match="protoc crashed on this text"):
        worker.compile("a.proto", HEAD, {})
    worker.close()


def test_a_text_that_never_ends() -> None:
    worker = ProtocWorker((sys.executable, "-c", "import time; time.sleep(600)"), seconds=0.1)
    with pytest.raises(SchemaError, match=r"protoc did not finish within 0\.1 s"):
        worker.compile("a.proto", HEAD, {})
    worker.close()


names = st.sampled_from(["a", "b_c", "Dd", "e1"])
scalars = st.sampled_from(["int32", "sint64", "fixed32", "double", "bool", "string", "bytes", ".p.Top", ".p.Kind"])


@st.composite
def messages(draw: st.DrawFn, name: str, depth: int = 0) -> str:
    number = iter(draw(st.permutations(range(1, 13))))
    parts = []
    for at, kind in enumerate(
        draw(st.lists(st.sampled_from(["one", "optional", "repeated", "map", "oneof"]), max_size=4))
    ):
        field = f"{draw(names)}{at}"
        if kind == "oneof":
            parts.append(
                f"oneof {field} {{ {draw(scalars)} x{at} = {next(number)}; {draw(scalars)} y{at} = {next(number)}; }}"
            )
        elif kind == "map":
            parts.append(f"map<string, {draw(scalars)}> {field} = {next(number)};")
        else:
            label = "" if kind == "one" else kind
            options = draw(st.sampled_from(["", " [deprecated = true]", ' [json_name = "x y"]' if at == 0 else ""]))
            parts.append(f"{label} {draw(scalars)} {field} = {next(number)}{options};")
    if depth < 2:
        for inner in draw(st.lists(st.sampled_from(["In", "Out"]), unique=True, max_size=2)):
            parts.append(draw(messages(inner, depth + 1)))
    return f"message {name} {{ {' '.join(parts)} reserved {draw(st.integers(20, 30))} to 40; }}"


@settings(max_examples=40, deadline=None)
@given(messages("Top"), messages("Other"))
def test_printing_is_a_fixed_point_and_a_schema_compatible_with_itself(top: str, other: str) -> None:
    text = f'syntax = "proto3"; package p; {top} enum Kind {{ NO = 0; YES = 5; }} {other}'
    made = parse(text)
    assert parse(made.canonical).canonical == made.canonical
    assert differences(made, parse(made.serialized)) == []
    assert differences(made, parse(made.normalized)) == []


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A text of which some parts were moved, doubled or removed."""
    text = draw(st.sampled_from([ORDER, OLD, EDITION]))
    for _ in range(draw(st.integers(1, 3))):
        start, end, to = (draw(st.integers(0, len(text))) for _ in range(3))
        kept = text if draw(st.booleans()) else text[:start] + text[end:]
        text = kept[:to] + text[start : min(end, start + 40)] + kept[to:]
    return text


@settings(max_examples=60, deadline=None)
@given(damaged())
def test_a_damaged_text_is_a_schema_or_refused(text: str) -> None:
    try:
        made = parse(text)
    except SchemaError:
        return
    assert parse(made.canonical).canonical == made.canonical


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([ORDER, OLD]), st.integers(0, 2000), st.binary(min_size=1, max_size=4))
def test_a_damaged_descriptor_is_a_schema_or_refused(text: str, place: int, replacement: bytes) -> None:
    good = base64.b64decode(parse(text).serialized)
    place %= len(good)
    bad = base64.b64encode(good[:place] + replacement + good[place + len(replacement) :]).decode()
    try:
        made = parse(bad)
    except SchemaError:
        return
    assert parse(made.canonical).canonical == made.canonical


def test_the_shared_process_is_one() -> None:
    parse(HEAD)
    process = WORKER.worker.process
    parse(HEAD + "message A {}")
    assert WORKER.worker.process is process
