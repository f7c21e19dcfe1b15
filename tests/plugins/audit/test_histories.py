"""`make audit-truth HISTORIES=n` in short: what random histories show is true, and each planted bug is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from klammtest.audit_truth.histories import command
from klammtest.audit_truth.histories.campaign import MOST_UNKNOWN, Score, piece
from klammtest.audit_truth.histories.mutations import MUTATIONS, Mutation, found_at

SEED = 7


def test_no_report_of_a_random_history_is_wrong() -> None:
    score = piece(SEED, range(100))
    assert score.wrong == []
    assert score.too_unknown == []
    [first, *_] = score.lines()
    assert first.startswith("histories 100 checks ")


def test_a_history_is_the_same_again() -> None:
    one, again = piece(SEED, [3]), piece(SEED, [3])
    assert replace(one, seconds=0.0) == replace(again, seconds=0.0)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{each.rule}: {each.what}")
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    assert found_at(mutation, SEED, 300) is not None


def test_each_rule_has_a_mutation() -> None:
    rules = {f"R{number}" for number in range(1, 26)}
    assert {mutation.rule for mutation in MUTATIONS} >= rules


def test_an_audit_that_calls_everything_unknown_fails() -> None:
    score = Score(histories=1)
    score.states.update({(tier, "unknown"): 1 for tier in MOST_UNKNOWN})
    assert not score.right
    assert score.too_unknown == list(MOST_UNKNOWN)


def test_a_history_that_is_wrong_is_named_with_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command.complain(Score(histories=9, wrong=[(4, "the watermark stands")]), 2)
    assert capsys.readouterr().out == (
        "  history 4: the watermark stands\n  replay: make audit-truth HISTORIES=1 SEED=2 AT=4\n"
    )


def test_one_history_is_shown_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.command(1, SEED, 3, plant=False) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"history 3 of seed {SEED}: ")
    assert "settle; 0: leader " in shown
    assert "  report: watermark " in shown
