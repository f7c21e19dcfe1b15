"""Brokers of the source and of the target are killed under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from cluster import plants
from klammtest.replicated.cluster import BrokerCluster
from mirror.scene import Inject, MirrorCampaign, MirrorScene

_DEAD_S = (0.0, 0.5, 3.0)
"""A killed broker comes back at once, within its session, or after it."""


def _kill(of: Callable[[MirrorScene], BrokerCluster]) -> Inject:
    def inject(at: int, chance: random.Random, scene: MirrorScene) -> None:
        cluster = of(scene)
        time.sleep(chance.uniform(0.0, 0.5))
        broker = scene.leader_in(cluster, chance)
        cluster.kill([broker])
        time.sleep(chance.choice(_DEAD_S))
        cluster.start([broker])

    return inject


CAMPAIGNS = [
    MirrorCampaign(
        "source-leader-killed", "kill -9 of the leader of a partition at the source, back at once or later",
        _kill(lambda scene: scene.source), plants.LOST, plants.cut_everywhere,
    ),
    MirrorCampaign(
        "target-leader-killed", "kill -9 of the broker that mirrors a partition, back at once or later",
        _kill(lambda scene: scene.cluster), plants.DOUBLED, plants.repeat_everywhere,
    ),
]  # fmt: skip
