"""Contracts of the coordination hold for the simulated one too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from klammsim.coordination_case import SimulatedCase
from klammtest.zookeeper import CoordinationCase, EmbeddedCase, ZooKeeperCase


@pytest.fixture(params=["embedded", "zookeeper", "simulated"])
def coordination_case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CoordinationCase]:
    """Each coordination in turn."""
    case: CoordinationCase
    if request.param == "embedded":
        case = EmbeddedCase(tmp_path)
    elif request.param == "zookeeper":
        case = ZooKeeperCase(request.getfixturevalue("zookeeper_server"))
    else:
        case = SimulatedCase()
    yield case
    case.close()
