"""The wall clock of a driver and of its Spark is a day ahead or a day behind."""

from __future__ import annotations

import random
import time
from functools import partial

from harness import Result, Run
from klamm.hadoop.lake.manifest import last_manifest
from loads.scene import USER, Driver, Scene, campaign
from skewed_clock import TOOLS, SkewedClock

DAY_S = 86_400
JUMPS = (DAY_S, -DAY_S)
NEAR_S = 3_600.0
"""The most by which a clock may differ from the time it was set to; a busy machine needs some of it."""


class DriverClock:
    name = "load-driver-clock"
    injects = (
        "a driver's clock set a day ahead or a day back, while another job's staging directory is alive and one has "
        "been dead for two hours"
    )
    asserts = (
        "the clocks of the driver and of its JVM and the time in the manifest are a day off; the run loads; the sweep, "
        "which goes by the NameNode's clock, removes the dead directory and leaves the live one; each offset once"
    )
    plants = "ages are measured by the driver's clock"
    tools = TOOLS

    def run(self, run: Run) -> Result:
        clock = SkewedClock(run.folder)
        return campaign(run, partial(skew_one, clock), plant="own-clock", environment=clock.environment)


def skew_one(clock: SkewedClock, at: int, chance: random.Random, scene: Scene) -> None:
    clock.set(JUMPS[at % len(JUMPS)])
    staging, lake = scene.layout.staging_root, scene.client(USER)
    live, dead = f"live{at}", f"dead{at}"
    for name in (live, dead):
        lake.write(scene.inside(f"{staging}/{name}/_job.json"), b"{}")
        lake.write(scene.inside(f"{staging}/{name}.alive"), b"")
    then = int((time.time() - 7_200) * 1_000)
    lake.set_times(scene.inside(f"{staging}/{dead}.alive"), then, then)
    driver = scene.driver()
    outcome = scene.one_line(at, driver.run_to_end())
    _check_clocks(clock, at, scene, driver)
    if outcome.status != "loaded":
        scene.total.wrong(at, f"the run: {outcome}")
    left = scene.files.names(staging)
    for path in (live, f"{live}.alive"):
        lake.delete(scene.inside(f"{staging}/{path}"), recursive=True)
    if left != [live, f"{live}.alive"]:
        scene.total.wrong(at, f"the sweep leaves {left}, not {live} alone")


def _check_clocks(clock: SkewedClock, at: int, scene: Scene, driver: Driver) -> None:
    """Requires that the driver's clock was moved; else the run does not show by which clock the sweep goes."""
    manifest = last_manifest(scene.files, scene.layout)
    assert manifest is not None
    told = {"driver and JVM": driver.clocks(), "manifest": [manifest.created_ms / 1_000]}
    ahead = {who: [round(time_s - time.time()) for time_s in times] for who, times in told.items()}
    moved = all(abs(s - clock.ahead_s) < NEAR_S for seconds in ahead.values() for s in seconds)
    scene.total.require(at, "clock-moved", moved, f"set {clock.ahead_s} s ahead, they are ahead by {ahead}")


CAMPAIGNS = [DriverClock()]
