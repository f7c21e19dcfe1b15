"""Each rule of the comparison of Protobuf schemas (docs/registry-formats.md)."""

from __future__ import annotations

import pytest

from klamm.schemas.differences import Budget, ComparisonLimitError
from klamm.schemas.protobuf.comparison import differences
from klamm.schemas.protobuf.schema import parse

M, N = "message M { ", "message N {} "
OLD = 'syntax = "proto2"; '
CASES = [  # original, update, changes: `+` compatible, `-` incompatible
    ("package a;", "package b;", ["-PACKAGE_CHANGED #/"]),
    (N, "", ["-MESSAGE_REMOVED #/N"]),
    ("", N, ["+MESSAGE_ADDED #/N"]),
    (N + "message O {}", "message O {} " + N, ["+MESSAGE_MOVED #/N", "+MESSAGE_MOVED #/O"]),
    (M + N + "}", M + "}", ["-MESSAGE_REMOVED #/M/N"]),
    ("enum E { A = 0; }", "", ["+ENUM_REMOVED #/E"]),
    (M + "}", M + "enum E { A = 0; } }", ["+ENUM_ADDED #/M/E"]),
    (
        "enum E { A = 0; B = 1; C = 2; }",
        "enum E { A = 0; D = 1; E1 = 3; }",
        ["+ENUM_CONST_ADDED #/E/3", "+ENUM_CONST_CHANGED #/E/1", "+ENUM_CONST_REMOVED #/E/2"],
    ),
    (M + "}", M + "int32 a = 1; }", ["+FIELD_ADDED #/M/1"]),
    (M + "int32 a = 1; }", M + "}", ["+FIELD_REMOVED #/M/1"]),
    (M + "int32 a = 1; }", M + "int32 b = 1; }", ["+FIELD_NAME_CHANGED #/M/1"]),
    (OLD + M + "}", OLD + M + "required int32 a = 1; }", ["-REQUIRED_FIELD_ADDED #/M/1"]),
    (OLD + M + "required int32 a = 1; }", OLD + M + "}", ["-REQUIRED_FIELD_REMOVED #/M/1"]),
    (M + "int32 a = 1; }" + N, M + "N a = 1; }" + N, ["-FIELD_KIND_CHANGED #/M/1"]),
    (M + "map<string, N> a = 1; }" + N, M + "N a = 1; }" + N, ["-FIELD_KIND_CHANGED #/M/1"]),
    (M + "N a = 1; }" + N + "message O {}", M + "O a = 1; }" + N + "message O {}", ["-FIELD_NAMED_TYPE_CHANGED #/M/1"]),
    (M + "map<string, N> a = 1; }" + N, M + "map<bool, N> a = 1; }" + N, ["-FIELD_SCALAR_KIND_CHANGED #/M/1"]),
    (M + "map<string, int32> a = 1; }", M + "map<string, int64> a = 1; }", []),
    (M + "repeated int32 a = 1; }", M + "int32 a = 1; }", ["-FIELD_NUMERIC_LABEL_CHANGED #/M/1"]),
    (M + "repeated string a = 1; }", M + "string a = 1; }", ["+FIELD_STRING_OR_BYTES_LABEL_CHANGED #/M/1"]),
    (M + "repeated N a = 1; }" + N, M + "N a = 1; }" + N, []),
    (M + "optional int32 a = 1; }", M + "int32 a = 1; }", []),
    (M + "oneof o { int32 a = 1; int32 b = 2; } }", M + "oneof o { int32 a = 1; } }", ["-ONEOF_FIELD_REMOVED #/M/o/2"]),
    (M + "oneof o { int32 a = 1; int32 b = 2; } }", M + "}", ["+ONEOF_REMOVED #/M/o"]),
    (
        M + "oneof o { int32 a = 1; } }",
        M + "oneof o { int32 a = 1; int32 b = 2; } }",
        ["+ONEOF_FIELD_ADDED #/M/o/2"],
    ),
    (
        M + "oneof o { int32 a = 1; } }",
        M + "int32 a = 1; }",
        ["+ONEOF_FIELD_MOVED_TO_TOP_LEVEL #/M/1", "+ONEOF_REMOVED #/M/o"],
    ),
    (M + "int32 a = 1; }", M + "oneof o { int32 a = 1; } }", ["+ONEOF_ADDED #/M/o"]),
    (
        M + "int32 a = 1; int32 b = 2; }",
        M + "oneof o { int32 a = 1; int32 b = 2; } }",
        ["+ONEOF_ADDED #/M/o", "-MULTIPLE_FIELDS_MOVED_TO_ONEOF #/M/o"],
    ),
    (
        M + "int32 a = 1; oneof o { int32 b = 2; } }",
        M + "oneof o { int32 a = 1; int32 b = 2; } }",
        ["-FIELD_MOVED_TO_EXISTING_ONEOF #/M/o"],
    ),
    (M + "M m = 1; int32 a = 2; }", M + "M m = 1; string a = 2; }", ["-FIELD_SCALAR_KIND_CHANGED #/M/2"]),
]  # fmt: skip


