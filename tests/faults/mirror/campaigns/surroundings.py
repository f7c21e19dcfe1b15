"""The target's coordination is away, and clocks are a day off."""

from __future__ import annotations

import random
import time

from cluster import plants
from mirror.scene import MirrorCampaign, MirrorScene, MirrorSite

_DAY_S = 86_400
_TWO_DAYS = {"retention.ms": "172800000", "message.timestamp.after.max.ms": "172800000"}


def coordination(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """Ends the target's etcd, and starts it up to 6 s later; by chance a broker of either cluster dies meanwhile."""
    server = scene.coordination.server
    assert server is not None
    cluster = chance.choice((scene.cluster, scene.source))
    broker = scene.leader_in(cluster, chance)
    if chance.random() < 0.5:
        server.kill()
    else:
        server.stop()
    time.sleep(chance.uniform(0.0, 6.0))
    dies = chance.random() < 0.3
    if dies:
        cluster.kill([broker])
        scene.total.count("kills")
    server.start()
    if dies:
        cluster.start([broker])


def clock(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """Sets the clock of a broker of either cluster a day ahead or back; by chance it is killed meanwhile."""
    name, cluster = chance.choice((("source", scene.source), ("target", scene.cluster)))
    broker = scene.leader_in(cluster, chance)
    scene.clocks[name][broker].set(chance.choice((_DAY_S, -_DAY_S)))
    time.sleep(chance.uniform(0.5, 3.0))
    if chance.random() < 0.4:
        cluster.kill([broker])
        cluster.start([broker])
        scene.total.count("kills")
    scene.require_progress(at)
    scene.require_follows(at)
    if chance.random() < 0.7:
        scene.clocks[name][broker].set(0)


CAMPAIGNS = [
    MirrorCampaign(
        "coordination-away", "the target's etcd is killed or stopped, and started again up to 6 s later; sometimes a "
        "leader of either cluster dies meanwhile", coordination, plants.ZERO, plants.acknowledge_at_zero,
        site=MirrorSite(coordination="etcd"),
    ),
    MirrorCampaign(
        "clock-off", "the wall clock of a leader of either cluster is a day ahead or back; sometimes it is killed "
        "meanwhile", clock, plants.LOST, plants.cut_everywhere, site=MirrorSite(clocks=True, topic=_TWO_DAYS),
        extra="records of the true time are not deleted by a retention of two days",
    ),
]  # fmt: skip
