"""The lines of the sink `files`: JSON that a strict parser takes, and bytes that a reader can restore."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json

from klamm.core.errors import StorageError
from klamm.core.records.record import ConsumerRecord
from klamm.plugins.sinks.files import FilesConfig, FilesSink, as_json

FLOATS = st.floats(allow_nan=True, allow_infinity=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@dataclass
class Reading:
    at: datetime
    level: float


def parsed(value: Any, key: bytes | None = b"k", headers: Any = ()) -> Any:
    """The line of a record, by a parser that refuses NaN, Infinity and everything else that is not JSON."""
    line = as_json(ConsumerRecord("t", 0, 0, 1, key, value, headers))
    assert line.isascii()
    assert "\n" not in line
    return from_json(line, allow_inf_nan=False)


def restored(said: Any, value: Any) -> Any:
    """The value of this JSON, by the types of `value`, as a reader with the schema restores it."""
    if isinstance(value, bytes):
        return said.encode("latin-1")
    if isinstance(value, float):
        return float(said)
    if isinstance(value, list):
        return [restored(each, was) for each, was in zip(said, value, strict=True)]
    if isinstance(value, dict):
        return {name: restored(said[name], was) for name, was in value.items()}
    return said


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return type(one) is type(other) and one == other


@given(VALUES)
def test_each_value_is_json_and_can_be_restored_by_its_type(value: Any) -> None:
    assert same(restored(parsed(value)["value"], value), value)


@given(st.binary(), st.binary())
def test_bytes_have_one_form_whatever_they_hold(key: bytes, header: bytes) -> None:
    line = parsed({"payload": key}, key, (("h", header), ("n", None)))
    assert line["key"].encode("latin-1") == line["value"]["payload"].encode("latin-1") == key
    assert line["headers"] == [["h", header.decode("latin-1")], ["n", None]]


def test_numbers_that_json_lacks_have_avros_names() -> None:
    first = Reading(datetime(2026, 1, 1, tzinfo=UTC), math.nan)
    shown = {"at": "2026-01-01T00:00:00+00:00", "level": "NaN"}
    assert parsed([first, math.inf, (-math.inf, Decimal("1.10")), UUID(int=1), b"\xff"])["value"] == [
        shown, "Infinity", ["-Infinity", "1.10"], str(UUID(int=1)), "\xff",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [{b"a": 1}, object(), [math.nan, object()], {math.nan: 1}, 1 << 20_000],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_form_in_json_is_one_line(value: Any) -> None:
    with pytest.raises(StorageError, match="cannot be written as JSON"):
        as_json(ConsumerRecord("t", 0, 0, 1, None, value))


def test_each_line_of_a_file_is_json(tmp_path: Path) -> None:
    sink = FilesSink(FilesConfig.model_validate({"path": str(tmp_path)}))
    sink.open()
    values = [math.nan, b"\x85\n\xe2\x80\xa8", "\u2028\x85", {"a": -math.inf}]
    sink.write([ConsumerRecord("t", 0, offset, 1, None, value) for offset, value in enumerate(values)])
    sink.flush()
    (path,) = (tmp_path / "t" / "0").iterdir()
    lines = [from_json(line, allow_inf_nan=False) for line in path.read_text().splitlines()]
    assert [line["offset"] for line in lines] == [0, 1, 2, 3]
