"""Packets between the clusters, and within the target, are dropped, by network namespaces."""

from __future__ import annotations

import random
import time

from cluster import plants
from klammtest.replicated.network import COORDINATION
from mirror.scene import MirrorCampaign, MirrorScene, MirrorSite

_CUT_S = (0.5, 4.0, 8.0)
"""A cut within a session's time-out, and two longer ones."""


def source(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """The mirroring brokers and one broker of the source, or all, do not reach each other, one way or both."""
    network, targets = scene.network, [scene.site.sources + i for i in scene.cluster.ids]
    brokers = list(scene.source.ids) if chance.random() < 0.5 else [scene.leader_in(scene.source, chance)]
    ways = chance.choice(("there", "back", "both"))
    try:
        for broker in brokers:
            for target in targets:
                if ways != "back":
                    network.cut(target, broker)
                if ways != "there":
                    network.cut(broker, target)
        time.sleep(chance.choice(_CUT_S))
    finally:
        network.heal_all()


def target(at: int, chance: random.Random, scene: MirrorScene) -> None:
    """A mirroring broker is cut off from everything, or from its own cluster alone, and goes on to copy."""
    network, broker = scene.network, scene.leader_in(scene.cluster, chance)
    host = scene.site.sources + broker
    try:
        if chance.random() < 0.5:
            network.isolate(host)
        else:
            scene.total.count("source-reached")
            network.cut(host, COORDINATION)
            for other in scene.cluster.ids:
                if other != broker:
                    network.cut(host, scene.site.sources + other)
                    network.cut(scene.site.sources + other, host)
        time.sleep(chance.choice(_CUT_S))
    finally:
        network.heal_all()


CAMPAIGNS = [
    MirrorCampaign(
        "source-cut", "packets between the mirroring brokers and a broker of the source, or all, are dropped, one way "
        "or both, for up to 8 s", source, plants.DIFFERENT, plants.change_one, site=MirrorSite(namespaces=True),
    ),
    MirrorCampaign(
        "target-cut", "packets of a mirroring broker are dropped for up to 8 s: all, or those to its own cluster and "
        "its ZooKeeper, so that it goes on to copy", target, plants.MISSING, plants.cut_one,
        site=MirrorSite(namespaces=True, coordination="zookeeper"),
    ),
]  # fmt: skip