def changes(
    original: str, update: str, old: dict[str, str] | None = None, new: dict[str, str] | None = None
) -> list[str]:
    texts = (text if text.startswith("syntax") else f'syntax = "proto3"; {text}' for text in (original, update))
    before, after = (parse(text, references) for text, references in zip(texts, (old, new), strict=True))
    return sorted(f"{'+' if each.compatible else '-'}{each.type} {each.path}" for each in differences(before, after))


@pytest.mark.parametrize(("original", "update", "expected"), CASES, ids=[str(at) for at in range(len(CASES))])
def test_each_rule(original: str, update: str, expected: list[str]) -> None:
    assert changes(original, update) == expected


KINDS = [
    ("int32", "int64", "uint32", "uint64", "bool", "E"),
    ("sint32", "sint64"),
    ("string", "bytes"),
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("float",),
    ("double",),
]


def test_scalar_types_of_one_kind_are_read_as_each_other() -> None:
    every = [(name, kind) for kind, names in enumerate(KINDS) for name in names]

    def message(name: str, size: int) -> str:
        return f"enum E {{ A = 0; }} message M {{ {' '.join(f'{name} f{at} = {at + 1};' for at in range(size))} }}"

    targets = (
        "enum E { A = 0; } message M { " + " ".join(f"{n} f{at} = {at + 1};" for at, (n, _) in enumerate(every)) + " }"
    )
    for name, kind in every:
        found = changes(message(name, len(every)), targets)
        assert found == sorted(
            f"-FIELD_SCALAR_KIND_CHANGED #/M/{at + 1}" for at, (_, other) in enumerate(every) if other != kind
        )


IMPORT = 'import "r.proto"; message M { r.R r = 1; map<string, r.R> s = 2; }'


def test_messages_of_references_are_compared_by_content() -> None:
    def reference(kind: str) -> dict[str, str]:
        return {"r.proto": f'syntax = "proto3"; package r; message R {{ {kind} a = 1; R next = 2; }}'}

    assert changes(IMPORT, IMPORT, reference("int32"), reference("int64")) == []
    assert changes(IMPORT, IMPORT, reference("int32"), reference("string")) == [
        "-FIELD_NAMED_TYPE_CHANGED #/M/1",
        "-FIELD_NAMED_TYPE_CHANGED #/M/2",
        "-FIELD_SCALAR_KIND_CHANGED #/R/1",
        "-FIELD_SCALAR_KIND_CHANGED #/R/1",
    ]


def test_the_work_is_bounded() -> None:
    text = 'syntax = "proto3"; message M { ' + " ".join(f"int32 f{at} = {at + 1};" for at in range(500)) + " }"
    with pytest.raises(ComparisonLimitError, match="more than 100 steps"):
        differences(parse(text), parse(text), budget=Budget(steps=100))


def test_a_long_chain_of_messages_ends_in_one_line() -> None:
    def reference(kind: str) -> dict[str, str]:
        chain = " ".join(f"message R{at} {{ R{at + 1} next = 1; }}" for at in range(1000))
        return {"r.proto": f'syntax = "proto3"; package r; {chain} message R1000 {{ {kind} a = 1; }}'}

    text = 'syntax = "proto3"; import "r.proto"; message M { r.R0 r = 1; }'
    with pytest.raises(ComparisonLimitError, match="nested too deeply"):
        differences(parse(text, reference("int32")), parse(text, reference("string")))


def test_the_texts_of_a_report() -> None:
    original, update = (parse(f'syntax = "proto3"; message M {{ {kind} a = 1; }}') for kind in ("int32", "string"))
    (found,) = differences(original, update)
    assert found.message("new", "old") == (
        '{errorType:"FIELD_SCALAR_KIND_CHANGED", description:"The kind of a SCALAR field at path \'#/M/1\' in the new'
        ' schema does not match its kind in the old schema"}'
    )
