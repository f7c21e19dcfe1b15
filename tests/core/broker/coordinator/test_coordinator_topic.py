"""Which broker coordinates a group, and how `__consumer_offsets` is created."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from klamm.core.broker.coordinator.coordinator_topic import CoordinatorTopic
from klamm.core.broker.metrics.counters import BrokerMetrics
from klamm.core.broker.replication.partitions import Partitions
from klamm.core.cluster.image import ClusterImage, TopicImage
from klamm.core.errors import BrokerError
from klamm.core.groups.offsets_topic import OFFSETS_TOPIC, partition_for
from klamm.core.interfaces.offsets import OffsetsTopicSettings
from klamm.core.replication.partition_state import NO_LEADER
from klammtest.brokers.led import TOPIC_ID, led_partition
from klammtest.clusters.images import broker_node, partition_image
from klammtest.guarantees import guarantee

BROKERS = {number: broker_node(number) for number in (0, 1)}
NOTHING = ClusterImage("c", 0, BROKERS, {})


def image_of(*leaders: int) -> ClusterImage:
    """The topic with a partition for each leader."""
    states = {number: partition_image(leader, 3, (leader,)) for number, leader in enumerate(leaders)}
    return replace(NOTHING, topics={OFFSETS_TOPIC: TopicImage(OFFSETS_TOPIC, TOPIC_ID, states)})


def placement(
    image: ClusterImage,
    partitions: Partitions | None = None,
    settings: OffsetsTopicSettings | None = None,
    create: Any = None,
    incarnation: str = "me",
) -> CoordinatorTopic:
    return CoordinatorTopic(
        OFFSETS_TOPIC, "offsets.topic", 0, lambda: image, partitions or Partitions(BrokerMetrics()),
        settings or OffsetsTopicSettings(), create,
        lambda: incarnation,
    )  # fmt: skip


def chosen_by_name(patch: pytest.MonkeyPatch) -> None:
    """As it was: whoever the name chose of the live brokers, and another one once that was paused."""

    def coordinator_of(self: CoordinatorTopic, group: str) -> int:
        brokers = sorted(self._image().brokers)
        return brokers[zlib.crc32(group.encode()) % len(brokers)]

    patch.setattr(CoordinatorTopic, "coordinator_of", coordinator_of)


@guarantee("B8", "the leader of a group's partition coordinates it, nobody else", plant=chosen_by_name)
def test_the_leader_of_a_groups_partition_coordinates_it() -> None:
    placed = placement(image_of(0, 1, 2))
    for number in range(12):
        leader = partition_for(f"g{number}", 3)
        assert placed.coordinator_of(f"g{number}") == (leader if leader in BROKERS else NO_LEADER)
    assert placement(NOTHING).coordinator_of("g1") == NO_LEADER


def test_a_role_is_led_served_and_of_the_present_registration(tmp_path: Path) -> None:
    async def test() -> None:
        image = image_of(0, 1)
        state = image.topics[OFFSETS_TOPIC].partitions[0]
        served = Partitions(BrokerMetrics())
        assert placement(image, served).roles() == {}, "its log is not open yet"
        led = led_partition(tmp_path, state)
        served.put(led)
        (role,) = placement(image, served).roles().values()
        assert (role.number, role.partitions, role.leader_epoch, role.incarnation) == (0, 2, 3, "me")
        assert [role.holds(group) for group in ("a", "b")] == [partition_for(group, 2) == 0 for group in ("a", "b")]
        assert placement(image, served, incarnation="").roles() == {}
        assert placement(image_of(1, 1), served).roles() == {}
        older = partition_image(0, 4, (0,))
        topic = replace(image.topics[OFFSETS_TOPIC], partitions={0: older})
        assert placement(replace(image, topics={OFFSETS_TOPIC: topic}), served).roles() == {}, "not in this epoch yet"
        again = replace(image.topics[OFFSETS_TOPIC], topic_id=uuid4())
        assert placement(replace(image, topics={OFFSETS_TOPIC: again}), served).roles() == {}, "it was created again"
        led.log.close()

    asyncio.run(test())


@pytest.mark.parametrize(("live", "configured", "made"), [(5, None, 3), (2, None, 2), (5, 2, 2), (5, 4, 4)])
def test_the_topic_is_created_with_the_replicas_that_are_possible(live: int, configured: int, made: int) -> None:
    created: list[tuple[Any, ...]] = []

    async def create(*topic: Any) -> None:
        created.append(topic)

    settings = OffsetsTopicSettings(4, configured, {"cleanup.policy": "compact"})
    brokers = {number: broker_node(number) for number in range(live)}
    asyncio.run(placement(replace(NOTHING, brokers=brokers), settings=settings, create=create).ensure_topic())
    assert created == [(OFFSETS_TOPIC, 4, made, {"cleanup.policy": "compact"})]


def test_a_configured_replication_factor_waits_for_enough_brokers() -> None:
    async def create(*_: Mapping[str, str]) -> None:
        raise AssertionError("too early")

    placed = placement(NOTHING, settings=OffsetsTopicSettings(4, 3), create=create)
    with pytest.raises(BrokerError, match=r"offsets.topic.replication.factor is 3, and 2 brokers are live"):
        asyncio.run(placed.ensure_topic())
    asyncio.run(placement(image_of(0), settings=OffsetsTopicSettings(4, 3), create=create).ensure_topic())


def test_the_controller_keeps_the_groups_until_the_topic_exists() -> None:
    assert placement(NOTHING).keeps_unplaced
    assert not placement(replace(NOTHING, controller_id=1)).keeps_unplaced
    assert not placement(image_of(0)).keeps_unplaced
