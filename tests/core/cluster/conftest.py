"""Brokers of one cluster, on each coordination in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from klammtest.clusters.joined import Joined
from klammtest.zookeeper import CoordinationCase


@pytest.fixture
def join(coordination_case: CoordinationCase) -> Iterator[Joined]:
    joined = Joined(coordination_case)
    yield joined
    joined.close()
