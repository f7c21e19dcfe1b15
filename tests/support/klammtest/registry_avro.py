"""`make registry-avro-pairs`: the registry's Avro beside the `AvroSchema` of Confluent's registry, generated schemas.

A case is a pair of schemas, the older one first, and a text of a schema, good or bad (those of `make avro-judge`).
Compared are, of each of the three texts, whether it may be registered, its canonical and its normalized text; of each
pair the whole report by BACKWARD, FORWARD and FULL: kinds, texts, paths and order.
Confluent's classes are those of its 7.5 line with Avro 1.11, which Flink's connector bundles.

A difference without a rule is printed with the texts and the command that replays it. The exit status is 1 if there is
one. `--plant` plants defects, one after another, each of which must be found: exit 1 if each was, 3 if one was not.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.core.errors import SchemaError
from klamm.schemas.avro.model import NAME
from klamm.schemas.comparing import OldVersion, Requirement, messages
from klamm.schemas.compatibility import Compatibility
from klamm.schemas.formats import AvroText
from klamm.schemas.names import AVRO

from .avro_judge import rules
from .avro_judge.cases import Case, make_case
from .avro_judge.java_avro import JavaAvro, java_avro
from .avro_judge.klamm_avro import Refused
from .avro_judge.plants import PLANTED_TEXTS, PLANTS
from .avro_judge.texts import make_text
from .confluent_java import JARS, JUDGE

CASES: Final = 10_000
QUICK: Final = 1_000
PLANTED: Final = 300
AT_A_TIME: Final = 100
SEED: Final = 32
_SHOWN: Final = 20
LEVELS: Final = (Compatibility.BACKWARD, Compatibility.FORWARD, Compatibility.FULL)
_TRAILER: Final = re.compile(r"\{(oldSchemaVersion|oldSchema|validateFields|compatibility): ")
"""What follows the differences: Confluent's older line has it in other words."""

MEANINGS: Final = "logical types"
TWINS: Final = "two records of one short name"
ENUMS: Final = "a field of an enum with a default"
ALIASES: Final = "several fields by their aliases"
NEWER: Final = "logical types of Avro 1.12"
BRANCHES: Final = "defaults of later branches"
AHEAD: Final = "names before their definition"
AGAIN: Final = "defined again"
FAILS: Final = "no normalized text"
DIGITS: Final = "digits of a float"
DEFAULTS: Final = "defaults that do not fit"
NAMES: Final = "names beyond ASCII"
SPACES: Final = "namespaces"
OTHER: Final = "text beyond bytes"
TWICE: Final = "defined twice"
RULES: Final = {
    MEANINGS: "Data that would mean something else is incompatible for Klamm: decimals of another scale or of fewer"
    " digits, a date as a time. Confluent does not compare logical types.",
    TWINS: "A union of the reader with two records of one short name: Klamm takes the one with the writer's full name,"
    " as its readers do; Confluent any that fits.",
    ENUMS: "A field that is missing in the data and is an enum with a default: both refuse; Klamm by"
    " READER_FIELD_MISSING_DEFAULT_VALUE, Confluent by a TYPE_MISMATCH of the enum and the record.",
    ALIASES: "A field whose name and alias are both in the data: Klamm takes the name; Confluent's check ends with an"
    " exception, which counts as incompatible.",
    NEWER: "`timestamp-nanos`, `local-timestamp-nanos` and `duration` of Avro 1.12 come before the other properties,"
    " as all logical types do; Avro 1.11 does not know them, and takes a `uuid` of any type.",
    BRANCHES: "A union's default that fits a branch after the first: Avro 1.12 and Klamm accept it, 1.11 does not.",
    AHEAD: "A name that stands before its definition: Avro 1.12 and Klamm accept it, 1.11 does not.",
    AGAIN: "A type that is defined again in the same words: Avro 1.12 and Klamm accept it, 1.11 does not.",
    FAILS: "Confluent's normalization ends with an exception: a record's default with a name that is no field, an empty"
    " union. Klamm has a text.",
    DIGITS: "Java before 19 writes some `float` with more digits than needed; Klamm the fewest, as later ones do.",
    DEFAULTS: "A default that is no symbol of its enum, not of the size of its fixed, no bytes, or beyond a `float`:"
    " Klamm refuses the schema.",
    NAMES: "Names with letters beyond ASCII: Klamm refuses the schema.",
    SPACES: "A namespace with a part that is no name: Avro 1.12 and Klamm refuse the schema, 1.11 does not.",
    OTHER: "A default whose text is beyond U+00FF, in a union of `bytes` and then `string`: Klamm takes the branch that"
    " fits; Java the first for text, and writes `?`.",
    TWICE: "A name that is defined twice in words that mean the same: Klamm refuses the schema.",
}
"""Why Klamm's answer is another one; docs/registry-formats.md has them too."""
_OF_JUDGE: Final = {rules.DEFAULTS: DEFAULTS, rules.ASCII: NAMES, rules.TWICE: TWICE}


