"""The guarantees' own machinery: a planted run that finds nothing is a failure."""

from __future__ import annotations

import pytest

TESTS = """
from klammtest.guarantees import guarantee

LOST = []

@guarantee("A1", "nothing is lost", plant=lambda patch: patch.setattr(f"{__name__}.LOST", ["a record"]))
def test_seen():
    assert not LOST

@guarantee("B2", "nothing is seen", plant=lambda patch: None)
def test_blind():
    assert True
"""


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest('pytest_plugins = ["klammtest.guarantees"]')
    pytester.makepyfile(TESTS)
    return pytester


def test_a_guarantee_runs_as_it_is_or_planted(tests: pytest.Pytester) -> None:
    tests.runpytest("-p", "no:xdist").assert_outcomes(passed=2, deselected=2)
    planted = tests.runpytest("-p", "no:xdist", "--guarantees", "AB", "--plant")
    planted.assert_outcomes(passed=1, failed=1, deselected=2)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--guarantees", "A"], "guarantee A1 holds: nothing is lost"),
        (["--guarantees", "a", "--plant"], "guarantee A1 found: nothing is lost"),
        (["--guarantees", "AB", "--plant"], "guarantee B2 NOT FOUND: nothing is seen"),
        (["--guarantees", "AB", "--plant"], "guarantees: 1 of 2 plants found"),
    ],
)
def test_lines(tests: pytest.Pytester, options: list[str], line: str) -> None:
    result = tests.runpytest("-p", "no:xdist", *options)
    result.stdout.fnmatch_lines([line])
    assert result.ret == (1 if "NOT FOUND" in line or "1 of 2" in line else 0)
