"""Kills a process that a load reads through: a Python worker, the broker, the cluster's coordination."""

from __future__ import annotations

import random
import time

from harness import Result, Run
from klammtest.waiting import eventually
from loads.scene import DOUBLED, LOST, UP_S, Scene, campaign

TRIED_AGAIN = {"spark.master": "local[2,3]"}
"""Lets Spark try a task three times."""
NEXT_RUN = (
    "the run loads, or fails in one line and leaves nothing in sight; the next run loads the rest, each offset once"
)


class WorkerKilled:
    name = "load-worker-killed"
    injects = (
        "SIGKILL to a Python worker of Spark up to 2 s after it began to read from a stopped broker; a task may be "
        "tried three times"
    )
    asserts = NEXT_RUN
    plants = "a data file of the newest load is there twice"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_worker, plant=DOUBLED, spark=TRIED_AGAIN)


def kill_worker(at: int, chance: random.Random, scene: Scene) -> None:
    driver, port = scene.driver(), int(scene.broker.bootstrap.rpartition(":")[2])
    driver.run("load.planned")
    driver.hear("at")
    scene.broker.pause()
    try:
        driver.go()
        # The broker is stopped, so a worker that reads from it keeps reading until it is killed.
        eventually(lambda: driver.readers(port), "a Python worker reads from the stopped broker", UP_S)
        time.sleep(chance.random() * 2)
        worker = chance.choice(driver.readers(port))
        worker.kill()
        worker.wait(UP_S)
    finally:
        scene.broker.resume()
    scene.total.count("workers-killed")
    scene.one_line(at, driver.outcome())


class BrokerKilled:
    name = "load-broker-killed"
    injects = "SIGKILL to the broker when a load has planned or up to 1 s later; it is started again within 3 s"
    asserts = NEXT_RUN
    plants = "a data file of the newest load is deleted"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_broker, plant=LOST)


def kill_broker(at: int, chance: random.Random, scene: Scene) -> None:
    driver = scene.driver()
    driver.run("load.planned")
    driver.hear("at")
    if at % 2:
        driver.go()
        time.sleep(chance.random())
        scene.broker.kill()
    else:
        scene.broker.kill()
        driver.go()
    time.sleep(chance.random() * 3)
    scene.broker.restart()
    scene.one_line(at, driver.outcome())


class CoordinationDown:
    name = "load-coordination-down"
    injects = (
        "SIGKILL to the cluster's only ZooKeeper when a load has planned; it is started again up to 9 s later, before "
        "or after the broker's session has ended"
    )
    asserts = NEXT_RUN
    plants = "a data file of the newest load is there twice"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_zookeeper, plant=DOUBLED, zookeeper=True)


def kill_zookeeper(at: int, chance: random.Random, scene: Scene) -> None:
    driver, server = scene.driver(), scene.zookeeper
    assert server is not None
    driver.run("load.planned")
    driver.hear("at")
    server.kill()
    driver.go()
    time.sleep(chance.random() * 9)
    server.start()
    scene.one_line(at, driver.outcome())
    scene.produce(chance)  # acknowledged once the broker is registered again


CAMPAIGNS = [WorkerKilled(), BrokerKilled(), CoordinationDown()]
