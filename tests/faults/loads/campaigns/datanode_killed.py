"""Kills the only DataNode while a load writes its files, and starts it again."""

from __future__ import annotations

import random
import time

from harness import Result, Run
from klamm.hadoop.lake.layout import is_data
from klammtest.waiting import eventually
from loads.scene import LOST, UP_S, Scene, campaign


class DataNodeKilled:
    name = "load-datanode-killed"
    injects = (
        "SIGKILL to the DataNode as soon as the first file of a load is being written, or up to 1 s later; it is "
        "started again within 4 s"
    )
    asserts = (
        "what is published can be read to its end; the run loads, or fails in one line and leaves nothing in sight; "
        "the next run loads the rest, each offset once"
    )
    plants = "a data file of the newest load is deleted"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_one, plant=LOST)


def kill_one(at: int, chance: random.Random, scene: Scene) -> None:
    driver, layout = scene.driver(), scene.layout
    driver.run("load.planned")
    driver.hear("at")
    before = set(scene.files.files(layout.staging_root))
    driver.go()

    def writes() -> bool:
        new = set(scene.files.files(layout.staging_root)) - before
        return not driver.is_silent or any(is_data(name.rpartition("/")[2]) for name, _ in new)

    eventually(writes, "the load writes", UP_S)
    scene.total.count("while-writing", driver.is_silent)
    time.sleep(chance.choice((0.0, chance.random())))
    assert scene.hdfs.data_node is not None
    scene.hdfs.data_node.kill()
    time.sleep(chance.random() * 4)
    scene.hdfs.start_data_node()
    scene.one_line(at, driver.outcome())
    scene.await_hdfs()


CAMPAIGNS = [DataNodeKilled()]
