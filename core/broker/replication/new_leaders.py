"""Which leaders of new partitions serve them already, so that Metadata names no leader that would refuse the first
Produce.

An elected leader serves a partition once it has read of its election and opened the log. As in Kafka, Metadata
answers LEADER_NOT_AVAILABLE until then. Leaders of new partitions are asked when a client first requests them, and
once only: later changes of leaders are found by errors, as in Kafka.

Each leader is asked by its own task on its own connection, for all topics together: one that does not answer delays
only its own partitions, and many new topics need no more connections than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final
from uuid import UUID

from ...cluster.image import ClusterImage, TopicImage
from ...errors import ErrorCode, KlammError
from ...protocol.apis import ApiKey
from ...records.partition import TopicPartition
from ...transport.address import Address
from .broker_link import BrokerLink
from .partitions import Partitions

_API: Final = ApiKey.OFFSET_FOR_LEADER_EPOCH
_VERSION: Final = 4
_PATIENCE_S: Final = 1.0
"""How long one Metadata request waits for leaders."""
_GIVEN_UP_S: Final = 10.0
"""After this time a leader that does not answer is named all the same: its log may be offline."""
_PAUSES_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1)
_NOT_YET: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.kafka_storage_error,
    }
)


class NewLeaders:
    """Belongs to the event loop. `image` is the image in force; the partitions of the first image do not count as
    new."""

    def __init__(self, broker_id: int, partitions: Partitions, image: Callable[[], ClusterImage]) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._image = image
        self._known = {topic.topic_id: len(topic.partitions) for topic in image().topics.values()}
        """By topic: the number of its first partitions that are all served."""
        self._led: dict[UUID, set[tuple[int, int]]] = {}
        """(partition, leader) of the other partitions that are served."""
        self._since_s: dict[UUID, float] = {}
        """When a client first requested a topic with new partitions, by topic."""
        self._asking: dict[int, asyncio.Task[None]] = {}
        """The running task by leader."""
        self._waiting: set[asyncio.Future[None]] = set()

    def has_new(self, names: Iterable[str]) -> bool:
        """Returns True if a topic has partitions whose leader is not known to lead."""
        return any(self._unknown(name) for name in names)

    async def wait(self, names: Iterable[str]) -> frozenset[TopicPartition]:
        """Waits a while until the new partitions of these topics are served; returns those that are not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        unknown = [name for name in names if self._unknown(name)]
        for name in unknown:
            self._ask(name)
        while (unknown := [name for name in unknown if self._unknown(name)]) and (left := deadline - loop.time()) > 0:
            progress = loop.create_future()
            self._waiting.add(progress)
            try:
                await asyncio.wait((progress,), timeout=left)
            finally:
                self._waiting.discard(progress)
        topics = self._image().topics
        return frozenset(
            TopicPartition(name, number)
            for name in unknown
            if name in topics
            for number, _ in self._awaited(topics[name])
        )

    async def stop(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forget(self) -> None:
        """Forgets topics that are deleted. Called periodically."""
        there = {topic.topic_id for topic in self._image().topics.values()}
        for known in (self._known, self._led, self._since_s):
            for topic_id in known.keys() - there:
                del known[topic_id]

    def _unknown(self, name: str) -> bool:
        topic = self._image().topics.get(name)
        if topic is None or self._known.get(topic.topic_id, 0) >= len(topic.partitions):
            return False
        if next(self._awaited(topic), None) is not None and not self._is_given_up(topic):
            return True
        self._known[topic.topic_id] = len(topic.partitions)
        self._led.pop(topic.topic_id, None)
        self._since_s.pop(topic.topic_id, None)
        return False

    def _is_given_up(self, topic: TopicImage) -> bool:
        since_s = self._since_s.get(topic.topic_id)
        return since_s is not None and asyncio.get_running_loop().time() > since_s + _GIVEN_UP_S

    def _awaited(self, topic: TopicImage) -> Iterator[tuple[int, int]]:
        """Yields the (number, leader) of new partitions whose leader is live and not known to lead."""
        count, led = self._known.get(topic.topic_id, 0), self._led.get(topic.topic_id, ())
        for number, found in topic.partitions.items():
            if number < count or (number, found.leader) in led:
                continue
            if found.leader == self._broker_id:
                if self._partitions.find(topic.name, number) is None:
                    yield number, found.leader
            elif found.leader in self._image().brokers:
                yield number, found.leader

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self, name: str) -> None:
        topic, loop = self._image().topics[name], asyncio.get_running_loop()
        self._since_s.setdefault(topic.topic_id, loop.time())
        for leader in {leader for _, leader in self._awaited(topic)} - self._asking.keys():
            self._asking[leader] = loop.create_task(self._await_leader(leader))

    async def _await_leader(self, leader: int) -> None:
        """Asks a leader until it serves all partitions that clients have requested, or the time is over."""
        connection: BrokerLink | None = None
        attempt = 0
        try:
            while missing := self._missing(leader):
                if leader != self._broker_id:
                    try:
                        connection = connection or await self._connect(leader)
                        found = await self._led_by(connection, missing)
                    except (OSError, EOFError, TimeoutError, KlammError):
                        connection, found = None, []
                    for topic, number in found:
                        self._led.setdefault(topic.topic_id, set()).add((number, leader))
                self._wake()
                if self._missing(leader):
                    await asyncio.sleep(_PAUSES_S[min(attempt, len(_PAUSES_S) - 1)])
                    attempt += 1
        finally:
            del self._asking[leader]  # at once after the last check: later calls start another task
            self._wake()
            if connection is not None:
                connection.close()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def _missing(self, leader: int) -> dict[str, tuple[TopicImage, list[int]]]:
        """Returns, by topic, the requested partitions that this leader does not serve yet."""
        image, found = self._image(), {}
        for topic_id in list(self._since_s):
            topic = image.topic_by_id(topic_id)
            if topic is None or not self._unknown(topic.name):
                continue
            numbers = [number for number, other in self._awaited(topic) if other == leader]
            if numbers:
                found[topic.name] = topic, numbers
        return found

    async def _connect(self, leader: int) -> BrokerLink:
        node = self._image().brokers.get(leader)
        if node is None:
            raise EOFError(f"broker {leader} is not live")
        at = node.inter_broker_endpoint
        return await BrokerLink.open(Address(at.host, at.port), "klamm-broker", _PATIENCE_S)

    @staticmethod
    async def _led_by(
        connection: BrokerLink, missing: Mapping[str, tuple[TopicImage, list[int]]]
    ) -> list[tuple[TopicImage, int]]:
        """Returns the partitions that the broker names itself the leader of."""

        def asked(topic: TopicImage, number: int) -> dict[str, int]:
            epoch = topic.partitions[number].leader_epoch
            return {"partition": number, "current_leader_epoch": epoch, "leader_epoch": epoch}

        topics = [
            {"topic": name, "partitions": [asked(topic, number) for number in numbers]}
            for name, (topic, numbers) in missing.items()
        ]
        answer = await connection.call(
            _API, lambda schema: schema.message(replica_id=-1, topics=topics), max_version=_VERSION
        )
        return [
            (missing[found.topic][0], row.partition)
            for found in answer.topics
            if found.topic in missing
            for row in found.partitions
            if row.error_code not in _NOT_YET
        ]
