"""A client's view of the cluster: brokers, topics, and which broker leads each partition.

A `ClusterView` is one broker's answer, immutable. `ClusterMetadata` is the cache into which answers are merged. The
newest answer about a topic wins, except that a partition's leader epoch never falls within one topic id (KIP-320): a
broker that has not learned of an election yet does not bring a deposed leader back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ...errors import ConfigError, ErrorCode
from ...records.partition import TopicPartition
from ...transport.address import Address

__all__ = [
    "NO_LEADER",
    "ClusterMetadata",
    "ClusterView",
    "NewLeader",
    "Node",
    "PartitionView",
    "TopicView",
    "parse_bootstrap",
    "read_metadata",
]

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as it advertises itself."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`leader` is a node id, -1 if there is none now; `leader_epoch` is -1 if the broker does not report it."""

    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class TopicView:
    """`error` is what the broker reports for the topic: none, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION, …
    `topic_id` distinguishes a topic from a deleted one of the same name (KIP-516); None if the broker reports none.
    """

    name: str
    error: ErrorCode
    partitions: Mapping[int, PartitionView]
    internal: bool = False
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str | None = None
    controller_id: int = NO_LEADER
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewLeader:
    """The leader, and its epoch, that a broker names for a partition that it does not lead itself (KIP-951)."""

    partition: TopicPartition
    leader: int
    leader_epoch: int


class ClusterMetadata:
    """The cache; thread-safe. Reading takes no lock: the view is replaced as a whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.view = ClusterView()
        self._updated_s: float | None = None
        self._newest: dict[str, tuple[UUID, dict[int, PartitionView]]] = {}
        """By topic: its id, and the view with the largest leader epoch of each partition."""

    @property
    def age_s(self) -> float:
        """Returns the seconds since the last answer; infinite before the first."""
        return float("inf") if self._updated_s is None else self._clock() - self._updated_s

    def update(self, answer: ClusterView, *, all_topics: bool = False) -> None:
        """Merges an answer. Topics that the broker does not have are forgotten; with `all_topics`, so is every topic
        that the answer lacks.
        """
        with self._lock:
            topics = {} if all_topics else dict(self.view.topics)
            for name, topic in answer.topics.items():
                if topic.error == ErrorCode.none or topic.partitions:
                    topics[name] = self._newest_of(topic)
                else:
                    topics.pop(name, None)
                    self._newest.pop(name, None)
            self.view = ClusterView(answer.cluster_id, answer.controller_id, answer.nodes, topics)
            self._updated_s = self._clock()

    def _newest_of(self, topic: TopicView) -> TopicView:
        """Returns the topic; partitions for which the answer has an older leader epoch keep their newer view."""
        if topic.topic_id is None:
            return topic
        topic_id, newest = self._newest.get(topic.name, (None, {}))
        if topic_id != topic.topic_id:
            newest = {}
        stale = {
            number: newest[number]
            for number, found in topic.partitions.items()
            if number in newest and found.leader_epoch < newest[number].leader_epoch
        }
        merged = {**topic.partitions, **stale}
        self._newest[topic.name] = topic.topic_id, merged
        return replace(topic, partitions=merged) if stale else topic

    def partition(self, partition: TopicPartition) -> PartitionView | None:
        """Returns what is known of the partition."""
        topic = self.view.topics.get(partition.topic)
        return topic.partitions.get(partition.partition) if topic else None

    def leader(self, partition: TopicPartition) -> int | None:
        """Returns the leader's node id, or None if it is not known."""
        found = self.partition(partition)
        return found.leader if found and found.leader in self.view.nodes else None

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Returns the leader epoch, -1 if it is not known."""
        found = self.partition(partition)
        return -1 if found is None else found.leader_epoch

    def topic_id(self, topic: str) -> UUID | None:
        """Returns the topic's id, None if it is not known."""
        found = self.view.topics.get(topic)
        return None if found is None else found.topic_id

    def elected(self, leaders: Iterable[NewLeader], nodes: Iterable[Node] = ()) -> None:
        """Updates leaders that an answer named, and their addresses, unless newer ones are known."""
        with self._lock:
            known = {**self.view.nodes, **{node.node_id: node for node in nodes}}
            topics = dict(self.view.topics)
            for new in leaders:
                topic = topics.get(new.partition.topic)
                found = topic.partitions.get(new.partition.partition) if topic else None
                if topic is None or found is None or new.leader not in known or new.leader_epoch <= found.leader_epoch:
                    continue
                changed = replace(found, leader=new.leader, leader_epoch=new.leader_epoch, error=ErrorCode.none)
                topics[topic.name] = replace(topic, partitions={**topic.partitions, new.partition.partition: changed})
                if topic.name in self._newest:
                    self._newest[topic.name][1][new.partition.partition] = changed
            self.view = replace(self.view, nodes=known, topics=topics)

    def forget_leaders(self, partitions: Iterable[TopicPartition], node_id: int) -> None:
        """Forgets that this broker leads these partitions. A leader that has become known meanwhile is kept."""
        with self._lock:
            topics = dict(self.view.topics)
            for partition in partitions:
                topic = topics.get(partition.topic)
                found = topic.partitions.get(partition.partition) if topic else None
                if topic is None or found is None or found.leader != node_id:
                    continue
                lost = replace(found, leader=NO_LEADER)
                topics[topic.name] = replace(topic, partitions={**topic.partitions, partition.partition: lost})
            self.view = replace(self.view, topics=topics)

    def forget(self, topics: Iterable[str]) -> None:
        """Forgets these topics, which were changed, so that they are requested again."""
        with self._lock:
            gone = set(topics)
            kept = {name: topic for name, topic in self.view.topics.items() if name not in gone}
            self.view = replace(self.view, topics=kept)

    def add_node(self, node: Node) -> None:
        """Adds a broker that another answer named (a group's coordinator)."""
        with self._lock:
            nodes = {**self.view.nodes, node.node_id: node}
            self.view = replace(self.view, nodes=nodes)

    def forget_node(self, node_id: int) -> None:
        """Forgets a broker that does not answer: it may have ended or moved, and is looked up before the next
        attempt.
        """
        with self._lock:
            nodes = {number: node for number, node in self.view.nodes.items() if number != node_id}
            self.view = replace(self.view, nodes=nodes)


