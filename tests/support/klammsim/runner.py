"""Runs a simulation: random schedules, then every planted bug, which they must catch.

A schedule is a function of its seed. The exit status is 1 on a violation, of which the seed is printed, and on a
planted bug that is not caught.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import ClassVar, Final
from unittest.mock import patch

from klamm.core.errors import KlammError

from .violation import ViolationError

_PIECE: Final = 100
_SCHEDULES_UNTIL_COLLECTED: Final = 10

Patch = tuple[object, str, object]


@contextmanager
def planted(patches: Iterable[Patch]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.enter_context(patch.object(owner, name, replacement))
        yield


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug: functions or methods of the production code that are replaced. `rule` is its number in the page of
    the protocol.
    """

    name: str
    rule: str
    what: str
    patches: tuple[Patch, ...]
    covered: str = ""
    """Why no schedule can catch it, if none can: what else keeps the records safe."""

    def planted(self) -> AbstractContextManager[None]:
        return planted(self.patches)


@dataclass(slots=True)
class Outcome:
    """The outcome of the schedules of consecutive seeds; `counts`: how often each event and fault has occurred."""

    schedules: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.schedules += other.schedules
        self.counts.update(other.counts)
        self.violations += other.violations


class Simulation(ABC):
    """A subclass is not instantiated: the processes of a pool find its methods by name."""

    command: ClassVar[str]
    mutations: ClassVar[Mapping[str, Mutation]]
    schedules: ClassVar[int] = 100_000
    quick_schedules: ClassVar[int] = 5_000
    most_until_caught: ClassVar[int] = 2_000
    quick_until_caught: ClassVar[int] = 2_000
    violations: ClassVar[tuple[type[Exception], ...]] = (ViolationError, KlammError)
    """Errors of a schedule that are violations. A planted bug may make the production code raise."""

    @classmethod
    @abstractmethod
    def run(cls, seed: int) -> Mapping[str, int]:
        """Runs the schedule of a seed; returns what has occurred. Raises one of `violations`."""

    @classmethod
    def run_with_mutation(cls, seed: int) -> None:
        cls.run(seed)

    @classmethod
    def details(cls, seed: int) -> Iterator[str]:
        """Yields further lines about a violation."""
        yield from ()

    @classmethod
    def verdict(cls, name: str, most: int) -> tuple[bool, str]:
        """Returns whether a planted bug is caught by up to `most` schedules, and the text."""
        caught = cls.schedules_until_caught(name, most)
        return bool(caught), f"caught after {caught} schedules" if caught else f"NOT CAUGHT in {most} schedules"

    @classmethod
    def run_seeds(cls, first: int, count: int) -> Outcome:
        """Runs `count` schedules from seed `first` on."""
        outcome = Outcome(count)
        with undisturbed() as ended:
            for seed in range(first, first + count):
                try:
                    outcome.counts.update(cls.run(seed))
                except cls.violations as violation:
                    outcome.violations.append((seed, f"{type(violation).__name__}: {violation}"))
                ended()
        return outcome

    @classmethod
    def schedules_until_caught(cls, name: str, most: int, first: int = 0) -> int | None:
        """Returns how many schedules were run until the mutation was caught, None if it was not."""
        with cls.mutations[name].planted(), undisturbed() as ended:
            for seed in range(first, first + most):
                try:
                    cls.run_with_mutation(seed)
                except cls.violations:
                    return seed - first + 1
                ended()
        return None

    @classmethod
    def main(cls, arguments: Sequence[str] | None = None) -> int:
        """Returns the exit status."""
        parser = argparse.ArgumentParser(prog=cls.command, description="Random schedules, and bugs that they must find")
        parser.add_argument("--quick", action="store_true", help=f"{cls.quick_schedules} schedules")
        parser.add_argument("--schedules", type=int, help="how many, from --seed on")
        parser.add_argument("--seed", type=int, default=0, help="the first seed")
        parser.add_argument("--only", choices=["schedules", "mutations"], help="one half")
        parser.add_argument("--processes", type=int, default=os.cpu_count())
        asked = parser.parse_args(arguments)
        count = asked.schedules or (cls.quick_schedules if asked.quick else cls.schedules)
        most = cls.quick_until_caught if asked.quick else cls.most_until_caught
        passed = True
        with ProcessPoolExecutor(asked.processes) as pool:
            if asked.only != "mutations":
                passed = cls._run_schedules(pool, asked.seed, count)
            if asked.only == "mutations" or (asked.only is None and not asked.schedules):
                verdicts = pool.map(cls.verdict, cls.mutations, repeat(most))
                for mutation, (caught, text) in zip(cls.mutations.values(), verdicts, strict=True):
                    print(f"mutation {mutation.name} ({mutation.rule}) {text}", flush=True)
                    passed = passed and caught
        return 0 if passed else 1

    @classmethod
    def _run_schedules(cls, pool: Executor, first: int, count: int) -> bool:
        total, start = Outcome(), time.monotonic()
        firsts = range(first, first + count, _PIECE)
        for outcome in pool.map(cls.run_seeds, firsts, [min(_PIECE, first + count - one) for one in firsts]):
            total.add(outcome)
        print(
            f"schedules {total.schedules} violations {len(total.violations)} seconds {time.monotonic() - start:.0f}\n"
            "  counts " + " ".join(f"{what.replace(' ', '-')} {n}" for what, n in sorted(total.counts.items())),
            flush=True,
        )
        for seed, what in total.violations[:5]:
            with undisturbed():
                lines = list(cls.details(seed))
            print("\n  ".join([f"seed {seed}: {what}", *lines]))
            print(f"  again: {cls.command} SEED={seed} SCHEDULES=1", flush=True)
        if total.violations[5:]:
            print("seeds of the other violations: " + " ".join(str(seed) for seed, _ in total.violations[5:]))
        return not total.violations


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
