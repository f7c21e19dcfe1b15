"""Columns of int64 made of lists, in the compiled module and in its equal in Python."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest

from klamm.core.records import fallback, native

BOTH = pytest.mark.parametrize("module", [native, fallback], ids=["native", "fallback"])


@BOTH
def test_numbers_and_sizes(module: Any) -> None:
    numbers = [0, -1, 2**63 - 1, -(2**63)]
    assert module.int64s(numbers) == array("q", numbers).tobytes()
    assert module.sizes([None, b"ab", b""], [b"x" * 300, None, b"c"]) == array("q", [300, 2, 1]).tobytes()
    assert module.int64s([]) == module.sizes([], []) == b""


@BOTH
def test_sizes_from_the_offsets_of_two_binary_columns(module: Any) -> None:
    keys, values = array("i", [4, 4, 6, 2**31 - 1]), array("i", [0, 300, 300, 301])
    assert module.lengths(keys, values) == array("q", [300, 2, 2**31 - 7 + 1]).tobytes()
    assert module.lengths(memoryview(keys)[1:3], memoryview(values)[1:3]) == array("q", [2]).tobytes()
    assert module.lengths(keys[:1], values[:1]) == b""


@BOTH
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda module: module.int64s([2**63]), OverflowError),
        (lambda module: module.int64s([1, "2"]), TypeError),
        (lambda module: module.int64s((1, 2)), TypeError),
        (lambda module: module.sizes([None], []), ValueError),
        (lambda module: module.sizes(["a"], [None]), TypeError),
        (lambda module: module.lengths(b"", b""), ValueError),
        (lambda module: module.lengths(bytes(8), bytes(4)), ValueError),
        (lambda module: module.lengths(bytes(6), bytes(6)), ValueError),
        (lambda module: module.sizes([None], [bytearray(b"a")]), TypeError),
    ],
)
def test_wrong_items_are_refused(module: Any, call: Callable[[Any], bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(module)
