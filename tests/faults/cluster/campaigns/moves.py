"""Replicas move between four brokers under load; a broker dies meanwhile."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterable

from cluster import plants
from cluster.lives import LIMIT_S
from cluster.scene import PARTITIONS, ClusterCampaign, Scene, Site
from klammtest.broker import KLAMM
from klammtest.waiting import within

_MOVED_BYTES = 300_000
_LEAST_RATE = 50_000
"""Bytes a second; fewer than what is produced meanwhile would never catch up."""


def reassign(at: int, chance: random.Random, scene: Scene) -> None:
    """Moves one replica of each partition to the broker that has none; by chance a broker dies in the meantime, mostly
    one of those that take part.
    """
    targets: dict[int, tuple[int, ...]] = {}
    for number, replicas in scene.cluster.assignment(scene.topic).items():
        (newcomer,) = set(scene.cluster.ids) - set(replicas)
        leaving = chance.choice(replicas)
        target = [newcomer if replica == leaving else replica for replica in replicas]
        chance.shuffle(target)
        targets[number] = tuple(target)
    scene.cluster.reassign(scene.topic, targets)
    if chance.random() < 0.6:
        time.sleep(chance.uniform(0.0, 0.3))
        victim = scene.leader(chance) if chance.random() < 0.5 else chance.choice(scene.cluster.ids)
        scene.cluster.kill([victim])
        time.sleep(chance.choice((0.0, 3.0)))
        scene.cluster.start([victim])
        scene.total.count("kills")

    def moved() -> bool:
        found = scene.cluster.assignment(scene.topic)
        return all(set(found.get(number, ())) == set(target) for number, target in targets.items())

    if not within(moved, LIMIT_S):
        scene.total.wrong(at, f"the reassignment to {targets} did not end: {scene.cluster.assignment(scene.topic)}")


def reassign_throttled(at: int, chance: random.Random, scene: Scene) -> None:
    """As `reassign`, by `klamm cluster reassign --throttle`, and no broker dies that gets replicas. What a broker has
    to copy at the beginning takes as long as the throttle says, less the second that may be used at once.
    """
    if not within(lambda: _bytes(scene, range(PARTITIONS)) >= _MOVED_BYTES, LIMIT_S):
        scene.total.wrong(at, "the topic did not grow")
    targets, newcomers = {}, {}
    for number, replicas in scene.cluster.assignment(scene.topic).items():
        (newcomers[number],) = set(scene.cluster.ids) - set(replicas)
        leaving = chance.choice(replicas)
        targets[number] = [newcomers[number] if replica == leaving else replica for replica in replicas]
    moved = max(_bytes(scene, [n for n in newcomers if newcomers[n] == i]) for i in set(newcomers.values()))
    rate = max(moved // 4, _LEAST_RATE)
    command = [KLAMM, "cluster", "reassign", "--bootstrap", scene.cluster.bootstrap, "--throttle", str(rate)]
    command += [f"{scene.topic}:{n}={','.join(map(str, target))}" for n, target in targets.items()]
    began = time.monotonic()
    done = subprocess.run(
        command, text=True, capture_output=True, timeout=2 * LIMIT_S, check=False, cwd=scene.run.folder
    )
    took_s = time.monotonic() - began
    scene.total.count("throttled-ms", round(took_s * 1000))
    if done.returncode:
        scene.total.wrong(at, f"klamm cluster reassign failed: {done.stdout}{done.stderr}")
    elif took_s < moved / rate - 1.0:
        scene.total.wrong(at, f"{moved} bytes were moved in {took_s:.2f} s, with a throttle of {rate} bytes a second")
    elif "throttled" in (left := scene.cluster.config(scene.topic)):
        scene.total.wrong(at, f"the throttle was left behind: {left}")


def _bytes(scene: Scene, numbers: Iterable[int]) -> int:
    """Returns the size of these partitions, by their largest replica."""
    found = 0
    for number in numbers:
        logs = (broker.log_dir / f"{scene.topic}-{number}" for broker in scene.cluster.brokers)
        found += max(sum(path.stat().st_size for path in log.glob("*.log")) for log in logs)
    return found


def leave_and_come(at: int, chance: random.Random, scene: Scene) -> None:
    """Moves all replicas off a broker, stops it, and starts it again, empty of the topic."""
    leaving = chance.choice(scene.cluster.ids)
    targets = {}
    for number, replicas in scene.cluster.assignment(scene.topic).items():
        others = [i for i in scene.cluster.ids if i != leaving]
        targets[number] = tuple(sorted(others, key=lambda i: (i not in replicas, chance.random())))
    scene.cluster.reassign(scene.topic, targets)

    def gone() -> bool:
        found = scene.cluster.assignment(scene.topic)
        return len(found) == len(targets) and all(leaving not in replicas for replicas in found.values())

    if not within(gone, LIMIT_S):
        scene.total.wrong(at, f"broker {leaving} still has replicas: {scene.cluster.assignment(scene.topic)}")
    scene.cluster.stop([leaving])
    scene.require_progress(at)
    scene.cluster.start([leaving])


CAMPAIGNS = [
    ClusterCampaign(
        "reassign", "one replica of each partition moves to a fourth broker; mostly a broker dies meanwhile", reassign,
        plants.DIFFERENT, plants.change_one, 2, 20, site=Site(size=4),
    ),
    ClusterCampaign(
        "reassign-throttled", "one replica of each partition moves to a fourth broker, under a throttle",
        reassign_throttled, plants.MISSING, plants.cut_one, 1, 20, site=Site(size=4), a_life=3,
        extra="it takes no less than the throttle says, which is gone afterwards",
    ),
    ClusterCampaign(
        "broker-removed-and-added", "all replicas move off a broker, which stops and comes back", leave_and_come,
        plants.LOST, plants.cut_everywhere, 1, 20, site=Site(size=4),
    ),
]  # fmt: skip
