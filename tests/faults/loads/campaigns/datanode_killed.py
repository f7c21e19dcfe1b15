"""Kills the only DataNode while a load writes its files, and starts it again."""

from __future__ import annotations

import random
import time

from harness import Result, Run
from klammtest.waiting import eventually
from loads.scene import LOST, UP_S, Scene, campaign


class DataNodeKilled:
    name = "load-datanode-killed"
    injects = (
        "SIGKILL to the DataNode up to 1 s after a load began to write a file, which a stopped DataNode (SIGSTOP) does "
        "not let it complete; it is started again within 4 s"
    )
    asserts = (
        "a data file was open for writing when the DataNode died; what is published can be read to its end; the run "
        "loads, or fails in one line and leaves nothing in sight; the next run loads the rest, each offset once"
    )
    plants = "a data file of the newest load is deleted"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_one, plant=LOST)


def kill_one(at: int, chance: random.Random, scene: Scene) -> None:
    data_node, before = scene.hdfs.data_node, scene.being_written()
    assert data_node is not None
    with scene.reading() as driver:
        data_node.pause()  # no file can be completed from here on
    eventually(lambda: scene.being_written() - before or not driver.is_silent, "the load writes", UP_S)
    time.sleep(chance.choice((0.0, chance.random())))
    writing = driver.is_silent and bool(scene.being_written() - before)
    data_node.kill()
    scene.total.require(at, "while-writing", writing, "no data file of the load was open")
    time.sleep(chance.random() * 4)
    scene.hdfs.start_data_node()
    scene.one_line(at, driver.outcome())
    scene.await_hdfs()


CAMPAIGNS = [DataNodeKilled()]
