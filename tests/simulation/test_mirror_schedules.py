"""A short run of what `make mirror-sim` runs for long, and its planted bugs."""

from __future__ import annotations

import pytest

from klammsim.mirror_campaign import MirrorSimulation
from klammsim.mirror_mutations import MIRROR_MUTATIONS

SCHEDULES = 300
MOST_UNTIL_CAUGHT = 200


def test_random_schedules_violate_nothing() -> None:
    outcome = MirrorSimulation.run_seeds(0, SCHEDULES)
    assert outcome.violations == []
    struck = {
        "unclean election at the source",
        "retention at the source",
        "topic created again",
        "election",
        "kill",
        "lose power",
        "cut off",
        "promoted",
        "fall back",
        "adopted",
        "log taken over",
        "epoch raised",
        "coordination away",
        "decided: GAP",
        "decided: DIVERGED",
        "follower truncated",
        "source: cut",
        "source: gap found",
        "source: stopped",
        "source: stale",
        "answer in a term that is over",
        "group's offset copied",
        "client's record",
    }
    assert struck <= set(outcome.counts)


def test_a_seed_gives_the_same_schedule_again() -> None:
    assert MirrorSimulation.run_seeds(7, 1) == MirrorSimulation.run_seeds(7, 1)


@pytest.mark.parametrize("name", MIRROR_MUTATIONS)
def test_a_mutation_is_caught(name: str) -> None:
    assert MirrorSimulation.schedules_until_caught(name, MOST_UNTIL_CAUGHT) is not None
