"""Packets between brokers, coordination and clients are dropped, by network namespaces."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from cluster import plants
from cluster.scene import ClusterCampaign, Scene, Site
from klammtest.replicated.cluster import SESSION_MS
from klammtest.replicated.network import CLIENTS, COORDINATION, Network

_CUT_S = (0.5, SESSION_MS / 1000 + 2.0, SESSION_MS / 1000 + 6.0)
"""A cut within the session's time-out, and two after which the session has ended."""


def _cut(make: Callable[[random.Random, Scene, Network], None]) -> Callable[[int, random.Random, Scene], None]:
    def inject(at: int, chance: random.Random, scene: Scene) -> None:
        assert scene.network is not None
        try:
            make(chance, scene, scene.network)
            time.sleep(chance.choice(_CUT_S))
        finally:
            scene.network.heal_all()

    return inject


def isolate(chance: random.Random, scene: Scene, network: Network) -> None:
    network.isolate(scene.leader(chance) if chance.random() < 0.7 else chance.choice(scene.cluster.ids))


def split(chance: random.Random, scene: Scene, network: Network) -> None:
    """Separates one broker from the two others; all of them reach the coordination and the clients."""
    one = scene.leader(chance)
    for other in scene.cluster.ids:
        if other != one:
            network.cut(one, other)
            network.cut(other, one)


def one_way(chance: random.Random, scene: Scene, network: Network) -> None:
    """One broker's packets to one or both others vanish; theirs arrive."""
    one = scene.leader(chance) if chance.random() < 0.5 else scene.follower(chance)
    others = [i for i in scene.cluster.ids if i != one]
    for other in others if chance.random() < 0.5 else [chance.choice(others)]:
        if chance.random() < 0.5:
            network.cut(one, other)
        else:
            network.cut(other, one)


def from_coordination(chance: random.Random, scene: Scene, network: Network) -> None:
    """One or two brokers do not reach the coordination; the brokers and the clients reach each other."""
    network.cut(scene.leader(chance) if chance.random() < 0.7 else scene.controller(chance), COORDINATION)
    if chance.random() < 0.2:
        network.cut(chance.choice(scene.cluster.ids), COORDINATION)


def from_clients(chance: random.Random, scene: Scene, network: Network) -> None:
    network.cut(scene.leader(chance), CLIENTS)


_SITE = Site(namespaces=True)

CAMPAIGNS = [
    ClusterCampaign(
        "isolate", "all packets from and to a broker are dropped, shorter or longer than its session", _cut(isolate),
        plants.STALE, plants.answer_stale, 2, 40, site=_SITE,
    ),
    ClusterCampaign(
        "split", "all packets between a leader and the other brokers are dropped, none to ZooKeeper and clients",
        _cut(split), plants.MISSING, plants.cut_one, 2, 40, site=_SITE,
    ),
    ClusterCampaign(
        "one-way", "packets from one broker to another are dropped, those the other way are not", _cut(one_way),
        plants.LOST, plants.cut_everywhere, 2, 40, site=_SITE,
    ),
    ClusterCampaign(
        "cut-coordination", "packets of a broker to ZooKeeper are dropped, and no others", _cut(from_coordination),
        plants.TWO_LEADERS, plants.lead_twice, 2, 40, site=_SITE,
    ),
    ClusterCampaign(
        "cut-clients", "packets of a leader to clients are dropped, and no others", _cut(from_clients),
        plants.DOUBLED, plants.repeat_everywhere, 2, 40, site=_SITE,
    ),
]  # fmt: skip
