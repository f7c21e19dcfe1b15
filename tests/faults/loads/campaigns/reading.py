"""Kills a process that a load reads through: a Python worker, the broker, the cluster's coordination."""

from __future__ import annotations

import random
import threading
import time

import psutil

from harness import Result, Run
from klammtest.waiting import eventually
from loads.scene import DOUBLED, LOST, PARTITIONS, UP_S, Scene, campaign

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
    with scene.reading() as driver:
        time.sleep(chance.random() * 2)
        worker = chance.choice(driver.readers(scene.broker.port))
        worker.kill()
        worker.wait(UP_S)
    scene.total.count("workers-killed")
    scene.one_line(at, driver.outcome())


class BrokerKilled:
    name = "load-broker-killed"
    injects = (
        "SIGKILL to the broker while a load reads: when its first, second or third Fetch is about to arrive, or is "
        "answered and the answer is lost; it is started again within 3 s"
    )
    asserts = f"the load was reading when the broker died; {NEXT_RUN}"
    plants = "a data file of the newest load is deleted"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, kill_broker, plant=LOST)


def kill_broker(at: int, chance: random.Random, scene: Scene) -> None:
    driver, killed, readers = scene.driver(), threading.Event(), list[psutil.Process]()

    def kill() -> None:
        readers.extend(driver.readers(scene.fetches.port))
        scene.broker.kill()
        killed.set()

    driver.run("load.planned")
    driver.hear("at")
    fetch = chance.randrange(PARTITIONS)  # one range of offsets is read after the other
    if at % 2:
        scene.fetches.arm(skipped=fetch, after=kill)
    else:
        scene.fetches.arm(skipped=fetch, passes=False, before=kill)
    driver.go()
    eventually(lambda: killed.is_set() or not driver.is_silent, "the load reads", UP_S)
    scene.fetches.disarm()
    scene.total.require(at, "while-reading", bool(readers), "no Python worker of the load was fetching")
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
