"""The contract of the coordination holds for the simulated one too; brokers run on the others only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klammsim.coordination_case import SimulatedCase
from klammtest.zookeeper import CoordinationCase, EmbeddedCase, ZooKeeperCase


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each coordination in turn."""
    if "coordination_case" in metafunc.fixturenames:
        of_coordination = metafunc.definition.path.name.startswith("test_coordination")
        names = ["embedded", "zookeeper", *(["simulated"] if of_coordination else [])]
        metafunc.parametrize("coordination_case", names, indirect=True)


@pytest.fixture
def coordination_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CoordinationCase]:
    """Made by the name that `pytest_generate_tests` gives."""
    case: CoordinationCase
    if request.param == "embedded":
        case = EmbeddedCase(tmp_path)
    elif request.param == "zookeeper":
        case = ZooKeeperCase(request.getfixturevalue("zookeeper_server"))
    else:
        case = SimulatedCase()
    yield case
    case.close()
