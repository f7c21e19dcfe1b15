"""Which leaders of new partitions lead already, so that Metadata names no leader that would refuse the first Produce.

A leader that the cluster has elected leads once it has read of it and opened its log. As in Kafka, Metadata answers
LEADER_NOT_AVAILABLE until then. Leaders of new partitions are asked when a client first asks for them, and once only:
later changes of leaders are found by errors, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from ...cluster.image import ClusterImage, TopicImage
from ...errors import ErrorCode, KlammError
from ...protocol import messages
from ...protocol.apis import ApiKey
from ...protocol.headers import read_response_header, request_frame
from ...records.partition import TopicPartition
from ..partitions import Partitions
from .peer_connection import PeerConnection

_API: Final = ApiKey.OFFSET_FOR_LEADER_EPOCH
_VERSION: Final = 4
_PATIENCE_S: Final = 1.0
"""How long one Metadata request waits for leaders."""
_GIVEN_UP_S: Final = 10.0
"""After this time a leader that does not answer is named all the same: its log may be offline."""
_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.05)
_NOT_YET: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
    }
)


class NewLeaders:
    """Belongs to the event loop. `image` is that in force; what it has at first is not new."""

    def __init__(self, broker_id: int, partitions: Partitions, image: Callable[[], ClusterImage]) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._image = image
        self._known = {topic.topic_id: len(topic.partitions) for topic in image().topics.values()}
        """The topics that are led, with the number of their first partitions that are."""
        self._asked: dict[UUID, asyncio.Task[None]] = {}
        self._since_s: dict[UUID, float] = {}

    def has_new(self, names: Iterable[str]) -> bool:
        """Returns True if a topic has partitions whose leader is another broker that has not been heard of yet."""
        return any(self._unknown(name) for name in names)

    async def wait(self, names: Iterable[str]) -> frozenset[TopicPartition]:
        """Waits a while until new partitions of these topics are led; returns those that are not."""
        topics = self._image().topics
        tasks = [self._task(topics[name]) for name in names if self._unknown(name)]
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE_S)
        topics = self._image().topics
        return frozenset(
            TopicPartition(name, number)
            for name in names
            for number, leader in self._new(topics.get(name))
            if self._is_awaited(name, number, leader)
        )

    async def stop(self) -> None:
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self) -> None:
        """Forgets topics that are deleted. Called periodically."""
        there = {topic.topic_id for topic in self._image().topics.values()}
        for known in (self._known, self._since_s):
            for topic_id in known.keys() - there:
                del known[topic_id]

    def _new(self, topic: TopicImage | None) -> list[tuple[int, int]]:
        """Returns the (number, leader) of partitions that are not known to be led."""
        if topic is None:
            return []
        count = self._known.get(topic.topic_id, 0)
        return [(number, found.leader) for number, found in topic.partitions.items() if number >= count]

    def _unknown(self, name: str) -> bool:
        topic = self._image().topics.get(name)
        if topic is None or self._known.get(topic.topic_id, 0) >= len(topic.partitions):
            return False
        if any(self._is_awaited(name, number, leader) for number, leader in self._new(topic)):
            return True
        self._known[topic.topic_id] = len(topic.partitions)
        return False

    def _is_awaited(self, name: str, number: int, leader: int) -> bool:
        if leader == self._broker_id:
            return self._partitions.find(name, number) is None
        return leader in self._image().brokers

    def _task(self, topic: TopicImage) -> asyncio.Task[None]:
        running = self._asked.get(topic.topic_id)
        if running is None:
            running = asyncio.get_running_loop().create_task(self._await_leaders(topic.topic_id, topic.name))
            self._asked[topic.topic_id] = running
            running.add_done_callback(lambda _: self._asked.pop(topic.topic_id, None))
        return running

    async def _await_leaders(self, topic_id: UUID, name: str) -> None:
        """Returns when all new partitions of the topic are led, or it has taken too long."""
        loop = asyncio.get_running_loop()
        since_s = self._since_s.setdefault(topic_id, loop.time())
        connections: dict[int, PeerConnection] = {}
        led: set[tuple[int, int]] = set()
        """(partition, leader)"""
        try:
            for attempt in range(2**31):
                topic = self._image().topics.get(name)
                if topic is None or topic.topic_id != topic_id:
                    return
                new = [(n, leader) for n, leader in self._new(topic) if self._is_awaited(name, n, leader)]
                missing = [each for each in new if each not in led]
                for leader in {leader for _, leader in missing} - {self._broker_id}:
                    asked = [number for number, other in missing if other == leader]
                    led |= {(number, leader) for number in await self._led(connections, leader, topic, asked)}
                if all(each in led for each in new) or loop.time() > since_s + _GIVEN_UP_S:
                    self._known[topic_id] = len(topic.partitions)
                    self._since_s.pop(topic_id, None)
                    return
                await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
        finally:
            for connection in connections.values():
                connection.close()

    async def _led(
        self, connections: dict[int, PeerConnection], leader: int, topic: TopicImage, numbers: list[int]
    ) -> list[int]:
        """Returns the partitions of which the broker says that it leads them."""
        node = self._image().brokers.get(leader)
        if node is None:
            return []
        schema = messages.request(_API, _VERSION)
        rows = tuple(
            schema.part(
                "OffsetForLeaderPartition",
                partition=number,
                current_leader_epoch=topic.partitions[number].leader_epoch,
                leader_epoch=topic.partitions[number].leader_epoch,
            )
            for number in numbers
        )
        asked = (schema.part("OffsetForLeaderTopic", topic=topic.name, partitions=rows),)
        body = schema.encode(schema.build(replica_id=-1, topics=asked))
        try:
            if leader not in connections:
                at = node.inter_broker_endpoint
                connections[leader] = await PeerConnection.connect(at.host, at.port, _PATIENCE_S)
            frame = await connections[leader].ask(request_frame(_API, _VERSION, 0, "klamm-broker", body))
            answer = messages.response(_API, _VERSION).decode(frame, read_response_header(frame, _API, _VERSION)[1])
        except (OSError, EOFError, TimeoutError, KlammError):
            connections.pop(leader, None)
            return []
        return [row.partition for found in answer.topics for row in found.partitions if row.error_code not in _NOT_YET]
