"""Which texts are JSON Schemas, their canonical and normalized forms, references, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.errors import SchemaError
from klamm.schemas.json_schema.comparison import differences
from klamm.schemas.json_schema.schema import parse

DRAFTS = [
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


def test_canonical_keeps_the_order_and_the_numbers_and_normalized_sorts() -> None:
    made = parse('{ "type" : "number",\n "maximum": 1.10, "minimum": 1e400, "title": "\\u00e9\\/", "$id": "urn:a" }')
    assert made.canonical == '{"type":"number","maximum":1.10,"minimum":1e400,"title":"é/","$id":"urn:a"}'
    assert made.normalized == '{"$id":"urn:a","maximum":1.10,"minimum":1e400,"title":"é/","type":"number"}'
    assert parse('{"properties":{"b":{},"a":{}}}').normalized == '{"properties":{"a":{},"b":{}}}'
    assert parse('{"properties":{"b":{},"a":{}}}').fields == {"a", "b"}
    assert parse("true").fields == frozenset()


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft(draft: str) -> None:
    assert parse(json.dumps({"$schema": draft, "type": "object", "properties": {"a": {"minLength": 1}}}))
    with pytest.raises(
        SchemaError, match=r"^not a JSON Schema: #/properties/a/minLength: 'x' is not of type 'integer'"
    ):
        parse(json.dumps({"$schema": draft, "type": "object", "properties": {"a": {"minLength": "x"}}}))


def test_the_draft_decides() -> None:
    old = {"type": "number", "maximum": 5, "exclusiveMaximum": True}
    assert parse(json.dumps({"$schema": DRAFTS[0], **old}))
    with pytest.raises(SchemaError, match="exclusiveMaximum"):
        parse(json.dumps(old))  # 7 without `$schema`


REFERENCES = {
    "other.json": '{"definitions":{"name":{"$ref":"deeper.json#/definitions/text"}}}',
    "deeper.json": '{"definitions":{"text":{"type":"string"}}}',
}


@pytest.mark.parametrize("identity", [None, "http://example.com/schemas/root.json", "urn:root"])
def test_references_are_those_passed_in(identity: str | None) -> None:
    raw: dict[str, Any] = {"properties": {"a": {"$ref": "other.json#/definitions/name"}}}
    if identity is not None:
        raw["$id"] = identity
    if identity == "urn:root":
        with pytest.raises(SchemaError, match=r"\$ref 'other.json#/definitions/name' leads to no schema"):
            parse(json.dumps(raw), {})
        return
    made = parse(json.dumps(raw), REFERENCES)
    same = json.dumps({**raw, "properties": {"a": {"type": "string"}}})
    assert differences(made, parse(same)) == []
    other = parse(json.dumps({**raw, "properties": {"a": {"type": "number"}}}))
    assert [each.type for each in differences(made, other)] == ["TYPE_CHANGED"]


@pytest.mark.parametrize(
    "raw",
    [
        {"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}},
        {"$ref": "#/$defs/a", "definitions": {"a": {"type": "string"}}},
        {"$schema": DRAFTS[4], "$ref": "#name", "$defs": {"a": {"$anchor": "name", "type": "string"}}},
        {"$schema": DRAFTS[4], "$dynamicRef": "#name", "$defs": {"a": {"$dynamicAnchor": "name", "type": "string"}}},
        {"$ref": "urn:inner", "definitions": {"a": {"$id": "urn:inner", "type": "string"}}},
        {"$ref": "http://json-schema.org/draft-07/schema#/definitions/nonNegativeInteger"},
    ],
)
def test_references_within(raw: Any) -> None:
    made = parse(json.dumps(raw))
    assert made.root.resolved().kind in ("string", "number")


@pytest.mark.parametrize(
    "reference",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/",
        "other.json",
        "#/definitions/none",
        "#none",
        "#/title/0",
        "http://[",
    ],
)
def test_a_reference_that_leads_nowhere_is_refused_and_nothing_is_fetched(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*arguments: object, **more: object) -> None:
        raise AssertionError(f"opened {arguments}")

    monkeypatch.setattr("urllib.request.urlopen", opened)
    monkeypatch.setattr("socket.create_connection", opened)
    for where in ("properties", "definitions"):
        raw = {"title": "t", where: {"a": {"$ref": reference}}}
        with pytest.raises(SchemaError) as caught:
            parse(json.dumps(raw))
        assert f"$ref {reference!r} leads to no schema" in str(caught.value)
        assert "\n" not in str(caught.value)


LIMIT = "nested deeper than 128 objects and arrays"
REFUSED = [
    ("", "not JSON: Expecting value: line 1 column 1"),
    ("{", "not JSON: Expecting property name"),
    ("[]", "not a JSON Schema: the root is an array"),
    ("3", "not a JSON Schema: the root is a number"),
    ("null", "not a JSON Schema: the root is null"),
    ('"string"', "not a JSON Schema: the root is a string"),
    ('{"type":"strin"}', "not a JSON Schema: #/type: 'strin' is not valid"),
    ('{"properties":{"a\\nb":{"type":3}}}', "not a JSON Schema: #/properties/a\\nb/type: 3 is not"),
    ('{"minimum":NaN}', "not JSON: NaN is no JSON number"),
    ('{"minimum":' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
    ('{"title":"\\ud800"}', "not JSON: half of a surrogate pair"),
    ('{"$ref":"#"}', "not a JSON Schema: $ref '#' leads to itself only"),
    ("[" * 100_000, LIMIT),
    ('{"not":' * 100_000 + "{}" + "}" * 100_000, LIMIT),
    ('{"not":' * 200 + "{}" + "}" * 200, LIMIT),
    ('{"title":"' + "x" * 1_100_000 + '"}', "a schema of 1100012 characters; the limit is 1048576"),
    ('{"oneOf":[' + "{}," * 100_000 + "{}]}", "100002 objects in a schema; the limit is 10000"),
    ('{"required":[' + '1,"a",' * 40_000 + "1]}", "not a JSON Schema: #/required/"),  # in linear time
]


@pytest.mark.parametrize(("text", "expected"), REFUSED, ids=[line[:40] for _text, line in REFUSED])
def test_refused_in_one_line(text: str, expected: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse(text)
    assert str(caught.value).startswith(expected)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_a_pattern_is_never_run() -> None:
    exploding = {"pattern": "^(a+)+$", "default": "a" * 10_000 + "!", "patternProperties": {"^(a+)+$": {}}}
    made = parse(json.dumps(exploding))
    grown = parse(json.dumps({**exploding, "properties": {"a" * 10_000 + "!": {}}}))
    assert [each.type for each in differences(made, grown)] == ["PRODUCT_TYPE_NARROWED"] or differences(made, grown)


def test_a_text_that_the_topic_has_already_is_not_checked_again() -> None:
    made = parse('{"type":5,"properties":[1],"items":3,"maxLength":"x","allOf":7}', new=False)
    assert made.canonical == '{"type":5,"properties":[1],"items":3,"maxLength":"x","allOf":7}'
    with pytest.raises(SchemaError, match="a keyword has a value of the wrong type"):
        differences(made, parse("true"))
    odd = parse('{"type":5,"maxLength":"x","required":[3]}', new=False)
    assert all(each.compatible for each in differences(odd, parse("true")))
    with pytest.raises(SchemaError, match="not JSON"):
        parse("{ no JSON", new=False)
    with pytest.raises(SchemaError, match="leads to no schema"):
        differences(parse('{"$ref":"http://example.com"}', new=False), parse("true"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "$ref", "$id", "allOf", "not", "maxLength", "$defs", "enum"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(values, st.sampled_from(DRAFTS))
def test_any_json_is_a_schema_or_refused(raw: Any, draft: str) -> None:
    text = json.dumps({**raw, "$schema": draft} if isinstance(raw, dict) else raw)
    for new in (True, False):
        try:
            made = parse(text, new=new)
            assert parse(made.canonical, new=new).canonical == made.canonical
            assert parse(made.normalized, new=new).normalized == made.normalized
            assert differences(made, made) == []
        except SchemaError:
            continue
