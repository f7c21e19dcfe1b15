"""`make mirror-sim`: random schedules of a mirrored partition, then every mutation, which they must catch.

The exit status is 1 on a violation, and on a mutation that is not caught.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from klamm.core.errors import KlammError

from .mirror_mutations import MIRROR_MUTATIONS
from .mirror_world import STEPS, World, adopt, fall_back
from .violation import ViolationError

SCHEDULES: Final = 100_000
QUICK_SCHEDULES: Final = 5_000
MOST_UNTIL_CAUGHT: Final = 2_000
_PIECE: Final = 250


@dataclass(slots=True)
class MirrorOutcome:
    """The outcome of the schedules of consecutive seeds."""

    schedules: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: MirrorOutcome) -> None:
        self.schedules += other.schedules
        self.steps += other.steps
        self.counts.update(other.counts)
        self.violations += other.violations


def run_schedule(seed: int) -> Counter[str]:
    """Runs the schedule of a seed, and the way back if the mirror was promoted. Raises `ViolationError`."""
    world = World(seed)
    world.run()
    counts = Counter(world.counts)
    if not world.cluster.state.mirror:
        adopts = world.random.random() < 0.5 and not world.source.recreated
        back = adopt(world, seed) if adopts else fall_back(world, seed)
        back.run()
        counts.update(back.counts)
        counts["adopted" if adopts else "fall back"] += 1
    return counts


def run_seeds(first: int, count: int) -> MirrorOutcome:
    """Runs `count` schedules from seed `first` on."""
    outcome = MirrorOutcome(schedules=count, steps=count * STEPS)
    logging.disable(logging.CRITICAL)
    try:
        for seed in range(first, first + count):
            try:
                outcome.counts.update(run_schedule(seed))
            except (ViolationError, KlammError) as violation:
                outcome.violations.append((seed, f"{type(violation).__name__}: {violation}"))
    finally:
        logging.disable(logging.NOTSET)
    return outcome


def schedules_until_caught(name: str, most: int = MOST_UNTIL_CAUGHT, first: int = 0) -> int | None:
    """Returns how many schedules were run until the mutation was caught, None if it was not."""
    with MIRROR_MUTATIONS[name].planted():
        for seed in range(first, first + most):
            try:
                run_schedule(seed)
            except (ViolationError, KlammError, AssertionError):
                return seed - first + 1
    return None


def _piece(piece: tuple[int, int]) -> MirrorOutcome:
    return run_seeds(*piece)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="make mirror-sim", description="Schedules of a mirrored partition.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SCHEDULES} schedules")
    parser.add_argument("--schedules", type=int, help="how many, from --seed on")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=["schedules", "mutations"], help="one half")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args(arguments)
    count = asked.schedules or (QUICK_SCHEDULES if asked.quick else SCHEDULES)
    failed = False
    with ProcessPoolExecutor(asked.processes) as pool:
        if asked.only != "mutations":
            total, begun = MirrorOutcome(), time.monotonic()
            ends = range(asked.seed, asked.seed + count, _PIECE)
            pieces = [(first, min(_PIECE, asked.seed + count - first)) for first in ends]
            for outcome in pool.map(_piece, pieces):
                total.add(outcome)
            print(
                f"schedules {total.schedules} steps {total.steps} violations {len(total.violations)} "
                f"seconds {time.monotonic() - begun:.0f}"
            )
            print("  events " + " ".join(f"{what.replace(' ', '-')} {n}" for what, n in sorted(total.counts.items())))
            for seed, what in total.violations[:5]:
                print(f"seed {seed}: {what}")
                print(f"  again: make mirror-sim SEED={seed} SCHEDULES=1")
            failed = bool(total.violations)
        if asked.only == "mutations" or (asked.only is None and not asked.schedules):
            for name, caught in zip(MIRROR_MUTATIONS, pool.map(schedules_until_caught, MIRROR_MUTATIONS), strict=True):
                verdict = f"caught after {caught} schedules" if caught else f"NOT CAUGHT in {MOST_UNTIL_CAUGHT}"
                print(f"mutation {name} ({MIRROR_MUTATIONS[name].rule}) {verdict}")
                failed = failed or caught is None
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
