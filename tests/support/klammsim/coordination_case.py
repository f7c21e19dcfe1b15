"""Runs the contract suite on the simulated coordination."""

from __future__ import annotations

import time

from klamm.core.interfaces.coordination import Coordination
from klammtest.made_coordinations import MadeCoordinations

from .coordination import SimCoordination, SimTree


class SimulatedCase(MadeCoordinations[SimCoordination]):
    """A `klammtest.zookeeper.CoordinationCase` on a tree of its own."""

    name = "simulated"

    def __init__(self) -> None:
        self._tree = SimTree(lambda: int(time.time() * 1000))
        super().__init__()

    def make(self, session_timeout_ms: int = 10_000) -> SimCoordination:
        self.made.append(SimCoordination(self._tree, session_timeout_ms / 1000))
        return self.made[-1]

    def section(self) -> dict[str, str]:
        raise NotImplementedError("no broker runs on the simulated coordination")

    def expire(self, coordination: Coordination) -> None:
        self._tree.expire(coordination.session_id)
