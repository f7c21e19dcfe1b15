"""Two jobs load one topic: both at the same time, or one is stopped until the other has published."""

from __future__ import annotations

import random
import time

from harness import Result, Run
from loads.scene import POINTS, Scene, campaign

BEFORE_RENAME = POINTS[:-1]


class TwoJobs:
    name = "load-two-jobs"
    injects = "two drivers, each with its own Spark, that have planned or staged the same offsets and go on together"
    asserts = (
        "one publishes, the other fails in one line that says so, and leaves nothing; the next run has nothing to load "
        "again, each offset once"
    )
    plants = "a job whose number is taken takes the next one"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, self._one, plant="next-number")

    def _one(self, at: int, chance: random.Random, scene: Scene) -> None:
        point = BEFORE_RENAME[(at + 2) % len(BEFORE_RENAME)]
        drivers = [scene.driver(name) for name in ("a", "b")]
        for driver in drivers:
            driver.run(point)
        for driver in drivers:
            driver.hear("at")
        chance.shuffle(drivers)
        drivers[0].go()
        time.sleep(chance.choice((0.0, chance.random() / 2)))
        drivers[1].go()
        outcomes = [scene.one_line(at, driver.outcome()) for driver in drivers]
        states = sorted(outcome.status for outcome in outcomes)
        told = [outcome.error for outcome in outcomes if outcome.error and "was published by job" in outcome.error]
        if states != ["failed", "loaded"] or len(told) != 1:
            scene.total.wrong(at, f"both at {point}: {outcomes}")
        if left := scene.files.names(scene.layout.staging_root):
            scene.total.wrong(at, f"left in staging: {left}")


class Zombie:
    name = "load-zombie"
    injects = (
        "a driver stopped (SIGSTOP) before its rename until another has published the same offsets; two times in three "
        "the other has swept it as dead"
    )
    asserts = "the zombie publishes nothing when it wakes, and says so in one line; each offset once"
    plants = "a job whose number is taken takes the next one"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, self._one, plant="next-number")

    def _one(self, at: int, chance: random.Random, scene: Scene) -> None:
        point = BEFORE_RENAME[(at // 3 + 2) % len(BEFORE_RENAME)]
        zombie, other = scene.driver("a"), scene.driver("b")
        zombie.run(point)
        zombie.hear("at")
        zombie.pause()
        if at % 3:
            scene.age_heartbeats()
        try:
            outcome = scene.one_line(at, other.run_to_end())
            if outcome.status != "loaded":
                scene.total.wrong(at, f"the successor: {outcome}")
            published = scene.numbers()
        finally:
            zombie.resume()
        zombie.go()
        scene.refused(at, zombie.outcome())
        if scene.numbers() != published:
            scene.total.corrupt(at, f"loads {published} before it woke, {scene.numbers()} after")


CAMPAIGNS = [TwoJobs(), Zombie()]
