"""The short run of `make avro-judge`, and its page."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klammtest.avro_judge.__main__ import failure, run, smallest
from klammtest.avro_judge.cases import make_case
from klammtest.avro_judge.comparison import judge
from klammtest.avro_judge.java_avro import JavaAvro, java_avro
from klammtest.avro_judge.page import rules_in
from klammtest.avro_judge.plants import PLANTED_TEXTS, PLANTS, Plant
from klammtest.avro_judge.rules import RULES
from klammtest.avro_judge.shrinking import shrink
from klammtest.avro_judge.texts import judge_texts
from klammtest.hadoop.hdfs import NO_HDFS

PAGE = Path(__file__).parents[3] / "docs" / "schemas.md"
CASES = 150
TEXTS = 600


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAvro]:
    if os.environ.get(NO_HDFS) == "1":
        pytest.skip(f"{NO_HDFS}=1: no Maven here")
    with java_avro() as made:
        yield made


def test_klamm_does_as_javas_avro_but_for_wanted_differences(java: JavaAvro) -> None:
    score = run(java, 1, range(CASES))
    assert not [line for judged in score.failed for line in failure(judged, smallest(java, judged))]
    assert len(score.checks) == 11
    assert min(score.checks.values()) > CASES // 2


def test_klamm_accepts_and_prints_the_texts_that_javas_avro_does(java: JavaAvro) -> None:
    judged = judge_texts(java, 1, range(TEXTS))
    assert not [f"{one.difference}: {one.text}" for one in judged if one.difference and not one.rule]
    assert min(Counter(one.accepted for one in judged).values()) > TEXTS // 4


@pytest.mark.parametrize("canonical", PLANTED_TEXTS.values(), ids=PLANTED_TEXTS)
def test_a_planted_change_of_a_text_is_found(java: JavaAvro, canonical: Callable[[str], str]) -> None:
    assert any(one.difference and not one.rule for one in judge_texts(java, 2, range(200), canonical))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.what)
def test_a_planted_defect_is_found(java: JavaAvro, plant: Plant) -> None:
    assert run(java, 2, range(600), plant, enough=1).failed


def test_a_case_is_made_from_its_number_alone() -> None:
    assert make_case(3, 14) == make_case(3, 14)
    assert make_case(3, 14) != make_case(3, 15)


def test_a_case_that_fails_is_made_smaller(java: JavaAvro) -> None:
    plant = PLANTS[-1]
    found = run(java, 2, range(600), plant, enough=1).failed[0]
    smaller = shrink(found.case, lambda case: bool(judge(java, [case], plant)[0].unexplained))
    assert len(smaller.values) == 1
    assert judge(java, [smaller], plant)[0].unexplained


def test_the_page_has_each_wanted_difference() -> None:
    assert rules_in(PAGE) == RULES
