"""One driver with one Spark meets one fault after another: what is killed is the servers and the workers, never it."""

from __future__ import annotations

import random

from harness import Result, Run
from load_campaigns import datanode_killed, namenode_killed, reading
from loading import LOST, Inject, Scene, campaign

FAULTS: tuple[Inject, ...] = (
    namenode_killed.kill_one,
    datanode_killed.kill_one,
    reading.kill_worker,
    reading.kill_broker,
)


class Mixed:
    name = "load-mixed"
    injects = "to one driver that lives on: NameNode, DataNode, Python worker and broker killed in turn, each as above"
    asserts = reading.NEXT_RUN
    plants = "a data file of the newest load is deleted"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, _one, plant=LOST, quick=len(FAULTS))


def _one(at: int, chance: random.Random, scene: Scene) -> None:
    FAULTS[at % len(FAULTS)](at // len(FAULTS), chance, scene)


CAMPAIGNS = [Mixed()]
