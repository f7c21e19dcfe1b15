"""The metadata image: the cluster as one broker last read it. Immutable, so that any thread may use it without a
lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from .tree.paths import ALL_BROKERS

NO_LEADER = -1


class Endpoint(NamedTuple):
    """The advertised address of a broker's listener."""

    host: str
    port: int
    listener: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A live broker. `epoch`, the creation id of its path, grows with every registration."""

    id: int
    host: str
    port: int
    epoch: int
    rack: str | None = None
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`leader` is a broker id or `NO_LEADER`; the broker need not be live. `replicas` are in order of preference."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionImage]
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """`controller_id` is -1 while there is no controller. `version` grows with every change of any topic."""

    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerNode]
    topics: Mapping[str, TopicImage]
    version: int = -1
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _by_id: dict[UUID, TopicImage] = field(default_factory=dict, init=False, repr=False, compare=False)

    def broker_config(self, broker_id: int | None) -> Mapping[str, str]:
        """Returns the dynamic configuration of one broker, or the default of all (None)."""
        return self.broker_configs.get(ALL_BROKERS if broker_id is None else str(broker_id), {})

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        if len(self._by_id) != len(self.topics):  # the index is built at the first call
            self._by_id.update((topic.topic_id, topic) for topic in self.topics.values())
        return self._by_id.get(topic_id)


EMPTY_IMAGE = ClusterImage("", -1, {}, {})
