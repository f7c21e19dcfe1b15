"""HDFS refuses: safe mode, a quota, a rename that is not allowed, and a rename whose answer is lost."""

from __future__ import annotations

import random

import requests

from harness import Result, Run
from loads.scene import POINTS, Scene, campaign

FOREVER = 2**60  # the highest number means "unchanged"


class SafeMode:
    name = "load-safe-mode"
    injects = "safe mode of the NameNode from a fault point of a load on, each in turn, until the run has ended"
    asserts = (
        "before the rename the run fails in one line and nothing of it is in sight, after it the run succeeds; once "
        "safe mode is over the next run loads the rest, each offset once"
    )
    plants = "the job writes where readers look"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, enter_safe_mode, plant="in-sight")


def enter_safe_mode(at: int, chance: random.Random, scene: Scene) -> None:
    before, point = scene.numbers(), POINTS[(at + 1) % len(POINTS)]
    driver = scene.driver()
    driver.run(point)
    driver.hear("at")
    driver.safe_mode(scene.admin_name, on=True)
    driver.go()
    outcome = driver.outcome()
    driver.safe_mode(scene.admin_name, on=False)
    if point == POINTS[-1]:
        if scene.one_line(at, outcome).status != "loaded":
            scene.total.wrong(at, f"the load is published, but the run reports {outcome}")
    else:
        scene.refused(at, outcome)
        if scene.numbers() != before:
            scene.total.corrupt(at, f"loads {before} before, {scene.numbers()} after")


class Quota:
    name = "load-quota"
    injects = "a quota of names or of space that leaves too little for a load, set when it begins"
    asserts = (
        "the run fails in one line and nothing of it is in sight; with the quota gone the next run loads the rest, "
        "each offset once"
    )
    plants = "the job writes where readers look"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, exceed_quota, plant="in-sight")


def exceed_quota(at: int, chance: random.Random, scene: Scene) -> None:
    driver, root = scene.driver(), scene.inside(scene.root)
    driver.run("load.planned")
    driver.hear("at")
    used = scene.admin.content(root)
    if at % 2:
        names = used["directoryCount"] + used["fileCount"] + chance.randint(1, 7)
        _set_quota(scene, root, namespacequota=names)
    else:  # a block that has been begun counts with its full size
        _set_quota(scene, root, storagespacequota=used["spaceConsumed"] + chance.randint(1, 2**26))
    driver.go()
    outcome = driver.outcome()
    _set_quota(scene, root, namespacequota=FOREVER, storagespacequota=FOREVER)
    scene.refused(at, outcome)


def _set_quota(scene: Scene, path: str, **quota: int) -> None:
    user = scene.admin_name
    wanted = {"op": "SETQUOTA", "user.name": user, **{name: str(n) for name, n in quota.items()}}
    requests.put(f"{scene.hdfs.web_url}/webhdfs/v1{path}", params=wanted, timeout=60).raise_for_status()


class RenameRefused:
    name = "load-rename-refused"
    injects = "the directory of the topic is made read-only for the job before it renames"
    asserts = (
        "the run fails in one line and nothing of it is in sight; once it may write, the next run loads the rest, "
        "each offset once"
    )
    plants = "the job writes where readers look"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, refuse_rename, plant="in-sight")


def refuse_rename(at: int, chance: random.Random, scene: Scene) -> None:
    before, driver, base = scene.numbers(), scene.driver(), scene.inside(scene.layout.base)
    driver.run("load.staged")
    driver.hear("at")
    scene.admin.set_permission(base, "555")
    driver.go()
    outcome = scene.refused(at, driver.outcome())
    scene.admin.set_permission(base, "755")
    if scene.numbers() != before:
        scene.total.corrupt(at, f"loads {before} before, {scene.numbers()} after: {outcome.error}")


class AnswerLost:
    name = "load-rename-answer-lost"
    injects = (
        "the connection is cut when the rename of a load is done and answered, or (each fourth time) when it is about "
        "to arrive, by a TCP proxy before the NameNode"
    )
    asserts = (
        "the job reads back what became of its rename: it says that its load is published when it is, and fails in one "
        "line when it is not; the next run loads the rest, each offset once"
    )
    plants = "the job believes the error"
    tools = ()

    def run(self, run: Run) -> Result:
        return campaign(run, lose_answer, plant="not-read-back")


def lose_answer(at: int, chance: random.Random, scene: Scene) -> None:
    before, driver, passes, lost = scene.numbers(), scene.driver(), at % 4 != 3, scene.proxy.lost
    scene.proxy.arm(passes=passes)
    outcome = scene.one_line(at, driver.run_to_end())
    scene.proxy.disarm()
    if scene.proxy.lost != lost + 1:
        scene.total.wrong(at, f"{scene.proxy.lost - lost} renames were lost")
    published = scene.numbers() != before
    if published != passes or (outcome.status == "loaded") != passes:
        scene.total.wrong(at, f"the rename {'is done' if passes else 'did not arrive'}, the run reports {outcome}")


CAMPAIGNS = [SafeMode(), Quota(), RenameRefused(), AnswerLost()]
