"""The short run of `make registry-avro-pairs`; and its explained differences are in the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from klammtest.avro_judge.java_avro import JavaAvro, java_avro
from klammtest.confluent_java import JARS, JUDGE
from klammtest.hadoop.hdfs import NO_HDFS
from klammtest.registry_avro import PLANTED_DEFECTS, RULES, Plant, run

PAGE = Path(__file__).parents[2] / "docs" / "registry-formats.md"
CASES = 100


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAvro]:
    if os.environ.get(NO_HDFS) == "1":
        pytest.skip(f"{NO_HDFS}=1: no Maven here")
    with java_avro(JARS, JUDGE) as made:
        yield made


def test_the_registry_does_as_confluents_but_for_explained_differences(java: JavaAvro) -> None:
    score = run(java, 1, range(CASES))
    assert score.failed == []
    assert {"canonical", "normalized", "refused", "BACKWARD compatible", "FULL incompatible"} <= set(score.same)


@pytest.mark.parametrize("plant", PLANTED_DEFECTS, ids=lambda plant: plant.what)
def test_a_planted_defect_is_found(java: JavaAvro, plant: Plant) -> None:
    assert run(java, 2, range(300), plant, enough=1).failed


def test_the_explained_differences_are_in_the_page() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [rule for rule, reason in RULES.items() if f"| {rule} | {reason} |" not in page] == []
