"""Zigzag varints: both tables and loops, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.errors import CorruptRecordError
from klamm.core.records.varint import SMALL, VARINT, encode_varint, read_varint, read_varlong


@given(st.integers(-(2**63), 2**63 - 1))
def test_round_trip_of_64_bits(value: int) -> None:
    raw = encode_varint(value)
    assert read_varlong(raw, 0) == (value, len(raw))


@given(st.integers(-(2**31), 2**31 - 1))
def test_round_trip_of_32_bits(value: int) -> None:
    raw = encode_varint(value)
    assert read_varint(b"x" + raw, 1) == (value, 1 + len(raw))


@pytest.mark.parametrize(
    ("value", "raw"), [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (300, "d804")]
)
def test_known_values(value: int, raw: str) -> None:
    assert encode_varint(value).hex() == raw


def test_the_table_is_the_function() -> None:
    assert all(VARINT[n] == encode_varint(n) for n in range(SMALL))


@pytest.mark.parametrize("raw", [b"\xff" * 5, b"\xff" * 4 + b"\x7f", b"\x80" * 12])
def test_a_32_bit_varint_that_is_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="32 bits"):
        read_varint(raw + b"\0", 0)


@pytest.mark.parametrize("raw", [b"\xff" * 10, b"\xff" * 9 + b"\x02"])
def test_a_64_bit_varint_that_is_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="64 bits"):
        read_varlong(raw + b"\0", 0)


def test_an_end_inside_a_varint_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        read_varint(b"\x80", 0)
