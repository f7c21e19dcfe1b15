"""Runs `make sink-sim`: schedules in all processors, then each planted bug until a schedule finds it."""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from .mutations import MUTATIONS
from .schedule import ViolationError, World, run_schedule

SHARE = 250
MOST_SCHEDULES = 4000
"""Schedules in which each planted bug must be found."""


def failures(first: int, count: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Runs the schedules of `count` seeds; returns how many there were of each kind, and those that failed."""
    kinds: Counter[str] = Counter()
    failed = []
    for seed in range(first, first + count):
        kinds[World(seed).kind.value] += 1
        try:
            run_schedule(seed)
        except Exception as error:
            failed.append((seed, f"{type(error).__name__}: {error}"))
    return kinds, failed


def schedules_until_found(name: str, first: int, most: int = MOST_SCHEDULES) -> tuple[int, str] | None:
    """Plants a bug; returns the number of schedules until one of them failed, and how; None if none did."""
    with MUTATIONS[name].planted():
        for number in range(most):
            try:
                run_schedule(first + number)
            except Exception as error:
                return number + 1, f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sink-sim", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", action="store_true", help="only the planted bugs")
    given = parser.parse_args()
    began = time.monotonic()
    wrong = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        if not given.plant:
            kinds: Counter[str] = Counter()
            firsts = range(given.seed, given.seed + given.schedules, SHARE)
            counts = [min(SHARE, given.seed + given.schedules - first) for first in firsts]
            for some, failed in pool.map(failures, firsts, counts):
                kinds += some
                wrong += len(failed)
                for seed, why in failed:
                    print(f"seed {seed}: {why}", flush=True)
            shown = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            print(
                f"{sum(kinds.values())} schedules ({shown}), {wrong} failed, {time.monotonic() - began:.0f} s",
                flush=True,
            )
        for name, found in zip(
            MUTATIONS, pool.map(schedules_until_found, MUTATIONS, [given.seed] * len(MUTATIONS)), strict=True
        ):
            rule = MUTATIONS[name].rule
            if found is None:
                wrong += 1
                print(f"planted {name} (rule {rule}): NOT FOUND in {MOST_SCHEDULES} schedules", flush=True)
            else:
                print(f"planted {name} (rule {rule}): found by schedule {found[0]}: {found[1][:100]}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    raise SystemExit(main())


__all__ = ["ViolationError", "failures", "main", "schedules_until_found"]
