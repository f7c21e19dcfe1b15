"""`make audit-truth` in short: three runs of each kind, and that it fails when the comparison is switched off."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from klammtest.audit_truth.__main__ import planted, run_kind
from klammtest.audit_truth.kinds import KINDS
from klammtest.audit_truth.load import arrow_loads
from klammtest.audit_truth.page import figures
from klammtest.audit_truth.pipeline import LIMIT_S
from klammtest.audit_truth.score import Score

SEED = 7
pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")  # kafka-python's


def score(kind: str, folder: Path, *, plant: bool = False, runs: int = 3) -> Score:
    with arrow_loads(), planted(KINDS[kind]) if plant else nullcontext():
        return run_kind(KINDS[kind], SEED, range(runs), folder, 0.5 if plant else LIMIT_S)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_is_found_and_nothing_else(kind: str, tmp_path: Path) -> None:
    of = score(kind, tmp_path)
    assert of.right, of.wrong
    found = 0 if kind == "ordinary" else 3
    assert of.line() == f"{kind} runs 3 found {found} missed 0 false-alarms 0"
    assert f"| {kind} | 3 | {found or ''} | 0 | 0 |" in figures([of], SEED)


@pytest.mark.parametrize("kind", ["losses", "ordinary"])
def test_an_audit_that_does_not_compare_is_found_out(kind: str, tmp_path: Path) -> None:
    of = score(kind, tmp_path, plant=True, runs=1)
    assert (of.missed, of.alarms) == ((0, 1) if kind == "ordinary" else (1, of.alarms))
