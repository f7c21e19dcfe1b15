"""The contract of a coordination, on every one that ships and on the simulated one."""

from __future__ import annotations

import pytest

from klamm.testing.contracts import CoordinationContract
from klammtest.zookeeper import CoordinationCase


class TestCoordinations(CoordinationContract):
    @pytest.fixture
    def coordination_case(self, coordination_case: CoordinationCase) -> CoordinationCase:
        """Each in turn (`conftest.py`)."""
        return coordination_case