@dataclass(frozen=True, slots=True)
class Finding:
    """`rule` is None where the difference is not wanted."""

    what: str
    klamm: Any
    confluent: Any
    texts: tuple[str, ...]
    rule: str | None


@dataclass
class Score:
    same: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, Finding]] = field(default_factory=list)

    def add(self, number: int, found: Finding | str) -> None:
        """`found` is the name of what was the same, or the difference."""
        if isinstance(found, str):
            self.same[found] += 1
        elif found.rule is not None:
            self.rules[found.rule] += 1
        else:
            self.failed.append((number, found))


@dataclass(frozen=True)
class Plant:
    """A defect: `canonical` prints a text in Klamm's place, `normalized` changes Klamm's normalized text, `update` the
    text of the reader in a comparison."""

    what: str
    canonical: Callable[[str], str] | None = None
    normalized: Callable[[str, str], str] = lambda text, normalized: normalized
    update: Callable[[str], str] = str


_FOUND_BY_CHECK: Final = ("aliases are ignored", "enum defaults are ignored")
PLANTED_DEFECTS: Final = (
    *(Plant(plant.what, update=plant.reader) for plant in PLANTS if plant.what in _FOUND_BY_CHECK),
    *(Plant(what, canonical=canonical) for what, canonical in PLANTED_TEXTS.items()),
    Plant("a normalized text is the canonical one", normalized=lambda text, _: AvroText(text, (), True).canonical),
)
_NONE: Final = Plant("")


def judged(
    java: JavaAvro, seed: int, numbers: Sequence[int], plant: Plant = _NONE
) -> Iterator[tuple[int, Finding | str]]:
    """Yields the number of a case with what is the same, or a difference."""
    cases = [make_case(seed, number) for number in numbers]
    texts = [make_text(seed, number) for number in numbers]
    questions = [*([case.writer_text, case.reader_text] for case in cases), *([text] for text in texts)]
    answers = java.ask({"texts": question} for question in questions)
    for number, case, answer in zip(numbers, cases, answers, strict=False):
        for found in _of_pair(case, answer, plant):
            yield number, found
    for number, text, answer in zip(numbers, texts, answers[len(cases) :], strict=True):
        for found in _of_text(text, answer["texts"][0], plant):
            yield number, found


def _of_pair(case: Case, answer: dict[str, Any], plant: Plant) -> Iterator[Finding | str]:
    both = (case.writer_text, case.reader_text)
    for text, found in zip(both, answer["texts"], strict=True):
        yield from _of_text(text, found, plant)
    if "levels" not in answer or any(isinstance(_parsed(text), str) for text in both):
        return
    old, new = both[0], plant.update(both[1])
    try:
        update = AvroText(new, (), False)
    except SchemaError as error:
        yield Finding("pair", str(error), "accepted", both, None)
        return
    for level in LEVELS:
        report = messages(AVRO, update, [OldVersion(1, AVRO, old, {})], Requirement(level))
        ours, theirs = (
            [line for line in lines if not _TRAILER.match(line)] for lines in (report, answer["levels"][level])
        )
        if ours == theirs:
            yield f"{level} {'incompatible' if ours else 'compatible'}"
        else:
            yield Finding(str(level), ours, theirs, both, _rule_of_report(case, ours, theirs))


def _of_text(text: str, answer: dict[str, Any], plant: Plant) -> Iterator[Finding | str]:
    ours, error = _parsed(text), answer.get("error")
    if isinstance(ours, str):
        if error is not None:
            yield "refused"
        else:
            yield Finding("accepted", ours, "accepted", (text,), _rule_of_refusal(ours))
        return
    if error is not None:
        yield Finding("accepted", "accepted", error, (text,), _rule_of_error(error))
        return
    canonical = ours.canonical if plant.canonical is None else plant.canonical(text)
    normalized = plant.normalized(text, ours.normalized)
    for what, mine, theirs in (
        ("canonical", canonical, answer["canonical"]),
        ("normalized", normalized, answer["normalized"]),
    ):
        yield what if mine == theirs else Finding(what, mine, theirs, (text,), _rule_of_text(what, mine, theirs))


def _parsed(text: str) -> AvroText | str:
    """Returns why it is refused if it is."""
    try:
        return AvroText(text, (), True)
    except SchemaError as error:
        return str(error)


