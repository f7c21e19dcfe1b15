"""`make sim`: random schedules of the code as it is, then every mutation, which must be caught.

The exit status is 1 on a violation, and on a mutation that is not caught. For a violation the seed is printed, the
command that runs it again, and a minimal set of faults that still leads to it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from klamm.core.errors import KlammError

from .mutations import MUTATIONS
from .schedule import STEPS, Plan, plan_of, run_schedule, schedule_of
from .scripts import SCRIPTS
from .violation import ViolationError

SCHEDULES: Final = 100_000
QUICK_SCHEDULES: Final = 15_000
MOST_UNTIL_CAUGHT: Final = 3_000
QUICK_UNTIL_CAUGHT: Final = 500
_PIECE: Final = 100
_SCHEDULES_UNTIL_COLLECTED: Final = 10


@dataclass(slots=True)
class Outcome:
    """The outcome of the schedules of consecutive seeds."""

    schedules: int = 0
    events: int = 0
    acknowledged: int = 0
    conditional: int = 0
    elections: int = 0
    isr_changes: int = 0
    truncations: int = 0
    refused_writes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        for name in ("schedules", "events", "acknowledged", "conditional", "elections", "isr_changes", "truncations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused_writes += other.refused_writes
        for fault, count in other.faults.items():
            self.faults[fault] = self.faults.get(fault, 0) + count
        self.violations += other.violations


def run_seeds(first: int, count: int, steps: int = STEPS) -> Outcome:
    """Runs `count` schedules from seed `first` on."""
    outcome = Outcome()
    with undisturbed() as ended:
        for seed in range(first, first + count):
            with schedule_of(plan_of(seed, steps)) as schedule:
                try:
                    schedule.run()
                except (ViolationError, KlammError) as violation:
                    outcome.violations.append((seed, f"{type(violation).__name__}: {violation}"))
            counts = schedule.world.counts
            faults = dict(counts.faults)
            outcome.add(
                Outcome(
                    1, counts.events, counts.acknowledged, counts.conditional, counts.elections,
                    counts.isr_changes, counts.truncations,
                    counts.refused_writes, faults,
                )
            )  # fmt: skip
            ended()
    return outcome


@contextmanager
def undisturbed() -> Iterator[Callable[[], None]]:
    """Has no garbage collected but by the yielded function, which is called after each schedule: a schedule leaves
    nothing to collect before its end, when its objects, which refer to each other, all go at once. Brokers log
    nothing meanwhile.
    """
    ended = 0

    def end() -> None:
        nonlocal ended
        ended += 1
        if ended % _SCHEDULES_UNTIL_COLLECTED == 0:
            gc.collect()

    gc.collect()
    gc.freeze()  # what there is now need not be looked at again
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield end
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        gc.unfreeze()


def schedules_until_caught(name: str, most: int, first: int = 0) -> int | None:
    """Returns how many random schedules were run until the mutation was caught, or None if it was not.

    An error that the code raises only with the mutation counts, too.
    """
    with MUTATIONS[name].planted(), undisturbed() as ended:
        for seed in range(first, first + most):
            try:
                run_schedule(seed)
            except (ViolationError, KlammError):
                return seed - first + 1
            ended()
    return None


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


def _pieces(first: int, count: int) -> Iterator[tuple[int, int]]:
    for begin in range(first, first + count, _PIECE):
        yield begin, min(_PIECE, first + count - begin)


def _run_random(first: int, count: int, processes: int) -> Outcome:
    total, begun = Outcome(), time.monotonic()
    with ProcessPoolExecutor(processes) as pool:
        for outcome in pool.map(_run_piece, _pieces(first, count)):
            total.add(outcome)
            if sys.stderr.isatty():
                rate = total.schedules / max(time.monotonic() - begun, 0.001)
                print(f"\r{total.schedules} of {count} schedules, {rate:.0f}/s ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return total


def _run_piece(piece: tuple[int, int]) -> Outcome:
    return run_seeds(*piece)


def _run_mutation(task: tuple[str, int]) -> tuple[str, int | None, bool | None]:
    name, most = task
    return name, schedules_until_caught(name, most), script_catches(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="make sim", description="Schedules of the replication protocol.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SCHEDULES} schedules, mutations up to less")
    parser.add_argument("--schedules", type=int, help="how many, from --seed on")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=["schedules", "mutations"], help="one half")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(arguments)
    count = asked.schedules or (QUICK_SCHEDULES if asked.quick else SCHEDULES)
    failed = False
    if asked.only != "mutations":
        total = _run_random(asked.seed, count, asked.processes)
        print(
            f"schedules {total.schedules} events {total.events} acknowledged {total.acknowledged} "
            f"conditional {total.conditional} elections {total.elections} isr-changes {total.isr_changes} "
            f"truncations {total.truncations} refused-writes {total.refused_writes} violations {len(total.violations)}"
        )
        spent = os.times()
        spent_s = spent.children_user + spent.children_system
        print(f"  {total.schedules / max(spent_s, 0.01):.0f} schedules per CPU second")
        print("  faults " + " ".join(f"{name.replace(' ', '-')} {n}" for name, n in sorted(total.faults.items())))
        for seed, what in total.violations[:5]:
            print(f"seed {seed}: {what}")
            print(f"  needs: {'; '.join(shrink(seed)) or 'no fault'}")
            print(f"  again: make sim SEED={seed} SCHEDULES=1")
        if total.violations[5:]:
            print("seeds of the other violations: " + " ".join(str(seed) for seed, _ in total.violations[5:]))
        failed = bool(total.violations)
    if asked.only != "schedules" and not (asked.schedules and asked.only is None):
        most = QUICK_UNTIL_CAUGHT if asked.quick else MOST_UNTIL_CAUGHT
        with ProcessPoolExecutor(asked.processes) as pool:
            for name, caught, by_script in pool.map(_run_mutation, [(name, most) for name in MUTATIONS]):
                at_random = f"after {caught} schedules" if caught else f"not in {most} schedules"
                script = {True: ", by its script", False: ", NOT BY ITS SCRIPT", None: ""}[by_script]
                covered = MUTATIONS[name].covered
                found = (caught is not None or by_script is True or bool(covered)) and by_script is not False
                verdict = "covered" if covered and caught is None else "caught" if found else "NOT CAUGHT"
                print(f"mutation {name} ({MUTATIONS[name].rule}) {verdict} {at_random}{script}")
                failed = failed or not found
    return 1 if failed else 0
