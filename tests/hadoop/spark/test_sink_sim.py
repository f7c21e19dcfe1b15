"""The sink's attempts under random schedules; `make sink-sim` runs more."""

from __future__ import annotations

import pytest

from klammtest.sink_sim.schedule import run_schedule


@pytest.mark.parametrize("seed", range(0, 400, 100))
def test_each_row_is_stored_once(seed: int) -> None:
    for number in range(seed, seed + 100):
        run_schedule(number)
