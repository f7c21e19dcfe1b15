"""Each rule of the comparison of JSON Schemas (docs/registry-formats.md), and the limits of its work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.schemas.differences import Budget, ComparisonLimitError, CompatibilityPolicy
from klamm.schemas.json_schema.comparison import differences
from klamm.schemas.json_schema.schema import JsonSchema, parse

NEW = "https://json-schema.org/draft/2020-12/schema"


def schema(raw: Any) -> JsonSchema:
    return parse(json.dumps(raw))


def changes(original: Any, update: Any) -> list[str]:
    """`+` before a compatible one, `-` before an incompatible one."""
    found = differences(schema(original), schema(update))
    return sorted(f"{'+' if each.compatible else '-'}{each.type} {each.path}" for each in found)


def props(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, **more}


def bounds() -> list[tuple[Any, Any, list[str]]]:
    """(original, update, changes) for each numeric limit: an upper one may grow, a lower one shrink, both may go."""
    made = []
    for kind, low, high in (
        ("string", "minLength", "maxLength"),
        ("number", "minimum", "maximum"),
        ("number", "exclusiveMinimum", "exclusiveMaximum"),
        ("object", "minProperties", "maxProperties"),
        ("array", "minItems", "maxItems"),
    ):
        for keyword, wider, narrower in ((low, "DECREASED", "INCREASED"), (high, "INCREASED", "DECREASED")):
            name = "".join(f"_{each}" if each.isupper() else each.upper() for each in keyword)
            before, more = {"type": kind, keyword: 2}, {"type": kind, keyword: 3}
            less = {"type": kind, keyword: 1}
            after = {"DECREASED": less, "INCREASED": more}
            made += [
                (before, after[wider], [f"+{name}_{wider} #/{keyword}"]),
                (before, after[narrower], [f"-{name}_{narrower} #/{keyword}"]),
                (before, {"type": kind}, [f"+{name}_REMOVED #/{keyword}"]),
                ({"type": kind}, before, [f"-{name}_ADDED #/{keyword}"]),
            ]
    return made


STRING, NUMBER = {"type": "string"}, {"type": "number"}
CLOSED = {"additionalProperties": False}
PARTLY = {"additionalProperties": STRING}
TUPLE = {"type": "array", "items": [STRING]}
PAIR = {"type": "array", "items": [STRING, STRING]}
CASES: list[tuple[Any, Any, list[str]]] = [
    (STRING, {}, []),
    (STRING, True, []),
    (False, NUMBER, []),
    (STRING, NUMBER, ["-TYPE_CHANGED #/"]),
    ({}, STRING, ["-TYPE_CHANGED #/"]),
    (STRING, False, ["-TYPE_CHANGED #/"]),
    ({"type": "integer"}, NUMBER, ["+TYPE_EXTENDED #/"]),
    (NUMBER, {"type": "integer"}, ["-TYPE_NARROWED #/"]),
    ({"type": "object", "connect.type": "bytes"}, {"type": "string", "connect.type": "bytes"}, []),
    (STRING, {**STRING, "title": "t"}, ["+TITLE_CHANGED #/"]),
    (STRING, {**STRING, "description": "d"}, ["+DESCRIPTION_CHANGED #/"]),
    (STRING, {**STRING, "$id": "urn:i"}, ["+ID_CHANGED #/"]),
    ({**NUMBER, "default": 1}, {**NUMBER, "default": 1.0}, []),
    ({**NUMBER, "default": 1}, {**NUMBER, "default": True}, ["+DEFAULT_CHANGED #/"]),
    *bounds(),
    (
        {
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "number",
            "maximum": 5,
            "exclusiveMaximum": True,
        },
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number", "maximum": 5},
        ["+EXCLUSIVE_MAXIMUM_REMOVED #/exclusiveMaximum"],
    ),
    ({**NUMBER, "multipleOf": 0.5}, {**NUMBER, "multipleOf": 10}, ["-MULTIPLE_OF_EXPANDED #/multipleOf"]),
    ({**NUMBER, "multipleOf": 10}, {**NUMBER, "multipleOf": 0.1}, ["+MULTIPLE_OF_REDUCED #/multipleOf"]),
    ({**NUMBER, "multipleOf": 3}, {**NUMBER, "multipleOf": 2}, ["-MULTIPLE_OF_CHANGED #/multipleOf"]),
    ({**NUMBER, "multipleOf": 3}, NUMBER, ["+MULTIPLE_OF_REMOVED #/multipleOf"]),
    (NUMBER, {**NUMBER, "multipleOf": 3}, ["-MULTIPLE_OF_ADDED #/multipleOf"]),
    ({**STRING, "pattern": "a"}, STRING, ["+PATTERN_REMOVED #/pattern"]),
    (STRING, {**STRING, "pattern": "a"}, ["-PATTERN_ADDED #/pattern"]),
    ({**STRING, "pattern": "a"}, {**STRING, "pattern": "b"}, ["-PATTERN_CHANGED #/pattern"]),
    ({"enum": [1, 2]}, {"enum": [2, 1, 3]}, ["+ENUM_ARRAY_EXTENDED #/enum"]),
    ({"enum": [1, 2]}, {"enum": [1]}, ["-ENUM_ARRAY_NARROWED #/enum"]),
    ({"enum": [1, 2]}, {"enum": [1, 3]}, ["-ENUM_ARRAY_CHANGED #/enum"]),
    ({"enum": [1]}, {"enum": [True]}, ["-ENUM_ARRAY_CHANGED #/enum"]),
    ({"const": 1}, {"const": 2}, ["-ENUM_ARRAY_CHANGED #/const"]),
    ({"not": NUMBER}, {"not": {"type": "integer"}}, ["+NOT_TYPE_NARROWED #/not"]),
    ({"not": {"type": "integer"}}, {"not": NUMBER}, ["-NOT_TYPE_EXTENDED #/not"]),
    # properties that the update has no more
    (props("a", "b"), props("a"), ["+PROPERTY_REMOVED_FROM_OPEN_CONTENT_MODEL #/properties/b"]),
    (props("a", "b", **CLOSED), props("a", **CLOSED), ["-PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/b"]),
    (
        {"type": "object", "properties": {"a": STRING, "b": False}, **CLOSED},
        props("a", **CLOSED),
        ["+PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/b"],
    ),
    (
        props("a", "b", **PARTLY),
        props("a", **PARTLY),
        ["+PROPERTY_REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/b"],
    ),
    (
        {"type": "object", "properties": {"b": NUMBER}, **PARTLY},
        {"type": "object", "required": [], **PARTLY},
        [
            "-PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/b",
            "-TYPE_CHANGED #/properties/b",
        ],
    ),
    # properties that the original has not
    (props("a"), props("a", "b"), ["-OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"]),
    (
        props("a"),
        {"type": "object", "properties": {"a": STRING, "b": {}}},
        ["+PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"],
    ),
    (props(), props("b", required=["b"]), ["-REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"]),
    (
        props(),
        {"type": "object", "properties": {"b": {**STRING, "default": ""}}, "required": ["b"]},
        ["-REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"],
    ),
    (
        props("a", **CLOSED),
        props("a", "b", **CLOSED),
        ["+OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
    ),
    (
        props(**CLOSED),
        props("b", required=["b"], **CLOSED),
        ["-REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
    ),
    (
        props(**CLOSED),
        {"type": "object", "properties": {"b": {**STRING, "default": ""}}, "required": ["b"], **CLOSED},
        ["+REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
    ),
    (
        props("a", **PARTLY),
        props("a", "b", **PARTLY),
        [
            "+OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b",
            "+PROPERTY_ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/b",
        ],
    ),
    (
        {"type": "object", "patternProperties": {"^n_": NUMBER}},
        {"type": "object", "patternProperties": {"^n_": NUMBER}, "properties": {"n_b": STRING}},
        [
            "+OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/n_b",
            "-PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/n_b",
            "-TYPE_CHANGED #/properties/n_b",
        ],
    ),
    (
        {"type": "object", "patternProperties": {"^\\u006e_": NUMBER}},
        {"type": "object", "patternProperties": {"^\\u006e_": NUMBER}, "properties": {"b": STRING}},
        ["+OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b"],
    ),
    (  # RE2 has no look-ahead: it is not known whether the pattern covers the name
        {"type": "object", "patternProperties": {"^(?=b)": STRING}},
        {"type": "object", "patternProperties": {"^(?=b)": STRING}, "properties": {"b": STRING}},
        [
            "+OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL #/properties/b",
            "-PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/properties/b",
        ],
    ),
    (props("a", required=["a"]), props("a"), ["+REQUIRED_ATTRIBUTE_REMOVED #/required/a"]),
    (props("a"), props("a", required=["a"]), ["-REQUIRED_ATTRIBUTE_ADDED #/required/a"]),
    (
        {"type": "object", "properties": {"a": {**STRING, "default": ""}}},
        {"type": "object", "properties": {"a": {**STRING, "default": ""}}, "required": ["a"]},
        ["+REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED #/required/a"],
    ),
    (props(**CLOSED), props(), ["+ADDITIONAL_PROPERTIES_ADDED #/additionalProperties"]),
    (props(), props(**CLOSED), ["-ADDITIONAL_PROPERTIES_REMOVED #/additionalProperties"]),
    (props(**PARTLY), props(), ["+ADDITIONAL_PROPERTIES_EXTENDED #/additionalProperties"]),
    (props(), props(**PARTLY), ["-ADDITIONAL_PROPERTIES_NARROWED #/additionalProperties"]),
    (props(additionalProperties={}), props(additionalProperties=True), []),
    (
        {"dependencies": {"a": ["b", "c"]}},
        {"dependencies": {"a": ["b"]}},
        ["+DEPENDENCY_ARRAY_NARROWED #/dependencies/a"],
    ),
    (
        {"dependencies": {"a": ["b"]}},
        {"dependencies": {"a": ["b", "c"]}},
        ["-DEPENDENCY_ARRAY_EXTENDED #/dependencies/a"],
    ),
    ({"dependencies": {"a": ["b"]}}, {"dependencies": {"a": ["c"]}}, ["-DEPENDENCY_ARRAY_CHANGED #/dependencies/a"]),
    (
        {"$schema": NEW, "dependentRequired": {"a": ["b"]}, "type": "object"},
        {"$schema": NEW, "type": "object"},
        ["+DEPENDENCY_ARRAY_REMOVED #/dependencies/a"],
    ),
    (
        {"$schema": NEW, "type": "object"},
        {"$schema": NEW, "dependentSchemas": {"a": STRING}, "type": "object"},
        ["-DEPENDENCY_SCHEMA_ADDED #/dependencies/a"],
    ),
    (
        {"$schema": NEW, **props(unevaluatedProperties=False)},
        {"$schema": NEW, **props()},
        ["+UNEVALUATED_PROPERTIES_ADDED #/unevaluatedProperties"],
    ),
    (
        {"$schema": NEW, **props()},
        {"$schema": NEW, **props(unevaluatedProperties=STRING)},
        ["-UNEVALUATED_PROPERTIES_NARROWED #/unevaluatedProperties"],
    ),
    # items
    ({"type": "array", "items": STRING}, {"type": "array"}, ["+SCHEMA_REMOVED #/items"]),
    ({"type": "array"}, {"type": "array", "items": STRING}, ["-SCHEMA_ADDED #/items"]),
    ({"type": "array"}, {"type": "array", "items": True}, []),
    (PAIR, TUPLE, ["+ITEM_REMOVED_FROM_OPEN_CONTENT_MODEL #/items/1"]),
    (TUPLE, PAIR, ["-ITEM_ADDED_TO_OPEN_CONTENT_MODEL #/items/1"]),
    (
        {**PAIR, "additionalItems": False},
        {**TUPLE, "additionalItems": False},
        ["-ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL #/items/1"],
    ),
    (
        {**TUPLE, "additionalItems": False},
        {**PAIR, "additionalItems": False},
        ["+ITEM_ADDED_TO_CLOSED_CONTENT_MODEL #/items/1"],
    ),
    (
        {"$schema": NEW, "type": "array", "prefixItems": [STRING], "items": STRING},
        {"$schema": NEW, "type": "array", "prefixItems": [STRING, NUMBER], "items": STRING},
        ["-ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL #/items/1", "-TYPE_CHANGED #/items/1"],
    ),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, ["+UNIQUE_ITEMS_REMOVED #/uniqueItems"]),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, ["-UNIQUE_ITEMS_ADDED #/uniqueItems"]),
    (
        {"$schema": NEW, "contains": STRING, "maxContains": 2},
        {"$schema": NEW, "contains": STRING, "minContains": 2},
        ["+MAX_CONTAINS_REMOVED #/maxContains", "-MIN_CONTAINS_INCREASED #/minContains"],
    ),
    # combinations
    (STRING, {"oneOf": [STRING]}, []),
    ({"allOf": [STRING]}, STRING, []),
    (STRING, {"type": ["string", "null"]}, ["+SUM_TYPE_EXTENDED #/"]),
    ({"type": ["string", "null"]}, STRING, ["-TYPE_CHANGED #/"]),
    ({"type": "string", "enum": ["a"]}, STRING, ["+PRODUCT_TYPE_NARROWED #/"]),
    ({"oneOf": [STRING]}, {"oneOf": [NUMBER, STRING]}, ["+SUM_TYPE_EXTENDED #/"]),
    ({"anyOf": [NUMBER, STRING]}, {"anyOf": [STRING]}, ["-SUM_TYPE_NARROWED #/"]),
    ({"allOf": [NUMBER, STRING]}, {"allOf": [STRING]}, ["+PRODUCT_TYPE_NARROWED #/"]),
    ({"allOf": [STRING]}, {"allOf": [NUMBER, STRING]}, ["-PRODUCT_TYPE_EXTENDED #/"]),
    ({"oneOf": [NUMBER, STRING]}, {"anyOf": [STRING, NUMBER]}, ["+COMBINED_TYPE_EXTENDED #/"]),
    ({"anyOf": [NUMBER, STRING]}, {"oneOf": [STRING, NUMBER]}, ["-COMBINED_TYPE_CHANGED #/"]),
    ({"oneOf": [NUMBER, STRING]}, {"oneOf": [STRING, {"type": "null"}]}, ["-COMBINED_TYPE_SUBSCHEMAS_CHANGED #/"]),
    (  # only the crossed pairing covers both: the first branch fits both, the second only the first one
        {"oneOf": [{"type": "integer"}, NUMBER]},
        {"oneOf": [NUMBER, {"type": "integer"}]},
        [],
    ),
    (
        {"oneOf": [{**STRING, "maxLength": 1}, {**STRING, "maxLength": 3}]},
        {"oneOf": [{**STRING, "maxLength": 3}, {**STRING, "maxLength": 2}]},
        ["+MAX_LENGTH_INCREASED #/oneOf/0/maxLength"],
    ),
    # references
    ({"$ref": "#/definitions/s", "definitions": {"s": STRING}}, STRING, []),
    (
        {"properties": {"a": STRING}},
        {"properties": {"a": {"$ref": "#/definitions/s"}}, "definitions": {"s": NUMBER}},
        ["-TYPE_CHANGED #/properties/a"],
    ),
    (  # beside a reference, keywords count from 2019-09 on
        {"$schema": NEW, "$ref": "#/$defs/s", "$defs": {"s": STRING}},
        {"$schema": NEW, "$ref": "#/$defs/s", "maxLength": 3, "$defs": {"s": STRING}},
        ["-TYPE_CHANGED #/"],
    ),
    (
        {"$ref": "#/definitions/s", "definitions": {"s": STRING}},
        {"$ref": "#/definitions/s", "maxLength": 3, "definitions": {"s": STRING}},
        [],
    ),
]


@pytest.mark.parametrize(("original", "update", "expected"), CASES, ids=[str(at) for at in range(len(CASES))])
def test_each_rule(original: Any, update: Any, expected: list[str]) -> None:
    assert changes(original, update) == expected


@pytest.mark.parametrize(
    ("original", "update", "compatible"),
    [
        (props("a"), props("a", "b"), True),
        (props("a"), {"properties": {"a": {}, "b": {**STRING, "default": ""}}, "required": ["b"]}, True),
        (props("a"), props("a", "b", required=["b"]), False),
        (props("a", "b", **CLOSED), props("a", **CLOSED), True),
        (props(), props(**CLOSED), True),
        (TUPLE, PAIR, False),
    ],
)
def test_the_lenient_policy_takes_optional_and_removed_properties(original: Any, update: Any, compatible: bool) -> None:
    found = differences(schema(original), schema(update), CompatibilityPolicy.LENIENT)
    assert all(each.compatible for each in found) is compatible


def tree(kind: str) -> dict[str, Any]:
    node = {"type": "object", "properties": {"value": {"type": kind}, "next": {"$ref": "#/definitions/node"}}}
    return {"$ref": "#/definitions/node", "definitions": {"node": node}}


def test_recursive_schemas() -> None:
    assert changes(tree("string"), tree("string")) == []
    assert "-TYPE_CHANGED #/properties/value" in changes(tree("string"), tree("number"))


def crossed(first: str, second: str) -> dict[str, Any]:
    """T0 and T1 lead to T2 and that to T0 again, each by a `oneOf` of one."""

    def of(kind: str, target: str) -> dict[str, Any]:
        reference = {"oneOf": [{"$ref": f"#/definitions/{target}"}]}
        return {"type": "object", "properties": {"id": {"type": kind}, "ref": reference}}

    union = [{"$ref": "#/definitions/T0"}, {"$ref": "#/definitions/T1"}]
    defined = {"T0": of(first, "T2"), "T1": of(second, "T2"), "T2": of("integer", "T0")}
    return {"properties": {"root": {"oneOf": union}}, "definitions": defined}


def test_a_change_behind_a_recursive_union_is_not_hidden() -> None:
    """A pair within itself counts as compatible at first; the second pass corrects what depended on it."""
    found = differences(schema(crossed("integer", "boolean")), schema(crossed("boolean", "number")))
    assert not all(each.compatible for each in found)


def ladder(kind: str, steps: int) -> dict[str, Any]:
    """Two references at each step: 2^steps paths to the last one."""
    both = [{"a": {"$ref": f"#/definitions/{at + 1}"}, "b": {"$ref": f"#/definitions/{at + 1}"}} for at in range(steps)]
    defined: dict[str, Any] = {str(at): {"properties": each} for at, each in enumerate(both)}
    return {"$ref": "#/definitions/0", "definitions": {**defined, str(steps): {"type": kind}}}


def test_exponential_work_ends_in_one_line() -> None:
    assert changes(ladder("string", 60), ladder("string", 60)) == []
    with pytest.raises(ComparisonLimitError, match=r"too complex to be compared: more than 1000 steps; use fewer"):
        differences(schema(ladder("string", 60)), schema(ladder("number", 60)), budget=Budget(steps=1000))


def test_the_time_is_bounded() -> None:
    ticks = iter(range(1_000_000))
    budget = Budget(seconds=3, clock=lambda: next(ticks))
    with pytest.raises(ComparisonLimitError, match="within 3 s of processor time"):
        differences(schema(ladder("string", 60)), schema(ladder("number", 60)), budget=budget)


def test_a_long_chain_of_references_ends_in_one_line() -> None:
    defined = {str(at): {"properties": {"a": {"$ref": f"#/definitions/{at + 1}"}}} for at in range(2000)}
    raw = {"$ref": "#/definitions/0", "definitions": {**defined, "2000": STRING}}
    with pytest.raises(ComparisonLimitError, match="nested too deeply"):
        differences(schema(raw), schema(raw))


def test_a_path_is_short_though_a_name_is_long() -> None:
    name = "x" * 1_000_000
    (found,) = differences(schema({"properties": {name: STRING}}), schema({"properties": {name: NUMBER}}))
    assert len(found.message()) < 1000


def test_the_texts_of_a_report() -> None:
    (found,) = differences(schema(props("%s{path}")), schema({"properties": {"%s{path}": NUMBER}}))
    assert found.message("new", "old") == (
        '{errorType:"TYPE_CHANGED", description:"A type at path \'#/properties/%s{path}\' is different between the new'
        " schema and the old schema'}"
    )


names = st.sampled_from(["a", "b", "c"])
scalars = st.one_of(
    st.builds(lambda limit: {"type": "string", "maxLength": limit}, st.integers(0, 9)),
    st.builds(lambda limit: {"type": "integer", "minimum": limit}, st.integers(-3, 3)),
    st.builds(lambda values: {"enum": values}, st.lists(st.integers(0, 5), min_size=1, unique=True)),
    st.sampled_from([True, False, {}, {"type": ["null", "number"]}, {"$ref": "#"}, {"pattern": "a"}, {"const": None}]),
)
schemas = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(
            lambda parts, rest, required: {"properties": parts, "additionalProperties": rest, "required": required},
            st.dictionaries(names, inner, max_size=3),
            inner,
            st.lists(names, unique=True, max_size=2),
        ),
        st.builds(
            lambda kind, parts: {kind: parts},
            st.sampled_from(["oneOf", "anyOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda part: {"type": "array", "items": part}, inner),
        st.builds(lambda part, rest: {"items": [part], "additionalItems": rest}, inner, inner),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.builds(lambda part: {"properties": {"p": part}}, schemas))
def test_a_schema_is_compatible_with_itself_and_with_anything(raw: Any) -> None:
    made = schema(raw)
    assert differences(made, schema(raw)) == []
    assert differences(made, parse("true")) == []
    assert differences(made, parse(made.normalized)) == []
