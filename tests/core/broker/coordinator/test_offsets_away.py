"""While the coordination's session is suspended, commits to it are refused at once: they would hold up heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.core.broker.coordinator.coordinator_topic import CoordinatorTopic
from klamm.core.broker.coordinator.group_service import GroupService
from klamm.core.broker.coordinator.offset_commits import OffsetCommitter
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.broker.workers import Workers
from klamm.core.cluster.image import ClusterImage, TopicImage
from klamm.core.cluster.tree import paths
from klamm.core.config.sections.broker import BrokerConfig
from klamm.core.errors import ErrorCode
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC
from klamm.core.interfaces.coordination import CoordinationUnavailableError, NoNodeError, SessionEvent, Stat
from klamm.core.interfaces.offsets import CommittedOffset, OffsetsTopicSettings
from klamm.core.records.codecs import CodecTable
from klamm.core.records.partition import TopicPartition
from klammtest.brokers.led import TOPIC_ID, led_partition
from klammtest.clusters.images import partition_image

LED = partition_image(0, 3, (0,))
IMAGE = ClusterImage("c", 0, {}, {OFFSETS_TOPIC: TopicImage(OFFSETS_TOPIC, TOPIC_ID, {0: LED})})
OFFSETS = {TopicPartition("t", 0): CommittedOffset(1)}


class Sessions:
    """As much of a coordination as says when its session changes."""

    session_timeout_s = 60.0

    def on_session(self, callback: Callable[[SessionEvent], None]) -> None:
        self.tell = callback

    def get(self, path: str) -> tuple[bytes, Stat]:
        if path == paths.partition_state(OFFSETS_TOPIC, 0):
            return LED.state.encode(), Stat(0, 0, 0, 0, 0)
        if path != paths.METADATA_VERSION:
            raise NoNodeError(path)
        return b"", Stat(0, 0, 0, 0, 0)


class Store:
    """Counts the calls that got through to it."""

    in_offsets_topic = False

    def __init__(self, needs_coordination: bool) -> None:
        self.needs_coordination = needs_coordination
        self.calls = 0

    def commit(self, *_: object) -> None:
        self.calls += 1

    def fetch(self, *_: object) -> dict[TopicPartition, CommittedOffset]:
        self.calls += 1
        return {}


@pytest.mark.parametrize("event", [SessionEvent.SUSPENDED, SessionEvent.EXPIRED])
def test_a_store_that_is_away_is_not_asked(tmp_path: Path, event: SessionEvent) -> None:
    assert asyncio.run(_calls(tmp_path, Store(needs_coordination=True), event)) == (2, 2)


def test_a_store_that_needs_no_coordination_goes_on(tmp_path: Path) -> None:
    assert asyncio.run(_calls(tmp_path, Store(needs_coordination=False), SessionEvent.SUSPENDED)) == (4, 0)


def test_no_commit_is_taken_once_the_session_is_over(tmp_path: Path) -> None:
    """Whoever fetches may do so: the store answers."""
    assert asyncio.run(_calls(tmp_path, Store(needs_coordination=False), SessionEvent.EXPIRED)) == (3, 1)


async def _calls(folder: Path, store: Any, event: SessionEvent) -> tuple[int, int]:
    """Calls that reached the store, and calls refused: two during the event, two after it."""
    sessions: Any = Sessions()
    workers = Workers(1)
    partitions = Partitions(BrokerMetrics())
    led = led_partition(folder, LED)
    partitions.put(led)
    no_topic: Any = None
    topic = CoordinatorTopic(
        OFFSETS_TOPIC, "offsets.topic", 0, lambda: IMAGE, partitions, OffsetsTopicSettings(), no_topic, lambda: "me",
    )  # fmt: skip
    service = GroupService(BrokerConfig(), sessions, store, workers, lambda: IMAGE, topic, CodecTable())
    service.start()
    while service.not_mine("g") is not None:
        await asyncio.sleep(0.01)
    refused = 0
    try:
        for now in (event, SessionEvent.CONNECTED):
            sessions.tell(now)
            codes = await service.commits.commit("g", OffsetCommitter(), OFFSETS)
            refusal = ErrorCode.not_coordinator if now is SessionEvent.EXPIRED else ErrorCode.coordinator_not_available
            refused += list(codes.values()) == [refusal]
            try:
                await service.offsets.fetch("g", None)
            except CoordinationUnavailableError:
                refused += 1
    finally:
        await service.stop()
        workers.close()
        led.log.close()
    return store.calls, refused
