"""`make sim`: random schedules of the code as it is, then every mutation, which must be caught.

For a violation a minimal set of faults that still leads to it is printed, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from klamm.core.errors import KlammError

from .mutations import MUTATIONS
from .runner import Simulation
from .schedule import STEPS, Plan, plan_of, run_schedule, schedule_of
from .scripts import SCRIPTS
from .violation import ViolationError


class ReplicationSimulation(Simulation):
    command = "make sim"
    mutations = MUTATIONS
    quick_schedules, most_until_caught, quick_until_caught = 15_000, 3_000, 500

    @classmethod
    def run(cls, seed: int) -> Counter[str]:
        with schedule_of(plan_of(seed)) as schedule:
            return schedule.run()

    @classmethod
    def run_with_mutation(cls, seed: int) -> None:
        run_schedule(seed)

    @classmethod
    def details(cls, seed: int) -> Iterator[str]:
        yield f"needs: {'; '.join(shrink(seed)) or 'no fault'}"

    @classmethod
    def verdict(cls, name: str, most: int) -> tuple[bool, str]:
        """A mutation that has a script must be caught by it; any other by the schedules, unless it is covered."""
        caught, by_script = cls.schedules_until_caught(name, most), script_catches(name)
        covered = MUTATIONS[name].covered
        at_random = f"after {caught} schedules" if caught else f"not in {most} schedules"
        script = {True: ", by its script", False: ", NOT BY ITS SCRIPT", None: ""}[by_script]
        found = (caught is not None or by_script is True or bool(covered)) and by_script is not False
        verdict = "covered" if covered and caught is None else "caught" if found else "NOT CAUGHT"
        return found, f"{verdict} {at_random}{script}"


def script_catches(name: str) -> bool | None:
    """Returns True if the mutation's own script ends in a violation; None if it has no script."""
    if name not in SCRIPTS:
        return None
    with MUTATIONS[name].planted():
        try:
            SCRIPTS[name]()
        except ViolationError:
            return True
    return False


def shrink(seed: int, steps: int = STEPS) -> list[str]:
    """Returns the faults of the seed's schedule that a violation needs, found by leaving out one after the other."""
    skipped: frozenset[int] = frozenset()
    faults = needed = _faults_of_violation(plan_of(seed, steps))
    if faults is None or needed is None:
        return []
    for number in range(len(faults)):
        attempt = _faults_of_violation(plan_of(seed, steps, skipped | {number}))
        if attempt is not None:
            skipped, needed = skipped | {number}, attempt
    return [fault for number, fault in enumerate(needed) if number not in skipped]


def _faults_of_violation(plan: Plan) -> list[str] | None:
    """Returns the faults of the plan's schedule; None if nothing is violated."""
    with schedule_of(plan) as schedule:
        try:
            schedule.run()
        except (ViolationError, KlammError):
            return schedule.faults
    return None
