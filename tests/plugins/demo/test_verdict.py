from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from klamm.plugins.demo.verdict import Verdict, acknowledged_keys, differences

GOOD = Verdict(
    expected=10,
    produced=10,
    consumed=10,
    mirrored=10,
    loaded=10,
    missing=0,
    duplicated=0,
    lowest=1.0,
    audited=True,
    seconds=12.4,
)


def test_the_last_line() -> None:
    assert GOOD.line() == (
        "demo: produced=10 consumed=10 mirrored=10 loaded=10 missing=0 duplicated=0 complete=1.0000 schemas=2 refused=1"
        " seconds=12"
    )
    assert GOOD.passed


@pytest.mark.parametrize(
    "wrong",
    [
        {"produced": 9},
        {"consumed": 11},
        {"mirrored": 9},
        {"loaded": 9},
        {"missing": 1},
        {"duplicated": 1},
        {"lowest": 0.99999},
        {"lowest": None},
        {"audited": False},
        {"expected": 11},
        {"differing": 1},
        {"registered": (1, 1)},
        {"registered": (2, 0)},
    ],
)
def test_anything_that_is_not_right_fails(wrong: dict[str, Any]) -> None:
    assert not replace(GOOD, **wrong).passed


def test_only_what_is_complete_reads_so() -> None:
    assert "complete=0.9999 " in replace(GOOD, lowest=0.99999).line()
    assert "complete=unknown " in replace(GOOD, lowest=None).line()


def test_multisets_are_compared(tmp_path: Path) -> None:
    for number, keys in enumerate(("a\nb\nb\n", "c\n")):
        (tmp_path / f"{number}.txt").write_text(keys)
    acknowledged = acknowledged_keys(sorted(tmp_path.glob("*.txt")))
    assert acknowledged.total() == 4
    assert differences(acknowledged, Counter("abbc")) == (0, 0)
    assert differences(acknowledged, Counter("abc")) == (1, 0)
    assert differences(acknowledged, Counter("abbbc")) == (0, 1)
    assert differences(acknowledged, Counter("abbd")) == (1, 1)
