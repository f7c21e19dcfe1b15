"""The cluster as one broker last read it: immutable, so that any thread may use it without a lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from .paths import ALL_BROKERS

NO_LEADER = -1


class Endpoint(NamedTuple):
    """Where clients reach a broker, as it is advertised."""

    host: str
    port: int
    listener: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A live broker. `epoch` grows with every registration (the creation id of its path)."""

    id: int
    host: str
    port: int
    epoch: int
    rack: str | None = None
    directory_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`leader` is a broker id, or `NO_LEADER`; it need not be live. `replicas` in order of preference."""

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
    """`controller_id` is -1 while there is none. `version` grows with every change to any topic."""

    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerNode]
    topics: Mapping[str, TopicImage]
    version: int = -1
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    _by_id: dict[UUID, TopicImage] = field(default_factory=dict, init=False, repr=False, compare=False)

    def broker_config(self, broker_id: int | None) -> Mapping[str, str]:
        """What the cluster says of one broker's configuration; None: of all brokers'."""
        return self.broker_configs.get(ALL_BROKERS if broker_id is None else str(broker_id), {})

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        if len(self._by_id) != len(self.topics):  # indexed when it is first asked for
            self._by_id.update((topic.topic_id, topic) for topic in self.topics.values())
        return self._by_id.get(topic_id)


EMPTY_IMAGE = ClusterImage("", -1, {}, {})
