"""Disks that fail, are slow, full, replaced or damaged, and power that is lost with what was not synced."""

from __future__ import annotations

import random
import shutil
import time

from cluster import plants
from cluster.lives import LIMIT_S
from cluster.scene import PARTITIONS, ClusterCampaign, Scene, Site
from klamm.core.log.state.checkpoints import RECOVERY_POINTS, OffsetCheckpoint
from klamm.core.records.header import HEADER_SIZE, iter_headers
from klammtest.waiting import within

_FLUSHED = {"flush.messages": "1"}
_WITHOUT_ROOM_S = 15.0
"""Within which all partitions take records while one disk is full: a second, and what clients wait on a busy machine
before they try again."""
_MUCH_LAG = {"replica.lag.time.max.ms": 60_000}
HELD_BACK = {"flush.messages": "30", "flush.ms": "200"}


def lose_power_everywhere(at: int, chance: random.Random, scene: Scene) -> None:
    """All brokers die at once and lose what they had not synced; records are acknowledged once they are synced."""
    time.sleep(chance.uniform(0.2, 1.0))
    scene.cluster.kill()
    for disk in scene.disks.values():
        scene.total.count("dropped-bytes", disk.lose_power(chance))
    scene.cluster.start()


def lose_power(at: int, chance: random.Random, scene: Scene) -> None:
    """One broker dies and loses what it had not synced; the topic leaves syncing to the kernel, as is the default."""
    time.sleep(chance.uniform(0.2, 1.0))
    broker = scene.leader(chance) if chance.random() < 0.7 else scene.follower(chance)
    scene.cluster.kill([broker])
    scene.total.count("dropped-bytes", scene.disks[broker].lose_power(chance))
    if chance.random() < 0.5:
        scene.require_progress(at)
    scene.cluster.start([broker])


def lose_power_of_two(at: int, chance: random.Random, scene: Scene) -> None:
    """Two brokers die at once and lose what they had not synced, if the third is in sync with all partitions: it has
    every acknowledged record then, whatever the two have lost.
    """
    time.sleep(chance.uniform(0.2, 1.0))
    survivor = chance.choice(scene.cluster.ids)
    two = chance.sample([broker for broker in scene.cluster.ids if broker != survivor], 2)
    scene.cluster.kill(two)
    states = scene.cluster.states(scene.topic, PARTITIONS)  # no other broker can have added it to an ISR since
    if len(states) == PARTITIONS and all(survivor in state.isr for state in states.values()):
        scene.total.count("dropped")
        for broker in two:
            scene.total.count("dropped-bytes", scene.disks[broker].lose_power(chance))
    chance.shuffle(two)
    if chance.random() < 0.5:
        scene.cluster.start(two)
    else:
        for broker in two:
            scene.cluster.start([broker])
            time.sleep(chance.uniform(0.0, 4.0))


def fail_sync(at: int, chance: random.Random, scene: Scene) -> None:
    """The next sync of a leader or follower fails; its partition is offline there until the broker starts again."""
    broker = scene.leader(chance) if at % 2 == 0 else scene.follower(chance)
    disk = scene.disks[broker]
    disk.control(failing_syncs=1)
    if not within(lambda: disk.syncs_to_fail == 0, LIMIT_S):
        scene.total.wrong(at, f"broker {broker} synced nothing")
    disk.control()
    scene.require_progress(at)
    scene.cluster.kill([broker])
    scene.cluster.start([broker])


def fill_up(at: int, chance: random.Random, scene: Scene) -> None:
    """The disk of a broker fills up in the middle of a write, and has room again after a while; by chance the broker is
    killed meanwhile, and starts once there is room. All partitions go on without it, those that it led too.
    """
    broker = scene.leader(chance) if at % 2 == 0 else scene.follower(chance)
    disk = scene.disks[broker]
    disk.control(room=chance.randrange(20_000))
    if not within(lambda: disk.full, LIMIT_S):
        scene.total.wrong(at, f"broker {broker} wrote nothing more")
    full = time.monotonic()
    # Where the topic is flushed for each few records, there is a backlog without any fault.
    scene.require_progress(at, limit_s=LIMIT_S if scene.site.topic else _WITHOUT_ROOM_S)
    scene.longest("without-room-ms", time.monotonic() - full)
    time.sleep(chance.uniform(0.0, 4.0))
    if chance.random() < 0.3:
        scene.cluster.kill([broker])
        scene.total.count("kills")
        if chance.random() < 0.5:
            scene.require_progress(at)
        disk.control()
        scene.cluster.start([broker])
    disk.control()


