"""Runs `make sink-sim`."""

from __future__ import annotations

from collections import Counter

from klammsim.runner import Simulation

from .mutations import MUTATIONS
from .schedule import World


class SinkSimulation(Simulation):
    command = "make sink-sim"
    mutations = MUTATIONS
    most_until_caught = quick_until_caught = 4_000
    violations = (Exception,)

    @classmethod
    def run(cls, seed: int) -> Counter[str]:
        world = World(seed)
        world.run()
        return Counter([world.kind.value])


if __name__ == "__main__":
    raise SystemExit(SinkSimulation.main())


__all__ = ["SinkSimulation"]
