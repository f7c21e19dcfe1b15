"""A short run of what `make sim` runs for long."""

from __future__ import annotations

import pytest

from klammsim.campaign import ReplicationSimulation, shrink
from klammsim.disk_log import disk_logs
from klammsim.mutations import MUTATIONS
from klammsim.schedule import Schedule, has_disk_logs, plan_of
from klammsim.scripts import SCRIPTS

SHORT_RUN = 250
run_seeds = ReplicationSimulation.run_seeds


def test_random_schedules_violate_nothing() -> None:
    assert sum(map(has_disk_logs, range(SHORT_RUN))) == SHORT_RUN // 50
    outcome = run_seeds(0, SHORT_RUN)
    assert outcome.violations == []
    assert outcome.schedules == SHORT_RUN
    assert outcome.counts["acknowledged"] > 10 * SHORT_RUN
    assert outcome.counts["conditional"] > SHORT_RUN // 2
    assert outcome.counts["elections"] > SHORT_RUN
    assert outcome.counts["truncations"] > 0
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
        "restore",
        "reassign",
        "delete log",
    }
    assert struck <= set(outcome.counts)


@pytest.mark.parametrize("seed", [12, 15])
def test_a_real_log_that_found_a_fault_violates_nothing_any_more(seed: int) -> None:
    """Log starts that fell back at a crash, below the first leader epoch that was kept."""
    with disk_logs() as make_log:
        Schedule(plan_of(seed), make_log).run()


@pytest.mark.parametrize("seed", [3367, 5577, 17322, 20044, 20647, 28476, 40427, 9000419, 9201623, 9202647])
def test_a_schedule_that_found_a_fault_violates_nothing_any_more(seed: int) -> None:
    """A coordination that was restored counted up to a number that a broker still had from before, and took its change;
    a broker did not join beside a leader of the backup that had noticed the restore and was slow to register again;
    after a power loss of all, nobody might be elected without an administrator; a registration was changed in place
    while the broker joined, and a leader that had read it kept taking the disk for full; a late write of a
    process that had ended replaced its successor's report, so that nobody was elected; a member lost its power so often
    before the others were back that it did not count as one; the simulation carried out a write of a process that had
    been killed before the coordination was restored."""
    assert run_seeds(seed, 1).violations == []


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
