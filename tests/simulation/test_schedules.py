"""A short run of what `make sim` runs for long."""

from __future__ import annotations

import pytest

from klammsim.campaign import run_seeds, shrink
from klammsim.mutations import MUTATIONS
from klammsim.scripts import SCRIPTS

SHORT_RUN = 60


def test_random_schedules_violate_nothing() -> None:
    outcome = run_seeds(0, SHORT_RUN)
    assert outcome.violations == []
    assert outcome.schedules == SHORT_RUN
    assert outcome.acknowledged > 10 * SHORT_RUN
    assert outcome.elections > SHORT_RUN
    assert outcome.truncations > 0
    struck = {
        "kill",
        "lose power",
        "fail flush",
        "replace disk",
        "lose all power",
        "pause",
        "cut",
        "cut off",
        "suspect",
    }
    assert struck <= set(outcome.faults)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_violates_nothing(name: str) -> None:
    SCRIPTS[name]()


def test_a_seed_gives_the_same_schedule_again() -> None:
    assert run_seeds(7, 1) == run_seeds(7, 1)


def test_a_violation_is_shrunk_to_the_faults_that_it_needs() -> None:
    with MUTATIONS["power-loss-keeps-data-id"].planted():
        seed = next(seed for seed in range(200) if run_seeds(seed, 1).violations)
        needed = shrink(seed)
    assert 0 < len(needed) < 10
