"""Random texts: each is a schema that is printed the same again, or refused in one line; none takes long, none ends a
process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.formats import FORMATS, Text, differences, parsed
from klamm.schemas.names import AVRO, JSON, PROTOBUF
from klammtest.fuzz import fuzzed

AVRO_WORDS = (
    "type", "name", "namespace", "fields", "items", "values", "symbols", "size", "default", "order", "aliases", "doc",
    "logicalType", "precision", "scale", "record", "enum", "array", "map", "fixed", "union", "error", "null", "int",
    "long", "string", "bytes", "double", "R", "n.R", "R-x", "1R", "", "a.b", "date", "decimal", "uuid", "\ud800", "é",
)  # fmt: skip
JSON_WORDS = (
    "type", "properties", "items", "$ref", "#", "#/properties/a", "$id", "$schema", "definitions", "$defs", "oneOf",
    "anyOf", "allOf", "not", "enum", "const", "required", "additionalProperties", "patternProperties", "pattern",
    "^(a+)+$", "object", "array", "string", "a", "b", "http://json-schema.org/draft-04/schema#", "$anchor",
    "https://json-schema.org/draft/2020-12/schema", "$dynamicRef", "$recursiveRef", "if", "then", "file:///etc/passwd",
    "minLength", "multipleOf", "\ud800", "", "dependencies", "prefixItems", "unevaluatedProperties", "format",
)  # fmt: skip
PROTO_WORDS = (
    "syntax", "=", '"proto3"', '"proto2"', "edition", '"2023"', ";", "package", "a.b", "import",
    '"google/protobuf/any.proto"',
    '"schema.proto"', "message", "M", "{", "}", "int32", "string", "x", "1", "2", "-1", "0", "999999999999", "repeated",
    "optional", "required", "map", "<", ">", ",", "oneof", "enum", "option", "(", ")", "extend", "reserved", "to",
    "max",
    "extensions", "service", "rpc", "returns", "stream", "group", "[", "]", "default", "deprecated", "true", "/*", "*/",
    "//", "\n", '"', "\\", "\x00", ".google.protobuf.Any", "weak", "public", "1e999", "\ud800",
)  # fmt: skip


def values(words: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """JSON of a format's words: nearly schemas."""
    word = st.sampled_from(words)
    leaves = word | st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([2**31, -1, 10**400])
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(word, inner, max_size=6), max_leaves=20
    )


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Avro records whose fields are nearly types."""
    fields = st.lists(
        st.fixed_dictionaries({"name": st.sampled_from("abc"), "type": inner}, optional={"default": inner})
    )
    return st.fixed_dictionaries({"type": st.just("record"), "name": st.sampled_from(("R", "n.S")), "fields": fields})


@st.composite
def cut(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> str:
    """A text, often with a part that is doubled, moved or removed."""
    text = draw(texts)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        start, end, to = (draw(st.integers(0, len(text))) for _ in range(3))
        text = (text[:start] + text[end:])[:to] + text[start : min(end, start + 30)] + text[to:]
    return text


def dumped(value: Any) -> str:
    return json.dumps(value)


TEXTS: dict[str, st.SearchStrategy[str]] = {
    AVRO: cut((values(AVRO_WORDS) | records(values(AVRO_WORDS))).map(dumped)) | st.text(),
    JSON: cut(values(JSON_WORDS).map(dumped)) | st.text(),
    PROTOBUF: cut(st.lists(st.sampled_from(PROTO_WORDS), max_size=40).map(" ".join)) | st.text() | st.binary().map(str),
}


def read(kind: str, text: str, *, new: bool) -> Text | None:
    try:
        made = parsed(kind, text, {}, new=new)
        assert parsed(kind, made.canonical, {}, new=new).canonical == made.canonical
        assert isinstance(made.normalized, str)
    except SchemaError as error:
        check_line(str(error))
        return None
    return made


def check_line(text: str) -> None:
    assert "\n" not in text
    assert len(text) < 2_000


@pytest.mark.parametrize("kind", FORMATS)
def test_a_random_text_is_a_schema_or_refused(kind: str) -> None:
    @fuzzed({AVRO: 80, JSON: 60, PROTOBUF: 30}[kind])
    @given(TEXTS[kind], TEXTS[kind])
    def each(text: str, other: str) -> None:
        one, two = read(kind, text, new=True), read(kind, other, new=True)
        read(kind, text, new=False)
        if one is not None and two is not None:
            try:
                assert all(change.compatible for change in differences(kind, one, one))
                differences(kind, one, two)
            except SchemaError as error:
                check_line(str(error))

    each()
