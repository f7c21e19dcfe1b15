"""`make mirror-sim`: random schedules of a mirrored partition, then every mutation, which they must catch."""

from __future__ import annotations

from collections import Counter

from klamm.core.errors import KlammError

from .mirror_mutations import MIRROR_MUTATIONS
from .mirror_world import World, adopt, fall_back
from .runner import Simulation
from .violation import ViolationError


class MirrorSimulation(Simulation):
    command = "make mirror-sim"
    mutations = MIRROR_MUTATIONS
    violations = (ViolationError, KlammError, AssertionError)

    @classmethod
    def run(cls, seed: int) -> Counter[str]:
        """Runs the schedule of a seed, and the way back if the mirror was promoted."""
        world = World(seed)
        world.run()
        counts = Counter(world.counts)
        if not world.cluster.state.mirror:
            adopts = world.random.random() < 0.5 and not world.source.recreated
            back = adopt(world, seed) if adopts else fall_back(world, seed)
            back.run()
            counts.update(back.counts)
            counts["adopted" if adopts else "fall back"] += 1
        return counts


if __name__ == "__main__":
    raise SystemExit(MirrorSimulation.main())
