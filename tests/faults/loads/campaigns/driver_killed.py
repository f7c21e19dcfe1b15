"""The driver of a load is killed at each fault point and at random moments, with and without Spark's JVM."""

from __future__ import annotations

import random
import time

from harness import Result, Run
from loads.scene import POINTS, DriverDiedError, Scene, campaign

MOMENTS = (*POINTS, "random")


class DriverKilled:
    name = "load-driver-killed"
    injects = (
        "SIGKILL to the driver at each fault point of a load in turn, and at a random moment; in a third to its JVM too"
    )
    asserts = (
        "a kill before the rename leaves nothing in sight, one after it a whole load; the next driver loads the rest, "
        "each offset once; the sweep removes what the dead left"
    )
    plants = "the offsets are stored apart from the data, and later"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_one, plant="offsets-apart")


def kill_one(at: int, chance: random.Random, scene: Scene) -> None:
    before, moment = scene.numbers(), MOMENTS[(at + scene.run.seed) % len(MOMENTS)]
    driver = scene.driver()
    if moment == "random":
        driver.run("load.planned")
        driver.hear("at")
        driver.go()
        time.sleep(chance.random() * 2)
    else:
        driver.run(rules=f"{moment}=kill")
        try:
            scene.total.wrong(at, f"the driver passes {moment}: {driver.hear('done')}")
        except DriverDiedError:
            scene.total.count("at-a-point")
    scene.without(with_jvm=chance.random() < 0.3)
    published = scene.numbers() != before
    if moment != "random" and published != (moment == POINTS[-1]):
        scene.total.wrong(at, f"killed at {moment}: loads {before} before, {scene.numbers()} after")
    scene.total.count("published", published)


CAMPAIGNS = [DriverKilled()]
