"""Kills the NameNode around the rename that publishes a load, or at a random moment of the load, and starts it
again.
"""

from __future__ import annotations

import random
import threading
import time

from harness import Result, Run
from klammtest.waiting import eventually
from loads.scene import UP_S, Scene, campaign, later

MOMENTS = ("rename-answered-by-nobody", "rename-not-arrived", "random")


class NameNodeKilled:
    name = "load-namenode-killed"
    injects = (
        "SIGKILL to the NameNode when the rename of a load is done and its answer is lost, when it is about to arrive, "
        "or at a random moment of the load; it is started again up to 6 s later"
    )
    asserts = (
        "a load is in sight whole or not at all, as the edit log says; the run ends in one line; the next run loads "
        "the rest, each offset once"
    )
    plants = "the job writes where readers look"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_one, plant="in-sight")


def kill_one(at: int, chance: random.Random, scene: Scene) -> None:
    before, moment = scene.numbers(), MOMENTS[at % len(MOMENTS)]
    killed = threading.Event()

    def kill() -> None:
        assert scene.hdfs.name_node is not None
        scene.hdfs.name_node.kill()
        killed.set()

    driver = scene.driver()
    driver.run("load.planned")
    driver.hear("at")
    if moment == "random":
        later(chance.random() * 3, kill)
    elif moment == "rename-not-arrived":
        scene.proxy.arm(passes=False, before=kill)
    else:
        scene.proxy.arm(after=kill)
    driver.go()
    eventually(killed.is_set, "the NameNode is killed", UP_S)
    time.sleep(chance.random() * 6)
    scene.hdfs.start_name_node()  # in this thread: the server ends with the thread that started it
    scene.one_line(at, driver.outcome())
    scene.await_hdfs()
    published = scene.numbers() != before
    scene.total.count("published", published)
    if moment != "random" and published != (moment == MOMENTS[0]):
        scene.total.wrong(at, f"{moment}: loads {before} before, {scene.numbers()} after")


CAMPAIGNS = [NameNodeKilled()]
