"""The contract of a coordination's sessions, on every one that ships and on the simulated one."""

from __future__ import annotations

import pytest

from klamm.testing.contracts import CoordinationSessionsContract
from klammtest.zookeeper import CoordinationCase


class TestCoordinations(CoordinationSessionsContract):
    @pytest.fixture
    def coordination_case(self, coordination_case: CoordinationCase) -> CoordinationCase:
        """Each in turn (`conftest.py`)."""
        return coordination_case