def slow_down(at: int, chance: random.Random, scene: Scene) -> None:
    broker = scene.leader(chance) if chance.random() < 0.5 else scene.follower(chance)
    scene.disks[broker].control(sync_delay_ms=chance.randint(20, 400), write_delay_ms=chance.choice((0, 20, 100)))
    time.sleep(4.0)
    if chance.random() < 0.3:
        scene.cluster.kill([broker])
        scene.total.count("kills")
        scene.disks[broker].control()
        scene.cluster.start([broker])
    scene.disks[broker].control()


def replace_disk(at: int, chance: random.Random, scene: Scene) -> None:
    """A broker dies and comes back with an empty log directory."""
    broker = scene.leader(chance) if chance.random() < 0.5 else scene.follower(chance)
    scene.cluster.kill([broker])
    folder = scene.cluster.brokers[broker].log_dir
    shutil.rmtree(folder)
    folder.mkdir()
    if broker in scene.disks:
        scene.disks[broker].forget()
    scene.total.count("replaced")
    if chance.random() < 0.5:
        scene.require_progress(at)
    scene.cluster.start([broker], "--accept-missing-logs")


def flip_below_watermark(at: int, chance: random.Random, scene: Scene) -> None:
    """Flips one bit of a batch that recovery reads, in the newest segment of a follower that was killed."""
    broker = scene.follower(chance)
    scene.cluster.kill([broker])
    folder = scene.cluster.brokers[broker].log_dir
    here = [tp for tp in scene.partitions if (folder / str(tp)).is_dir()]  # one of four brokers lacks some partitions
    partition = chance.choice(here)
    segment = max((folder / str(partition)).glob("*.log"))
    flushed = OffsetCheckpoint(folder / RECOVERY_POINTS).read().get(partition, 0)
    data = bytearray(segment.read_bytes())
    batches = [
        (position, header)
        for position, header in iter_headers(bytes(data))
        if header.size > HEADER_SIZE and header.base_offset >= flushed
    ]
    if batches:
        position, header = batches[-1 - min(chance.randrange(20), len(batches) - 1)]
        data[position + chance.randrange(HEADER_SIZE, header.size)] ^= 1 << chance.randrange(8)
        segment.write_bytes(data)
        scene.total.count("flipped")
    scene.cluster.start([broker])


CAMPAIGNS = [
    ClusterCampaign(
        "power-all", "kill -9 of all brokers, whose files lose what was not synced, under a new boot id; "
        "flush.messages=30 and flush.ms=200", lose_power_everywhere,
        plants.LOST, plants.cut_everywhere, 2, 50, site=Site(disks=True, topic=HELD_BACK),
    ),
    ClusterCampaign(
        "power-one", "kill -9 of a broker, whose files lose what was not synced, under a new boot id", lose_power,
        plants.MISSING, plants.cut_one, 2, 50, site=Site(disks=True),
    ),
    ClusterCampaign(
        "power-two", "kill -9 of two brokers, whose files lose what was not synced, if the third is in sync",
        lose_power_of_two, plants.VANISHED, plants.poll_one_more, 2, 50, site=Site(disks=True),
    ),
    ClusterCampaign(
        "fsync-eio-replica", "an fsync of a leader's or a follower's segment fails with EIO", fail_sync,
        plants.DIFFERENT, plants.change_one, 2, 40, site=Site(disks=True, topic=_FLUSHED),
    ),
    ClusterCampaign(
        "disk-full-replica", "the disk of a leader or a follower is full for seconds, from the middle of a write on; "
        "sometimes the broker is killed meanwhile", fill_up,
        plants.LOST, plants.cut_everywhere, 2, 20, site=Site(disks=True, broker=_MUCH_LAG),
        extra="meanwhile all partitions take records within 15 s; with room again, replicas come in sync without a "
        "restart",
    ),
    ClusterCampaign(
        "slow-disk", "syncs of one broker take up to 400 ms and writes up to 100 ms", slow_down,
        plants.ZERO, plants.acknowledge_at_zero, 1, 20, site=Site(disks=True, topic=_FLUSHED),
    ),
    ClusterCampaign(
        "disk-replaced", "a broker dies and comes back with an empty log directory", replace_disk,
        plants.LOST, plants.cut_everywhere, 1, 20,
    ),
    ClusterCampaign(
        "bit-flip-follower", "one bit of a batch below a dead follower's watermark, in the segment that recovery reads",
        flip_below_watermark, plants.DIFFERENT, plants.change_one, 2, 100,
    ),
]  # fmt: skip
