"""Texts that nobody should register: refused in one line, without a deep recursion or work beyond their size."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from klamm.core.errors import SchemaError
from klamm.schemas.avro.canonical import canonical_text
from klamm.schemas.avro.comparison import MAX_SHOWN, differences
from klamm.schemas.avro.parsing import MAX_TEXT, check_new, parse


def record(field: str) -> str:
    return f'{{"type":"record","name":"R","fields":[{field}]}}'


def deep(left: str, core: str, right: str, times: int) -> str:
    return left * times + core + right * times


ONE = ',"default":1'


def doubled(depth: int, leaf: str, more: str = "") -> str:
    """Returns a record with 2^depth fields of the type `leaf`; `more` is in each of its fields."""
    inner = record(f'{{"name":"a","type":"{leaf}"{more and ONE}}}').replace('"R"', '"R0"')
    for level in range(1, depth + 1):
        fields = f'{{"name":"a","type":{inner}{more}}},{{"name":"b","type":"R{level - 1}"{more}}}'
        inner = record(fields).replace('"R"', f'"R{level}"', 1)
    return inner


BRANCHES = ",".join(f'{{"type":"fixed","name":"F{i}","size":1}}' for i in range(5_000))
AHEAD = ",".join(record(f'{{"name":"a","type":"R{i + 1}"}}').replace('"R"', f'"R{i}"') for i in range(2_000))
HOSTILE = {
    "lists": "[" * 100_000,
    "objects": '{"type":' * 30_000,
    "arrays": deep('{"type":"array","items":', '"int"', "}", 8_000),
    "unions": deep("[", '"int"', "]", 100_000),
    "a deep default": record('{"name":"a","type":"int","default":' + deep("[", "1", "]", 50_000) + "}"),
    "a deep property": record('{"name":"a","type":"int","x":' + deep('{"y":', "1", "}", 400) + "}"),
    "a default within itself": record('{"name":"a","type":["R","null"],"default":{}}'),
    "a default of any size": doubled(50, "int", ',"default":{}'),
    "too many characters": json.dumps("x" * MAX_TEXT),
    "a long name": f'{{"type":"fixed","name":"{"x" * MAX_TEXT}","size":1}}',
    "names ahead of each other": f"[{AHEAD}]",
    "a number that is none": '{"type":"int","x":NaN}',
    "a name that is no UTF-8": '{"type":"fixed","name":"\\ud800","size":1}',
    "text that is no UTF-8": '{"type":"int","doc":"\\ud800","x":"\\ud800"}',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_it_is_one_line(text: str) -> None:
    with pytest.raises(SchemaError) as caught:
        canonical_text(check_new(text).text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


SOME: dict[str, Callable[[], str]] = {
    "many branches": lambda: f"[{BRANCHES}]",
    "many fields": lambda: record(",".join(f'{{"name":"f{i}","type":"int"}}' for i in range(8_000))),
    "comments": lambda: '{"type":"int"' + "/* */" * 40_000 + "}",
}


@pytest.mark.parametrize("text", SOME.values(), ids=SOME)
def test_large_texts_are_schemas(text: Callable[[], str]) -> None:
    printed = canonical_text(check_new(text()).text)
    assert canonical_text(check_new(printed).text) == printed


def test_differences_that_repeat_are_not_all_listed() -> None:
    old, new = (parse(doubled(50, leaf)).root for leaf in ("int", "string"))
    assert len(differences(old, new)) == MAX_SHOWN
    assert not differences(old, old)
