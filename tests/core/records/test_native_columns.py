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
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda module: module.int64s([2**63]), OverflowError),
        (lambda module: module.int64s([1, "2"]), TypeError),
        (lambda module: module.int64s((1, 2)), TypeError),
        (lambda module: module.sizes([None], []), ValueError),
        (lambda module: module.sizes(["a"], [None]), TypeError),
        (lambda module: module.sizes([None], [bytearray(b"a")]), TypeError),
    ],
)
def test_wrong_items_are_refused(module: Any, call: Callable[[Any], bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(module)
