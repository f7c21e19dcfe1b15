"""The sink's attempts under random schedules; `make sink-sim` runs more."""

from __future__ import annotations

import pytest

from klammtest.sink_sim.__main__ import schedules_until_found
from klammtest.sink_sim.mutations import MUTATIONS
from klammtest.sink_sim.schedule import run_schedule


@pytest.mark.parametrize("seed", range(0, 400, 100))
def test_each_row_is_stored_once(seed: int) -> None:
    for number in range(seed, seed + 100):
        run_schedule(number)


@pytest.mark.parametrize("name", ["random-ids", "no-search", "at-once", "refused-is-stored"])
def test_what_is_planted_is_found(name: str) -> None:
    """Those that a few schedules find; `make sink-sim` plants the others too."""
    assert schedules_until_found(name, 1, 200) is not None


def test_the_rules_have_planted_bugs() -> None:
    assert {mutation.rule for mutation in MUTATIONS.values()} == set(range(1, 8))
