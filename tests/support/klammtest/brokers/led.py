"""A partition of `__consumer_offsets` on disk, as the broker that leads it serves it to the offset store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from klamm.core.broker.coordinator.led_log import LedLog
from klamm.core.broker.coordinator.shard_log import ShardLog
from klamm.core.broker.coordinator.stored_groups import StoredGroups
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.replication.replica import Replica
from klamm.core.broker.workers import Workers
from klamm.core.cluster.image import PartitionImage
from klamm.core.config.sections.topic import TopicConfig
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC
from klamm.core.interfaces.coordination import Coordination
from klamm.core.log.partition_log import PartitionLog
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klamm.core.replication.leader import ReplicationSettings
from klammtest.clusters.images import broker_node, partition_image
from klammtest.waiting import PATIENCE_S

T = TypeVar("T")
COMPACTED = TopicConfig(cleanup_policy="compact")
TOPIC_ID = UUID(int=7)
SETTINGS = ReplicationSettings(1, 30_000)


def led_partition(
    folder: Path, state: PartitionImage, number: int = 0, topic_id: UUID = TOPIC_ID, config: TopicConfig = COMPACTED
) -> Replica:
    """Returns the replica of the state's leader, which leads. Call it on an event loop."""
    tp = TopicPartition(OFFSETS_TOPIC, number)
    log = PartitionLog.open(folder / f"{tp.topic}-{number}", tp, topic_id, config, codecs=CodecTable())
    return leading(log, state)


def leading(log: PartitionLog, state: PartitionImage) -> Replica:
    """Returns a replica with this log that leads, as the state says. Call it on an event loop."""
    traffic = BrokerMetrics().traffic(log.tp.topic)
    replica = Replica(state.leader, log.tp, log, traffic, state.replicas, SETTINGS)
    lead(replica, state)
    return replica


def lead(replica: Replica, state: PartitionImage) -> None:
    own = broker_node(state.leader).registration
    replica.on_metadata(state.state, state.leader_epoch, own, state.replicas, SETTINGS)
    assert replica.leader_epoch == state.leader_epoch


def stored_groups(log: Any, coordination: Coordination | None = None) -> StoredGroups:
    """Returns the groups of a `LedLog`, or of as much of one as the test has."""
    shard_log = ShardLog(log)
    stored = StoredGroups(shard_log, cast("Coordination", coordination))
    shard_log.replay_into(stored)
    return stored


class LedOffsets:
    """The partition on an event loop of its own; `log()` in the present leader epoch."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="led-offsets")
        self._thread.start()
        self._workers = Workers(1)
        self.partitions = Partitions(BrokerMetrics())
        self.epoch = 1
        self.led = self._on_loop(lambda: led_partition(folder, self._state()))
        self._on_loop(lambda: self.partitions.put(self.led))

    def _state(self) -> PartitionImage:
        return partition_image(0, self.epoch, (0,))

    def log(self) -> LedLog:
        return self._on_loop(lambda: LedLog(self.led, self._workers, CodecTable()))

    def next_epoch(self) -> None:
        """Begins a leader epoch: logs of the former one are over."""
        self.epoch += 1
        self._on_loop(lambda: lead(self.led, self._state()))

    def lose(self) -> None:
        self._on_loop(lambda: self.partitions.remove([self.led.name]))

    def _on_loop(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._workers.close()
        self.led.log.close()
