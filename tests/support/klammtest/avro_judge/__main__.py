"""`make avro-judge`: generated schemas and values, read and written by Klamm's records, columns, Spark tasks and loads,
and by Apache Avro for Java.

Prints how many cases had each type, logical type and change, how many checks there were on each path, and the rules by
which differences are wanted. A difference without a rule is printed with the case in its smallest form and the command
that replays it. The exit status is 1 if there is one. `--plant` plants defects, one after another, each of which must
be found: exit 1 if each was, 3 if one was not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from .cases import Case, make_case
from .comparison import Judged, judge
from .java_avro import JavaAvro, java_avro
from .plants import PLANTS, Plant
from .rules import RULES
from .shrinking import shrink

CASES: Final = 20_000
QUICK: Final = 2_500
PLANTED: Final = 600
"""Cases in which a planted defect must be found."""
AT_A_TIME: Final = 100
SEED: Final = 29
_SHOWN: Final = 20
"""Differences that are printed in full."""


class Score:
    def __init__(self) -> None:
        self.cases = 0
        self.kinds: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.failed: list[Judged] = []

    def add(self, judged: Judged) -> None:
        self.cases += 1
        judged.case.count(self.kinds)
        self.checks.update(judged.checks)
        self.rules.update(judged.rules)
        if judged.unexplained:
            self.failed.append(judged)


def run(
    java: JavaAvro, seed: int, numbers: Sequence[int], plant: Plant | None = None, enough: int | None = None
) -> Score:
    """Judges cases; stops after `enough` that failed."""
    score = Score()
    for first in range(0, len(numbers), AT_A_TIME):
        cases = [make_case(seed, number) for number in numbers[first : first + AT_A_TIME]]
        for judged in judge(java, cases, plant):
            score.add(judged)
        if enough is not None and len(score.failed) >= enough:
            break
    return score


def smallest(java: JavaAvro, judged: Judged) -> Judged:
    """Returns a failed case in its smallest form."""
    path = judged.unexplained[0].path
    found = judged

    def fails(case: Case) -> bool:
        nonlocal found
        (again,) = judge(java, [case])
        if not any(one.path == path for one in again.unexplained):
            return False
        found = again
        return True

    shrink(judged.case, fails)
    return found


def lines(score: Score, seconds: float) -> Iterator[str]:
    """Yields what the campaign reports."""
    for title, prefix in (("types", "type: "), ("unions", "union: "), ("logical types", "logical type: "),
                          ("defaults", "default: "), ("changes", "change: ")):  # fmt: skip
        found = sorted((name.removeprefix(prefix), n) for name, n in score.kinds.items() if name.startswith(prefix))
        yield f"{title}: " + ", ".join(f"{name} {count}" for name, count in found)
    yield "checks: " + ", ".join(f"{name} {count}" for name, count in sorted(score.checks.items()))
    yield "wanted differences, in cases: " + ", ".join(f"{name} {score.rules[name]}" for name in RULES)
    checks = sum(score.checks.values())
    yield f"{score.cases} cases, {checks} checks, {len(score.failed)} cases with other differences, {seconds:.0f} s"


def failure(judged: Judged, smaller: Judged) -> Iterator[str]:
    seed, _, number = judged.case.name.partition("/")
    yield f"case {number} of seed {seed} ({'; '.join(judged.case.changes) or 'no change'})"
    for difference in smaller.unexplained[:3]:
        yield f"  {difference}"
    yield f"  writer {smaller.case.writer_text}"
    yield f"  reader {smaller.case.reader_text}"
    yield f"  values {json.dumps(list(smaller.case.values))}"
    yield f"  replay: make avro-judge SEED={seed} AT={number}"


def campaign(java: JavaAvro, seed: int, numbers: Sequence[int], say: Callable[[str], None]) -> int:
    began = time.monotonic()
    score = run(java, seed, numbers)
    for judged in score.failed[:_SHOWN]:
        for line in failure(judged, smallest(java, judged)):
            say(line)
    for line in lines(score, time.monotonic() - began):
        say(line)
    return 1 if score.failed else 0


def planted(java: JavaAvro, seed: int, numbers: Sequence[int], say: Callable[[str], None]) -> int:
    """Returns 1 if each planted defect was found, as a campaign with a defect ends, and 3 if not."""
    status = 1
    for plant in PLANTS:
        score = run(java, seed, numbers, plant, enough=1)
        say(f"planted: {plant.what}: {'found' if score.failed else 'NOT FOUND'} within {score.cases} cases")
        if not score.failed:
            status = 3
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make avro-judge")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--at", type=int, help="one case")
    parser.add_argument("--plant", action="store_true")
    given = parser.parse_args(arguments)
    count = given.cases or (PLANTED if given.plant else QUICK if given.quick else CASES)
    numbers = range(count) if given.at is None else [given.at]

    def say(line: str) -> None:
        print(line, flush=True)

    with java_avro() as java:
        return (planted if given.plant else campaign)(java, given.seed, numbers, say)


if __name__ == "__main__":
    sys.exit(main())
