"""A topic whose partitions place coordinators: the leader of a key's partition coordinates it, as in Kafka.

A key identifies what is coordinated: a group id in `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from ...cluster.image import ClusterImage, TopicImage
from ...errors import BrokerError, ErrorCode, KlammError
from ...groups.offsets_topic import partition_for
from ...interfaces.offsets import DEFAULT_REPLICAS, OffsetsTopicSettings
from ...replication.partition_state import NO_LEADER
from ..replication.partitions import Partitions
from ..replication.replica import Replica

log = logging.getLogger(__name__)


class LedRole(NamedTuple):
    """This broker's leadership of one partition. `partitions` is the topic's number of partitions, on which the
    place of a key depends; `incarnation` names the registration, which this broker's ephemeral paths belong to."""

    topic_id: UUID
    partitions: int
    number: int
    leader_epoch: int
    incarnation: str

    def holds(self, key: str) -> bool:
        """Returns whether the key belongs to this partition."""
        return partition_for(key, self.partitions) == self.number


class CreateTopic(Protocol):
    def __call__(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]
    ) -> Awaitable[None]: ...


class CoordinatorTopic:
    """Belongs to the event loop. `keys`: the prefix of the topic's configuration keys (Kafka's `offsets.topic`).
    `image` returns the present image; `partitions` are those served here. `incarnation` names this broker's present
    registration; it is empty without one."""

    def __init__(
        self,
        name: str,
        keys: str,
        broker_id: int,
        image: Callable[[], ClusterImage],
        partitions: Partitions,
        settings: OffsetsTopicSettings,
        create: CreateTopic,
        incarnation: Callable[[], str],
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        self._keys = keys
        self._image = image
        self._partitions = partitions
        self._settings = settings
        self._create = create
        self._one_at_a_time = asyncio.Lock()
        self._reported = ""
        self.incarnation = incarnation

    def may_have_moved(self, coordinator: int) -> bool:
        """True if this broker is the coordinator and another broker exists that could have replaced it."""
        return coordinator == self.broker_id and any(other != coordinator for other in self._image().brokers)

    @property
    def _topic(self) -> TopicImage | None:
        return self._image().topics.get(self.name)

    @property
    def exists(self) -> bool:
        return self._topic is not None

    @property
    def keeps_unplaced(self) -> bool:
        """True if this broker is the controller and the topic does not exist yet: keys then have no partition, and
        this broker lists and expires them. Groups can have offsets then, but no classic members."""
        return self._topic is None and self._image().controller_id == self.broker_id

    def partition_of(self, key: str) -> int | None:
        """Returns the key's partition; None while the topic does not exist."""
        topic = self._topic
        return None if topic is None else partition_for(key, len(topic.partitions))

    def coordinator_of(self, key: str) -> int:
        """Returns the id of the live broker that coordinates a key; `NO_LEADER` while there is none."""
        topic = self._topic
        if topic is None:
            return NO_LEADER
        state = topic.partitions.get(partition_for(key, len(topic.partitions)))
        return state.leader if state is not None and state.leader in self._image().brokers else NO_LEADER

    def role(self, number: int) -> LedRole | None:
        """Returns this broker's leadership of a partition, if the image has it and the partition is served."""
        topic = self._topic
        return None if topic is None else self._role(topic, number, self.incarnation())

    def roles(self) -> dict[int, LedRole]:
        topic = self._topic
        if topic is None:
            return {}
        incarnation = self.incarnation()
        found = {number: self._role(topic, number, incarnation) for number in topic.partitions}
        return {number: role for number, role in found.items() if role is not None}

    def replica(self, role: LedRole) -> Replica | None:
        return self._partitions.find(self.name, role.number)

    def _role(self, topic: TopicImage, number: int, incarnation: str) -> LedRole | None:
        state = topic.partitions.get(number)
        if state is None or state.leader != self.broker_id or not incarnation:
            return None
        led = self._partitions.find(self.name, number)
        if led is None or led.log.topic_id != topic.topic_id or led.leader_epoch != state.leader_epoch:
            return None
        return LedRole(topic.topic_id, len(topic.partitions), number, state.leader_epoch, incarnation)

    async def ensure_topic(self) -> None:
        """Creates the topic unless it exists. Raises `KlammError` if that is not possible now.

        A configured replication factor needs as many live brokers, as in Kafka. Without one there are
        `DEFAULT_REPLICAS`, or fewer if fewer brokers are live.
        """
        if self.exists:
            return
        async with self._one_at_a_time:
            if self.exists:
                return
            try:
                await self._create(self.name, self._settings.partitions, self._factor(), self._settings.configs)
            except KlammError as error:
                if str(error) != self._reported:  # clients ask again and again
                    log.warning("%s has no coordinators: %s", self.name, error)
                self._reported = str(error)
                raise

    def _factor(self) -> int:
        configured, possible = self._settings.replication_factor, len(self._image().brokers)
        if configured is None:
            return min(DEFAULT_REPLICAS, possible)
        if configured > possible:
            raise BrokerError(
                ErrorCode.invalid_replication_factor,
                f"{self.name} cannot be created: {self._keys}.replication.factor is {configured}, and {possible} "
                "brokers are live",
            )
        return configured
