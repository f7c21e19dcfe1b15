"""`make avro-judge`: generated schemas and values, read and written by Klamm's records, columns, Spark tasks and loads,
and by Apache Avro for Java; and as many texts of schemas, good and bad, parsed and printed by both.

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from klammtest.pages.figures import report_failure, report_page

from .cases import Case, make_case
from .comparison import Judged, judge
from .java_avro import JavaAvro, java_avro
from .page import TARGET, write_figures
from .plants import PLANTED_TEXTS, PLANTS, Plant
from .rules import RULES
from .score import Score
from .shrinking import shrink
from .spark_sample import spark_sample, suits
from .texts import judge_texts

CASES: Final = 20_000
QUICK: Final = 2_500
PLANTED: Final = 600
"""Cases in which a planted defect must be found."""
AT_A_TIME: Final = 100
SEED: Final = 29
THROUGH_SPARK: Final = 100
"""Cases of a whole run that go through a broker and Spark."""
_SHOWN: Final = 20
"""Differences that are printed in full."""


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


def run_texts(java: JavaAvro, seed: int, numbers: Sequence[int], score: Score) -> None:
    """Judges the texts of these numbers."""
    for first in range(0, len(numbers), AT_A_TIME):
        for judged in judge_texts(java, seed, numbers[first : first + AT_A_TIME]):
            score.add_text(judged)


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


def lines(score: Score) -> Iterator[str]:
    """Yields what the campaign reports."""
    for title, found in score.coverage():
        yield f"{title}: {', '.join(f'{name} {count}' for name, count in found)}"
    yield f"wanted differences, in cases: {', '.join(f'{name} {score.rules[name]}' for name in RULES)}"


def failure(judged: Judged, smaller: Judged) -> Iterator[str]:
    seed, _, number = judged.case.name.partition("/")
    yield f"case {number} of seed {seed} ({'; '.join(judged.case.changes) or 'no change'})"
    for difference in smaller.unexplained[:3]:
        yield f"  {difference}"
    yield f"  writer {smaller.case.writer_text}"
    yield f"  reader {smaller.case.reader_text}"
    yield f"  values {json.dumps(list(smaller.case.values))}"
    yield f"  replay: make avro-judge SEED={seed} AT={number}"


def through_spark(java: JavaAvro, seed: int, numbers: Sequence[int], wanted: int, score: Score) -> None:
    """Takes `wanted` of the cases through Spark itself."""
    cases = [make_case(seed, number) for number in numbers[: 10 * wanted]]
    suited = [(case, answer) for case, answer in zip(cases, java.ask(map(Case.question, cases)), strict=True)
              if suits(case, answer)]  # fmt: skip
    with spark_sample() as sample:
        for case, answer in suited[:wanted]:
            score.add_checks(sample.judge(case, answer))


def campaign(java: JavaAvro, given: Given, numbers: Sequence[int], say: Callable[[str], None]) -> int:
    began = time.monotonic()
    score = run(java, given.seed, numbers)
    for judged in score.failed[:_SHOWN]:
        for line in failure(judged, smallest(java, judged)):
            say(line)
    run_texts(java, given.seed, numbers, score)
    for text in score.failed_texts[:_SHOWN]:
        say(f"text {text.number} of seed {given.seed}: {text.difference}")
        say(f"  {text.text}")
        say(f"  replay: make avro-judge SEED={given.seed} AT={text.number}")
    if given.spark:
        first = len(score.failed)
        through_spark(java, given.seed, numbers, given.spark, score)
        for judged in score.failed[first:]:
            for line in failure(judged, judged):
                say(line)
    seconds = time.monotonic() - began
    for line in lines(score):
        say(line)
    say(f"{score.summary()}, {seconds:.0f} s")
    if (page := given.report) is not None:
        problem = report_failure(lambda: write_figures(page, score, given.seed, seconds))
        if problem is not None:
            say(problem)
            return 2
    return 1 if score.failed or score.failed_texts else 0


def planted(java: JavaAvro, given: Given, numbers: Sequence[int], say: Callable[[str], None]) -> int:
    """Returns 1 if each planted defect was found, as a campaign with a defect ends, and 3 if not."""
    status = 1
    for plant in PLANTS:
        score = run(java, given.seed, numbers, plant, enough=1)
        say(f"planted: {plant.what}: {'found' if score.failed else 'NOT FOUND'} within {score.cases} cases")
        if not score.failed:
            status = 3
    for name, canonical in PLANTED_TEXTS.items():
        found = any(one.difference and not one.rule for one in judge_texts(java, given.seed, numbers, canonical))
        say(f"planted: {name}: {'found' if found else 'NOT FOUND'} within {len(numbers)} texts")
        if not found:
            status = 3
    return status


class Given(argparse.Namespace):
    cases: int | None
    quick: bool
    seed: int
    at: int | None
    plant: bool
    spark: int | None
    report: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make avro-judge")
    parser.add_argument("--cases", type=int, help=f"{CASES} unless given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases, none through Spark itself")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--at", type=int, help="the one case of this number")
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--spark", type=int, help="cases that go through Spark itself")
    parser.add_argument("--report", type=report_page(TARGET))
    given = parser.parse_args(arguments, namespace=Given())
    whole = given.cases is None and given.at is None and not given.quick and not given.plant
    if given.spark is None:
        given.spark = THROUGH_SPARK if whole else 0
    count = given.cases or (PLANTED if given.plant else QUICK if given.quick else CASES)
    numbers = range(count) if given.at is None else [given.at]

    def say(line: str) -> None:
        print(line, flush=True)

    with java_avro() as java:
        return (planted if given.plant else campaign)(java, given, numbers, say)


if __name__ == "__main__":
    sys.exit(main())
