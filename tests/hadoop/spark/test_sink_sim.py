"""The sink's attempts under random schedules; `make sink-sim` runs more."""

from __future__ import annotations

import pytest

from klammtest.sink_sim.__main__ import SinkSimulation
from klammtest.sink_sim.mutations import MUTATIONS


@pytest.mark.parametrize("seed", range(0, 400, 100))
def test_each_row_is_stored_once(seed: int) -> None:
    assert SinkSimulation.run_seeds(seed, 100).violations == []


@pytest.mark.parametrize("name", ["random-ids", "no-search", "at-once", "refused-is-stored"])
def test_what_is_planted_is_found(name: str) -> None:
    """Those that a few schedules find; `make sink-sim` plants the others too."""
    assert SinkSimulation.schedules_until_caught(name, 200, 1) is not None


def test_the_rules_have_planted_bugs() -> None:
    assert {mutation.rule for mutation in MUTATIONS.values()} == set("1234567")
