"""The metadata image: the cluster as one broker last read it. Immutable, so that any thread may use it without a
lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple
from uuid import UUID

from ..records.partition import TopicPartition
from ..replication.partition_state import PartitionState
from ..replication.registrations import BrokerRegistration
from .reassignment import ReplicaAssignment
from .tree.nodes import FormerTopic
from .tree.paths import ALL_BROKERS


class Endpoint(NamedTuple):
    """The advertised address of a broker's listener."""

    host: str
    port: int
    listener: str = "PLAINTEXT"
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A live broker. `endpoints` by listener, the first one for clients that name none; `session_id`: the session that
    its registration ends with; `registered_ms`: when it registered, by its own clock."""

    id: int
    registration: BrokerRegistration
    endpoints: Mapping[str, Endpoint]
    inter_broker_listener: str
    rack: str | None = None
    directory_id: str = ""
    session_id: int = 0
    registered_ms: int = 0

    @property
    def epoch(self) -> int:
        """The creation id of its path; grows with every registration."""
        return self.registration.epoch

    @property
    def endpoint(self) -> Endpoint:
        return next(iter(self.endpoints.values()))

    @property
    def host(self) -> str:
        return self.endpoint.host

    @property
    def port(self) -> int:
        return self.endpoint.port

    @property
    def inter_broker_endpoint(self) -> Endpoint:
        return self.endpoints.get(self.inter_broker_listener, self.endpoint)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`replicas` are in order of preference; `path_version` is the version of the path of `state`."""

    state: PartitionState
    replicas: tuple[int, ...]
    path_version: int = 0
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def assignment(self) -> ReplicaAssignment:
        return ReplicaAssignment(self.replicas, self.adding_replicas, self.removing_replicas)

    @property
    def leader(self) -> int:
        """A broker id or `NO_LEADER`; the broker need not be live."""
        return self.state.leader

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def isr(self) -> tuple[int, ...]:
        return self.state.isr

    @property
    def elr(self) -> tuple[int, ...]:
        return self.state.elr


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionImage]
    configs: Mapping[str, str] = field(default_factory=dict)
    former: FormerTopic | None = None
    """The topic whose logs this one has taken over."""


@dataclass(frozen=True)
class ClusterImage:
    """`controller_id` is -1 while there is no controller. `version`, the version of `/admin/metadata_version`, grows
    with every change of topics and partition states, and `by` names the last one; `brokers` were read after them
    (docs/replication.md, R10). `restored`: states up to that leader epoch are from an older backup and must not be
    used. `history` grows each time the coordination was found to be older than before: what is missing since then was
    not deleted."""

    cluster_id: str
    controller_id: int
    brokers: Mapping[int, BrokerNode]
    topics: Mapping[str, TopicImage]
    version: int = -1
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    by: str = ""
    restored: int | None = None
    history: int = 0

    def broker_config(self, broker_id: int | None) -> Mapping[str, str]:
        """Returns the dynamic configuration of one broker, or the default of all (None)."""
        return self.broker_configs.get(ALL_BROKERS if broker_id is None else str(broker_id), {})

    @cached_property
    def registrations(self) -> Mapping[int, BrokerRegistration]:
        """The live brokers' registrations by broker id."""
        return {number: node.registration for number, node in self.brokers.items()}

    @cached_property
    def _by_id(self) -> Mapping[UUID, TopicImage]:
        return {topic.topic_id: topic for topic in self.topics.values()}

    def topic_by_id(self, topic_id: UUID) -> TopicImage | None:
        return self._by_id.get(topic_id)

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """Yields every partition of every topic."""
        for topic in self.topics.values():
            for number, partition in topic.partitions.items():
                yield TopicPartition(topic.name, number), partition

    def changed_since(self, before: ClusterImage) -> Iterator[tuple[PartitionState | None, PartitionState]]:
        """Yields the states of all partitions of topics that differ from `before`, each with its earlier state."""
        for name, topic in self.topics.items():
            known = before.topics.get(name)
            if known is topic:
                continue
            for number, partition in topic.partitions.items():
                was = None if known is None else known.partitions.get(number)
                yield None if was is None else was.state, partition.state


EMPTY_IMAGE = ClusterImage("", -1, {}, {})
