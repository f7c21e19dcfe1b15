"""`make registry-differences` on examples of our own; and its explained differences are in the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from klammtest import registry_differences

PAGE = Path(__file__).parents[2] / "docs" / "registry-formats.md"
EXAMPLES = """[
  { // as in the judge's files: comments, commas before brackets
    "description": "a bound // that grows",
    "original_schema": {"type": "string", "maxLength": 1,},
    "update_schema": {"type": "string", "maxLength": 2},
    "changes": ["MAX_LENGTH_INCREASED #/maxLength"], "compatible": true,
  },
  {
    "description": "an optional property",
    "original_schema": {"properties": {"a": {}}}, "update_schema": {"properties": {"a": {}, "b": {"type": "null"}}},
    "changes": ["OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL #/properties/b"],
    "compatible": false, "compatible_lenient": true
  },
]"""


def test_examples_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "json" / "diff-examples.json"
    file.parent.mkdir()
    assert registry_differences.main([str(tmp_path)]) == 1
    file.write_text(EXAMPLES)
    assert registry_differences.main([str(tmp_path)]) == 0
    file.write_text(EXAMPLES.replace("MAX_LENGTH_INCREASED", "MAX_LENGTH_DECREASED"))
    assert registry_differences.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "2 examples: 2 as Confluent's, 0 explained, 0 WRONG"
    assert lines[2].startswith("diff-examples.json: a bound // that grows: wanted ['MAX_LENGTH_DECREASED #/maxLength',")
    assert lines[2].endswith(": WRONG")
    assert lines[3] == "2 examples: 1 as Confluent's, 0 explained, 1 WRONG"


def test_the_page_has_the_explained_differences() -> None:
    rows = set(re.findall(r"^\| `(diff-[\w.-]+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {(file, description.strip()) for file, description in rows} == set(registry_differences.EXPLAINED)
