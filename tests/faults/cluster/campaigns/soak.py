"""All nemeses, one after the other in random order, on one cluster for as long as is wanted."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator

from cluster import plants
from cluster.campaigns import bad_network, coordination, cuts, disks, kills, moves
from cluster.lives import MOST_PROBLEMS
from cluster.scene import ASSERTED, ClusterCampaign, Site, scene_on
from harness import Result, Run, heard

A_LIFE = 8
"""Injections that share a topic."""
QUICK_S, FULL_S = 60.0, 8 * 3600.0
SITE = Site(
    size=4,
    namespaces=True,
    weather=True,
    disks=True,
    clocks=True,
    own_coordination=True,
    topic={**disks.HELD_BACK, **coordination.TWO_DAYS},
)
NEMESES: list[ClusterCampaign] = [
    campaign
    for module in (bad_network, coordination, cuts, disks, kills, moves)
    for campaign in module.CAMPAIGNS
    if campaign.site.coordination == SITE.coordination and not campaign.site.java
]


class Soak:
    name = "soak"
    injects = f"all of these in random order, on one cluster of four brokers: {', '.join(n.name for n in NEMESES)}"
    asserts = ASSERTED
    plants = plants.LOST
    tools = SITE.tools

    def run(self, run: Run) -> Result:
        total = Result(wanted=1)
        end = time.monotonic() + (run.soak_s or (QUICK_S if run.quick else FULL_S))
        order = _order(run)
        with heard("klammtest") as warnings, scene_on(SITE, run, total) as scene:
            number = 0
            while True:
                life = list(itertools.islice(order, A_LIFE))
                with scene.life(number, f"{life[0][1]}-", plants.cut_everywhere if run.plant else None):
                    for nemesis, at, chance in life:
                        scene.undergo(at, chance, nemesis.inject)
                        total.count(nemesis.name)
                        if time.monotonic() > end:
                            break
                if time.monotonic() > end or run.plant or total.problem_count > MOST_PROBLEMS:
                    scene.keep_evidence(warnings)
                    return total
                number += 1


def _order(run: Run) -> Iterator[tuple[ClusterCampaign, int, random.Random]]:
    """Yields nemesis, number and randomness of each injection: all nemeses, again and again, each time in another
    order. With `run.only` that injection alone, again and again.
    """
    for at in itertools.count() if run.only is None else itertools.repeat(run.only):
        round_, place = divmod(at, len(NEMESES))
        order = run.chance(f"round {round_}").sample(NEMESES, len(NEMESES))
        yield order[place], at, run.chance(at)


CAMPAIGNS = [Soak()]
