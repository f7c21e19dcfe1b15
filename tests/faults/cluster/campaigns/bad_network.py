"""The network between all of them is slow, loses data, resets connections and delivers single bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from cluster import plants
from cluster.scene import ClusterCampaign, Scene, Site

_LASTS_S = 3.0


def _weather(**settings: float) -> Callable[[int, random.Random, Scene], None]:
    def inject(at: int, chance: random.Random, scene: Scene) -> None:
        for name, value in settings.items():
            setattr(scene.weather, name, bool(value) if name == "bytewise" else value * chance.uniform(0.3, 2.0))
        time.sleep(_LASTS_S)
        if chance.random() < 0.3:  # a leader dies meanwhile
            broker = scene.leader(chance)
            scene.cluster.kill([broker])
            scene.cluster.start([broker])
            scene.total.count("kills")
        scene.weather.clear()

    return inject


_SITE = Site(weather=True)

CAMPAIGNS = [
    ClusterCampaign(
        "delay", "every piece of data to and from the brokers' ports is late, by up to 200 ms", _weather(delay_s=0.05),
        plants.VANISHED, plants.poll_one_more, 2, 100, site=_SITE,
    ),
    ClusterCampaign(
        "loss", "some pieces of data wait for 300 ms, as lost packets do until they are sent again",
        _weather(stall=0.1), plants.LOST, plants.cut_everywhere, 2, 100, site=_SITE,
    ),
    ClusterCampaign(
        "reset", "connections are cut in the middle of a request or a response", _weather(reset=0.01),
        plants.DOUBLED, plants.repeat_everywhere, 2, 100, site=_SITE,
    ),
    ClusterCampaign(
        "single-bytes", "requests and responses arrive byte by byte", _weather(bytewise=1),
        plants.ZERO, plants.acknowledge_at_zero, 1, 100, site=_SITE,
    ),
]  # fmt: skip
