"""Brokers are killed, paused beyond their session, and restarted in order, under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from cluster import plants
from cluster.lives import LIMIT_S
from cluster.scene import ClusterCampaign, Scene, Site
from klammtest.waiting import within

_PAUSES = 6
_DEAD_S = (0.0, 0.5, 3.0)
"""A killed broker comes back at once, within its session, or after it."""


def _kill(who: Callable[[Scene, random.Random], int]) -> Callable[[int, random.Random, Scene], None]:
    def inject(at: int, chance: random.Random, scene: Scene) -> None:
        time.sleep(chance.uniform(0.0, 0.5))
        broker = who(scene, chance)
        scene.cluster.kill([broker])
        if chance.random() < 0.5:  # the others go on without it
            scene.require_progress(at)
            scene.total.count("went-on-without")
        time.sleep(chance.choice(_DEAD_S))
        scene.cluster.start([broker])

    return inject


def kill_all(at: int, chance: random.Random, scene: Scene) -> None:
    time.sleep(chance.uniform(0.0, 0.5))
    order = list(scene.cluster.ids)
    chance.shuffle(order)
    scene.cluster.kill(order)
    time.sleep(chance.choice(_DEAD_S))
    if chance.random() < 0.5:
        scene.cluster.start()
    else:
        for broker in order:
            scene.cluster.start([broker])
            time.sleep(chance.uniform(0.0, 1.0))


def pause(at: int, chance: random.Random, scene: Scene) -> None:
    """Stops a leader, or another broker, until its session is over; by chance, clients get on meanwhile."""
    broker = scene.leader(chance) if chance.random() < 0.7 else chance.choice(scene.cluster.ids)
    process = scene.cluster.brokers[broker]
    try:
        if not _pause_past_session(broker, scene):
            scene.total.wrong(at, f"the session of broker {broker} did not expire")
        if chance.random() < 0.5:
            scene.require_progress(at)
            scene.total.count("went-on-without")
    finally:
        process.resume()


def _pause_past_session(broker: int, scene: Scene) -> bool:
    """Stops a broker until its session is over; returns False if it does not end. A broker that is stopped while it
    holds the lock of an embedded coordination keeps all sessions from ending: it continues for a moment.
    """
    process = scene.cluster.brokers[broker]
    for _ in range(_PAUSES):
        process.pause()
        if within(lambda: scene.cluster.session_over(broker), LIMIT_S / _PAUSES):
            return True
        process.resume()
        time.sleep(0.05)
    process.pause()
    return False


def restart_in_turn(at: int, chance: random.Random, scene: Scene) -> None:
    """Restarts all brokers, one after the other, each once the cluster is in sync again; no request may fail."""
    order = list(scene.cluster.ids)
    chance.shuffle(order)
    before = {client.name: dict(client.errors) for client in (*scene.senders, *scene.consumers)}
    for broker in order:
        scene.cluster.stop([broker])
        scene.cluster.start([broker])
        scene.require_in_sync(at)
    for client in (*scene.senders, *scene.consumers):
        if client.errors != before[client.name]:
            scene.total.wrong(at, f"{client.name} has requests that failed: {client.errors}")


CAMPAIGNS = [
    ClusterCampaign(
        "kill-leader", "kill -9 of the leader of a partition, back at once or later", _kill(Scene.leader),
        plants.LOST, plants.cut_everywhere, 4, 100,
    ),
    ClusterCampaign(
        "kill-leader-java", "as kill-leader, with the Java client in place of confluent-kafka", _kill(Scene.leader),
        plants.LOST, plants.cut_everywhere, 2, 50, site=Site(java=True),
    ),
    ClusterCampaign(
        "kill-leader-etcd", "as kill-leader, with etcd", _kill(Scene.leader),
        plants.MISSING, plants.cut_one, 2, 50, site=Site(coordination="etcd"),
    ),
    ClusterCampaign(
        "kill-leader-embedded", "as kill-leader, with the coordination of one host", _kill(Scene.leader),
        plants.VANISHED, plants.poll_one_more, 2, 50, site=Site(coordination="embedded"),
    ),
    ClusterCampaign(
        "pause-etcd", "as pause, with etcd", pause,
        plants.DIFFERENT, plants.change_one, 2, 50, site=Site(coordination="etcd"),
    ),
    ClusterCampaign(
        "pause-embedded", "as pause, with the coordination of one host", pause,
        plants.STALE, plants.answer_stale, 2, 50, site=Site(coordination="embedded"),
    ),
    ClusterCampaign(
        "pause-java", "as pause, with the Java client in place of confluent-kafka", pause,
        plants.STALE, plants.answer_stale, 2, 30, site=Site(java=True),
    ),
    ClusterCampaign(
        "kill-follower", "kill -9 of a follower of a partition, back at once or later", _kill(Scene.follower),
        plants.DIFFERENT, plants.change_one, 3, 100,
    ),
    ClusterCampaign(
        "kill-controller", "kill -9 of the controller, back at once or later", _kill(Scene.controller),
        plants.TWO_LEADERS, plants.lead_twice, 3, 100,
    ),
    ClusterCampaign(
        "kill-all", "kill -9 of all brokers within milliseconds, back together or one by one", kill_all,
        plants.DOUBLED, plants.repeat_everywhere, 2, 50,
    ),
    ClusterCampaign(
        "kill-all-embedded", "as kill-all, with the coordination of one host", kill_all,
        plants.ZERO, plants.acknowledge_at_zero, 2, 20, site=Site(coordination="embedded"),
    ),
    ClusterCampaign(
        "pause", "SIGSTOP of a leader or another broker until its session is over", pause,
        plants.STALE, plants.answer_stale, 3, 100,
    ),
    ClusterCampaign(
        "rolling-restart", "an orderly restart of all brokers, one by one", restart_in_turn,
        plants.VANISHED, plants.poll_one_more, 1, 20, a_life=4, extra="no producer and no consumer sees an error",
    ),
]  # fmt: skip
