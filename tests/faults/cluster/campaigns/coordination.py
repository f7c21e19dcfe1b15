"""Sessions end while their brokers live, servers of the coordination are killed, and a broker's clock is a day off."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from functools import partial

from cluster import plants
from cluster.lives import LIMIT_S
from cluster.scene import ClusterCampaign, Scene, Site
from klamm.plugins.coordination.etcd.config import EtcdConfig
from klamm.plugins.coordination.etcd.gateway import EtcdGateway, EtcdRefusedError
from klammtest.waiting import within

_DAY_S = 86_400
TWO_DAYS = {"retention.ms": "172800000", "message.timestamp.after.max.ms": "172800000"}


def expire(at: int, chance: random.Random, scene: Scene) -> None:
    """Ends the session of one broker, or of two at once, as the coordination does; the brokers register again."""
    chosen = [scene.leader(chance) if chance.random() < 0.5 else scene.controller(chance)]
    if chance.random() < 0.2:
        chosen.append((chosen[0] + 1) % len(scene.cluster.brokers))
    # A broker that is just registering has no session to end: its next ones would be ended until the time is up.
    if not within(lambda: all(scene.cluster.session(broker) for broker in chosen), LIMIT_S):
        scene.total.wrong(at, f"brokers {chosen} are not registered, before their sessions are ended")
        return
    ended = {broker: scene.cluster.session(broker) for broker in chosen}

    def over(broker: int) -> bool:
        if scene.cluster.session(broker) != ended[broker]:
            return True
        if scene.coordination.sessions:
            scene.coordination.sessions[broker].expire()  # a client that is quick enough takes its session back
        else:
            _revoke(scene.coordination.etcd, ended[broker])
        return False

    def again() -> bool:
        return all(scene.cluster.session(broker) not in (0, ended[broker]) for broker in chosen)

    if not all(within(partial(over, broker), LIMIT_S) for broker in chosen) or not within(again, LIMIT_S):
        scene.total.wrong(at, f"brokers {chosen} did not register again after their sessions had ended")


def _revoke(url: str, lease: int) -> None:
    """Revokes a lease of etcd, which deletes the keys that have it; no error if it is over already."""
    gateway = EtcdGateway(EtcdConfig.model_validate({"etcd.endpoints": url}))
    with contextlib.closing(gateway), contextlib.suppress(EtcdRefusedError):
        gateway.call("lease/revoke", {"ID": str(lease)}, "the nemesis", repeatable=True)


def restart_server(at: int, chance: random.Random, scene: Scene) -> None:
    """Ends the coordination's only server, and starts it up to 6 s later."""
    server, leader = scene.coordination.server, scene.leader(chance)
    assert server is not None
    if chance.random() < 0.5:
        server.kill()
    else:
        server.stop()
    _meanwhile(chance, scene, server.start, leader)


def kill_member(at: int, chance: random.Random, scene: Scene) -> None:
    """Kills one server of the ensemble, its leader or another, and starts it up to 6 s later."""
    ensemble, leader = scene.coordination.ensemble, scene.leader(chance)
    assert ensemble is not None
    member = ensemble.leader() if chance.random() < 0.6 else ensemble.follower()
    member.kill()
    _meanwhile(chance, scene, member.start, leader)
    if not within(lambda: all(one.mode for one in ensemble.members), LIMIT_S):
        scene.total.wrong(at, "the ensemble does not serve with all servers again")


def _meanwhile(chance: random.Random, scene: Scene, back: Callable[[], None], broker: int) -> None:
    """Waits, or kills a broker meanwhile; then calls `back`, and starts the broker again."""
    time.sleep(chance.uniform(0.0, 6.0))
    if chance.random() >= 0.3:
        back()
        return
    scene.cluster.kill([broker])
    scene.total.count("kills")
    back()
    scene.cluster.start([broker])


def skew(at: int, chance: random.Random, scene: Scene) -> None:
    """Sets one broker's clock a day ahead or back; by chance it is killed meanwhile."""
    broker = scene.leader(chance)
    scene.clocks[broker].set(chance.choice((_DAY_S, -_DAY_S)))
    time.sleep(chance.uniform(0.5, 3.0))
    if chance.random() < 0.4:
        scene.cluster.kill([broker])
        scene.cluster.start([broker])
        scene.total.count("kills")
    scene.require_progress(at)
    if chance.random() < 0.7:
        scene.clocks[broker].set(0)


CAMPAIGNS = [
    ClusterCampaign(
        "session-expiry", "ZooKeeper ends the session of a live leader or controller, sometimes of two brokers", expire,
        plants.TWO_LEADERS, plants.lead_twice, 3, 100, site=Site(own_coordination=True),
    ),
    ClusterCampaign(
        "zookeeper-restart", "ZooKeeper is killed or stopped, and started again up to 6 s later; sometimes a leader "
        "dies meanwhile", restart_server, plants.LOST, plants.cut_everywhere, 2, 30,
    ),
    ClusterCampaign(
        "zookeeper-ensemble-kill", "kill -9 of one of three ZooKeeper servers, mostly of their leader, back up to 6 s "
        "later; sometimes a leader of a partition dies meanwhile", kill_member,
        plants.MISSING, plants.cut_one, 2, 30, site=Site(coordination="ensemble"),
    ),
    ClusterCampaign(
        "session-expiry-etcd", "as session-expiry, with etcd: the lease of a live leader or controller is revoked",
        expire, plants.TWO_LEADERS, plants.lead_twice, 2, 100, site=Site(coordination="etcd"),
    ),
    ClusterCampaign(
        "etcd-restart", "as zookeeper-restart, with etcd", restart_server,
        plants.LOST, plants.cut_everywhere, 2, 30, site=Site(coordination="etcd"),
    ),
    ClusterCampaign(
        "clock-skew", "the wall clock of a leader is a day ahead or back; sometimes it is killed meanwhile", skew,
        plants.STALE, plants.answer_stale, 2, 60, site=Site(clocks=True, topic=TWO_DAYS),
        extra="records of the true time are not deleted by a retention of two days",
    ),
]  # fmt: skip
