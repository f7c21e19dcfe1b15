"""One driver with one Spark meets one fault after another: servers and workers are killed, never the driver."""

from __future__ import annotations

import random

from harness import Result, Run
from loads.campaigns import datanode_killed, manifest_damaged, namenode_killed, reading, refusals
from loads.scene import LOST, Inject, Scene, campaign

NOWHERE_ELSE: tuple[Inject, ...] = (
    namenode_killed.kill_one,
    datanode_killed.kill_one,
    reading.kill_worker,
    reading.kill_broker,
    reading.kill_zookeeper,
    refusals.refuse_rename,
)
"""Faults that no test of `tests/hadoop` has: the short run has each of them once."""
FAULTS: tuple[Inject, ...] = (
    *NOWHERE_ELSE,
    refusals.enter_safe_mode,
    refusals.exceed_quota,
    refusals.lose_answer,
    manifest_damaged.damage_one,
)


class Mixed:
    name = "load-mixed"
    injects = (
        "to one driver that lives on, in turn, each as above: NameNode, DataNode, Python worker, broker and ZooKeeper "
        "killed, the rename refused (short: only these), safe mode, quota, answer of the rename lost, manifest damaged"
    )
    asserts = reading.NEXT_RUN
    plants = "a data file of the newest load is deleted"
    tools = ()

    def run(self, run: Run) -> Result:
        kind = {"zookeeper": True, "spark": reading.TRIED_AGAIN}
        return campaign(run, _one, plant=LOST, quick=len(NOWHERE_ELSE), **kind)


def _one(at: int, chance: random.Random, scene: Scene) -> None:
    FAULTS[at % len(FAULTS)](at // len(FAULTS), chance, scene)


CAMPAIGNS = [Mixed()]