def read_metadata(message: Any) -> ClusterView:
    """Converts a Metadata response of any version."""
    return ClusterView(
        cluster_id=getattr(message, "cluster_id", None),
        controller_id=getattr(message, "controller_id", NO_LEADER),
        nodes={b.node_id: Node(b.node_id, b.host, b.port, getattr(b, "rack", None)) for b in message.brokers},
        topics={topic.name: _topic(topic) for topic in message.topics},
    )


def _topic(topic: Any) -> TopicView:
    partitions = {
        p.partition_index: PartitionView(
            leader=p.leader_id,
            leader_epoch=getattr(p, "leader_epoch", -1),
            replicas=tuple(p.replica_nodes),
            isr=tuple(p.isr_nodes),
            error=p.error_code,
        )
        for p in topic.partitions
    }
    return TopicView(
        topic.name,
        topic.error_code,
        partitions,
        getattr(topic, "is_internal", False),
        getattr(topic, "topic_id", None),
    )


def parse_bootstrap(servers: str | Collection[str], name: str = "bootstrap.servers") -> list[Address]:
    """Parses `host:port,host:port`; IPv6 addresses are in brackets. Raises `ConfigError`, which names the part that is
    wrong. `name`: the key or the option that has the text.
    """
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    try:
        addresses = [Address.parse_server(part.strip()) for part in parts if part.strip()]
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not addresses:
        raise ConfigError(f"{name} is empty; expected host:port, e.g. 127.0.0.1:9092")
    return addresses
