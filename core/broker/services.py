"""The parts of the broker that handlers use, assembled once at start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ..cluster.cluster import Cluster
from ..cluster.image import ClusterImage
from ..config.sections.broker import BrokerConfig
from ..errors import ErrorCode
from ..interfaces.service import AppendListener
from ..log.manager import LogManager
from ..process_log import ProcessLog
from ..protocol.current_leader import CurrentLeader
from ..records.codecs import CodecTable
from ..records.partition import TopicPartition
from ..replication.fetch_sessions import FetchSessionCache
from .access import AccessControl
from .coordinator.group_service import GroupService
from .coordinator.topic_deletions import TopicDeletions
from .dynamic_config.live_config import LiveConfig
from .metrics.counters import BrokerMetrics
from .network.memory import Memory
from .producer_ids import ProducerIds
from .refused_batches import RefusedBatches
from .replication.follower_fetches import FollowerFetches
from .replication.new_leaders import NewLeaders
from .replication.partitions import Partitions
from .replication.replica import Replica
from .replication.role_changes import RoleChanges
from .session.lease import Lease
from .validation import Validation
from .workers import Workers


@dataclass
class Services:
    """`config` is the one in force, and changes while the broker runs (`live`); `advertised` is this broker's own
    address by listener name; `clock_ms` returns ms since the epoch; `third_party_codecs` are the ids (5 to 7) of
    codecs that are loaded here, whose batches may be stored; `process_log`: None if the process is not the broker's
    own."""

    config: BrokerConfig
    live: LiveConfig
    advertised: Mapping[str, tuple[str, int]]
    cluster: Cluster
    lease: Lease
    leadership: RoleChanges
    fetch_sessions: FetchSessionCache[Any, Any]
    follower_fetches: FollowerFetches
    new_leaders: NewLeaders
    logs: LogManager
    partitions: Partitions
    groups: GroupService
    deletions: TopicDeletions
    refused_batches: RefusedBatches
    producer_ids: ProducerIds
    validation: Validation
    access: AccessControl
    codecs: CodecTable
    workers: Workers
    metrics: BrokerMetrics
    memory: Memory
    clock_ms: Callable[[], int]

    third_party_codecs: frozenset[int]
    process_log: ProcessLog | None = None
    append_listeners: tuple[AppendListener, ...] = ()
    """Called by `handlers.produce` after each append on the event loop: `BrokerContext.on_append`."""
    mirror_sources: Mapping[str, str] = field(default_factory=dict)
    """By link: the id of the cluster that it copies; empty while that is not known."""

    @property
    def image(self) -> ClusterImage:
        return self.leadership.image

    @property
    def broker_id(self) -> int:
        return self.config.broker_id

    def topic_name(self, topic_id: bytes) -> str | None:
        """Returns the name of the topic with this id (16 bytes); None if this broker knows none."""
        known = self.image.topic_by_id(UUID(bytes=topic_id))
        return None if known is None else known.name

    def current_leader(self, topic: str | bytes, partition: int) -> CurrentLeader | None:
        """Returns the leader of a partition (KIP-951), as this broker last read it; None if it knows none. `topic`: its
        name or the 16 bytes of its id."""
        image = self.image
        known = image.topics.get(topic) if isinstance(topic, str) else image.topic_by_id(UUID(bytes=topic))
        found = None if known is None else known.partitions.get(partition)
        return None if found is None else CurrentLeader(found.leader, found.leader_epoch)

    def led(self, topic: str, partition: int, leader_epoch: int = -1) -> Replica | ErrorCode:
        """Returns the partition if it is led here and the client's epoch (-1: none given) is the current one (KIP-320);
        else the error.
        """
        found = self.partitions.find(topic, partition)
        if found is None:
            return self.not_led(topic, partition)
        if leader_epoch != -1 and leader_epoch != found.leader_epoch:
            older = leader_epoch < found.leader_epoch
            return ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        return found

    def readable(self, topic: str, partition: int, leader_epoch: int = -1) -> Replica | ErrorCode:
        """Returns the partition as `led` does, or if it follows here (KIP-392): a consumer may read below the high
        watermark of any replica."""
        found = self.partitions.replica(TopicPartition(topic, partition))
        follower = None if found is None else found.partition.follower
        if found is None or follower is None:
            return self.led(topic, partition, leader_epoch)
        if leader_epoch not in (-1, follower.leader_epoch):
            older = leader_epoch < follower.leader_epoch
            return ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch
        return found

    def not_led(self, topic: str | bytes, partition: int) -> ErrorCode:
        """Returns the error for a partition that is not led here. `topic`: its name or the 16 bytes of its id; an
        unknown topic may be one that this broker has not read yet."""
        if isinstance(topic, str):
            known = self.image.topics.get(topic)
        elif (known := self.image.topic_by_id(UUID(bytes=topic))) is None:
            return ErrorCode.unknown_topic_id
        if known is None or partition not in known.partitions:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.not_leader_or_follower
