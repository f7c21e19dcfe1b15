"""A promotion is killed at each of its steps."""

from __future__ import annotations

import random
import subprocess
import time

from cluster import plants
from cluster.lives import polled
from klammtest.broker import ENVIRONMENT, KLAMM
from mirror.scene import LINK, MirrorCampaign, MirrorScene, MirrorSite

_STEPS = ("command", "mirror.promote", "mirror.promoted", "leader", "controller")


def nothing(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """The fault comes with the fail-over."""


def killed(at: int | str, chance: random.Random, scene: MirrorScene) -> None:
    """Begins a promotion and kills: its command; each broker that comes to the fault point before or behind the change
    of the partitions; a leader or the controller at a random time. Then starts them, and repeats the command.
    """
    step = _STEPS[int(str(at).partition("-")[0]) % len(_STEPS)]
    brokers = scene.cluster.brokers
    if step.startswith("mirror."):
        for i in scene.cluster.ids:
            scene.cluster.stop([i])
            brokers[i].environment = {"KLAMM_FAULTS": f"{step}=kill"}
            scene.cluster.start([i])
        scene.cluster.await_in_sync(scene.topic, len(scene.partitions))
    command = [KLAMM, "mirror", "fail-over", LINK, "--topic", scene.topic, "--config", str(brokers[0].config_path)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    dead: list[int] = []
    if step == "command":
        time.sleep(chance.uniform(0.3, 2.0))
    elif step.startswith("mirror."):
        polled(lambda: any(broker.died() for broker in brokers))
        time.sleep(chance.choice((0.0, 3.0)))  # by chance the next controller comes to the same step
        dead = [i for i, broker in enumerate(brokers) if broker.died()]
        if not dead:
            scene.total.wrong(at, f"no broker came to {step}")
    else:
        time.sleep(chance.uniform(0.5, 2.0))
        controller = max(scene.cluster.controller(), 0)
        dead = [controller if step == "controller" else scene.leader_in(scene.cluster, chance)]
    process.kill()
    process.wait()
    for broker in brokers:
        broker.environment = {}
    if dead:
        scene.cluster.kill(dead)
        scene.cluster.start(dead)
    scene.total.count(f"at-{step.removeprefix('mirror.')}")
    scene.fail_over()
    for i in scene.cluster.ids:  # none keeps the fault
        if step.startswith("mirror.") and i not in dead:
            scene.cluster.kill([i])
            scene.cluster.start([i])


CAMPAIGNS = [
    MirrorCampaign(
        "promotion-killed", "kill -9 of a promotion's command, of each controller before and after it changes the "
        "partitions, of a leader, of the controller", nothing, plants.LOST, plants.cut_everywhere,
        a_life=1, site=MirrorSite(source_lost=0.3), fail_over=killed,
    ),
]  # fmt: skip
