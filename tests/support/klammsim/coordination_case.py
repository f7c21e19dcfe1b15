"""Runs the contract suite on the simulated coordination."""

from __future__ import annotations

import time

from klamm.core.interfaces.coordination import Coordination

from .coordination import SimCoordination, SimTree


class SimulatedCase:
    """A `klammtest.zookeeper.CoordinationCase` on a tree of its own."""

    name = "simulated"

    def __init__(self) -> None:
        self._tree = SimTree(lambda: int(time.time() * 1000))
        self._made: list[SimCoordination] = []

    def make(self, session_timeout_ms: int = 10_000) -> SimCoordination:
        self._made.append(SimCoordination(self._tree, session_timeout_ms / 1000))
        return self._made[-1]

    def open(self, session_timeout_ms: int = 10_000) -> SimCoordination:
        made = self.make(session_timeout_ms)
        made.start()
        return made

    def section(self) -> dict[str, str]:
        raise NotImplementedError("no broker runs on the simulated coordination")

    def expire(self, coordination: Coordination) -> None:
        self._tree.expire(coordination.session_id)

    def close(self) -> None:
        for made in self._made:
            made.close()