def _rule_of_refusal(why: str) -> str | None:
    named = re.search(r"the (?:name|alias) '(.*)' of the \w+: .* is no Avro name", why, re.DOTALL)
    if named is not None and NAME.fullmatch(named[1].rpartition(".")[2]):
        return SPACES
    rule = rules.of_schema(Refused(why, expected=True))
    return None if rule is None else _OF_JUDGE.get(rule)


def _rule_of_error(error: str) -> str | None:
    if re.search(r"Invalid default for field .* not a .*\[", error):
        return BRANCHES
    if "Can't redefine" in error:
        return AGAIN
    return AHEAD if "is not a defined name" in error else None


def _rule_of_text(what: str, ours: str, theirs: str | None) -> str | None:
    if what != "normalized":
        return None
    if theirs is None:
        return FAILS
    if sorted(ours) == sorted(theirs) and re.search(r'"(?:(?:local-)?timestamp-nanos|duration|uuid)"', ours):
        return NEWER
    if re.sub(r"[^\x00-\xff]", "?", ours) == re.sub(r"[^\x00-\xff]", "?", theirs):
        return OTHER
    numbers = re.compile(r"-?\d+\.\d+(?:E-?\d+)?")
    return DIGITS if numbers.sub("0", ours) == numbers.sub("0", theirs) else None


def _rule_of_report(case: Case, ours: list[str], theirs: list[str]) -> str | None:
    if any("matches multiple fields in" in line for line in theirs):
        return ALIASES
    found = []
    enums = [line for line in theirs if "reader type: ENUM not compatible with writer type: RECORD" in line]
    missing = [line for line in ours if "READER_FIELD_MISSING_DEFAULT_VALUE" in line and line not in theirs]
    if enums and len(enums) == len(missing):
        found.append(ENUMS)
        ours, theirs = ([line for line in lines if line not in (*enums, *missing)] for lines in (ours, theirs))
    more = [line for line in ours if line not in theirs and "(path '/')" in line]
    if any("cannot be read as" in line for line in more):
        found.append(MEANINGS)
    if not all("cannot be read as" in line for line in more):
        found.append(TWINS)
        if not any(rules.twins(each) for each in (case.writer, case.reader)):
            return None
    return found[0] if found and [line for line in ours if line not in more] == theirs else None


def run(java: JavaAvro, seed: int, numbers: Sequence[int], plant: Plant = _NONE, enough: int | None = None) -> Score:
    """Judges cases; stops after `enough` differences that are not wanted."""
    score = Score()
    for first in range(0, len(numbers), AT_A_TIME):
        for number, found in judged(java, seed, numbers[first : first + AT_A_TIME], plant):
            score.add(number, found)
        if enough is not None and len(score.failed) >= enough:
            break
    return score


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make registry-avro-pairs")
    parser.add_argument("--cases", type=int, help=f"{CASES} unless given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} cases")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--at", type=int, help="the one case of this number")
    parser.add_argument("--plant", action="store_true")
    given = parser.parse_args(arguments)
    count = given.cases or (PLANTED if given.plant else QUICK if given.quick else CASES)
    numbers = range(count) if given.at is None else range(given.at, given.at + 1)
    with java_avro(JARS, JUDGE) as java:
        if given.plant:
            found = [_planted(java, given.seed, numbers, plant) for plant in PLANTED_DEFECTS]
            return 1 if all(found) else 3
        return _campaign(java, given.seed, numbers)


def _planted(java: JavaAvro, seed: int, numbers: Sequence[int], plant: Plant) -> bool:
    found = bool(run(java, seed, numbers, plant, enough=1).failed)
    print(f"planted: {plant.what}: {'found' if found else 'NOT FOUND'} within {len(numbers)} cases", flush=True)
    return found


def _campaign(java: JavaAvro, seed: int, numbers: Sequence[int]) -> int:
    began = time.monotonic()
    score = run(java, seed, numbers)
    for number, one in score.failed[:_SHOWN]:
        print(f"case {number} of seed {seed}: {one.what}: Klamm {one.klamm}, Confluent {one.confluent}: WRONG")
        for text in one.texts:
            print(f"  {text}")
        print(f"  replay: make registry-avro-pairs SEED={seed} AT={number}")
    print(f"the same: {', '.join(f'{what} {count}' for what, count in sorted(score.same.items()))}")
    print(f"explained: {', '.join(f'{rule} {score.rules[rule]}' for rule in RULES)}")
    checks = sum(score.same.values()) + sum(score.rules.values()) + len(score.failed)
    print(
        f"{len(numbers)} pairs and as many texts, {checks} checks: {sum(score.same.values())} as Confluent's,"
        f" {sum(score.rules.values())} explained, {len(score.failed)} WRONG, {time.monotonic() - began:.0f} s"
    )
    return int(bool(score.failed) or not score.same)


if __name__ == "__main__":
    sys.exit(main())
