"""Every planted bug is caught: what proves that the simulation would find it."""

from __future__ import annotations

import pytest

from klammsim.campaign import schedules_until_caught, script_catches
from klammsim.mutations import MUTATIONS
from klammsim.scripts import SCRIPTS

COVERED = {name for name, mutation in MUTATIONS.items() if mutation.covered}
AT_RANDOM = sorted(set(MUTATIONS) - set(SCRIPTS) - COVERED)
MOST_SCHEDULES = 500


@pytest.mark.parametrize("name", SCRIPTS)
def test_caught_by_its_script(name: str) -> None:
    assert script_catches(name)


@pytest.mark.parametrize("name", AT_RANDOM)
def test_caught_by_random_schedules(name: str) -> None:
    assert schedules_until_caught(name, MOST_SCHEDULES) is not None
