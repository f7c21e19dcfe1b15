"""The context of a service beside the broker: the logs that the broker leads, the offset store, the cluster's
topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from ..cluster.mirrors import MirrorTopicNode, read_topics
from ..errors import BrokerError, ErrorCode
from ..interfaces.codec import Buffer
from ..interfaces.coordination import Coordination
from ..interfaces.offsets import CommittedOffset, OffsetStore
from ..interfaces.service import AppendListener, MirrorSource, ServiceRead, SharedResource
from ..log.cut_batches import read_set_aside
from ..log.errors import OffsetOutOfRangeError
from ..log.partition_log import LogRead, ReadIsolation
from ..records.aborted import hide_aborted
from ..records.codecs import CodecTable
from ..records.isolation import IsolationLevel
from ..records.partition import TopicPartition
from ..transport.address import Address
from .background.leader_commits import LeaderCommits
from .internal_topics import ensure_topic
from .replication.replica import Replica
from .services import Services

R = TypeVar("R", bound=SharedResource)
T = TypeVar("T")


class LocalBrokerContext:
    """Implements `klamm.core.interfaces.service.BrokerContext`. Its methods block; call them from any thread but the
    event loop's.
    """

    def __init__(self, services: Services, coordination: Coordination, offsets: OffsetStore, address: Address) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()
        self.host = address.host
        self.bootstrap_servers = str(address)
        self.coordination = coordination
        self._offsets = offsets
        self._sharing = threading.Lock()
        self._shared: dict[str, SharedResource] = {}
        self._commits = LeaderCommits(
            coordination,
            offsets,
            services.groups.guarded_commits,
            services.broker_id,
            lambda: own.incarnation if (own := services.cluster.own_registration) is not None else "",
        )

    @property
    def codecs(self) -> CodecTable:
        return self._services.codecs

    def partitions(self) -> Mapping[TopicPartition, UUID | None]:
        replicas = self._services.partitions.replicas()
        return {replica.name: replica.log.topic_id for replica in replicas if _knows_the_end(replica)}

    def mirrored(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, MirrorSource | None]:
        return {
            partition: MirrorSource(node.topic_id, node.gaps.get(partition.partition, ())) if node else None
            for partition, node in self._mirrors(partitions).items()
        }

    def set_aside(self, partition: TopicPartition, offset: int, end: int, leader_epoch: int) -> Buffer | None:
        node = self._mirrors([partition]).get(partition)
        for cut in reversed(node.cuts) if node is not None else ():
            here = (cut.partition, cut.broker) == (partition.partition, self._services.broker_id)
            if here and cut.start <= offset and end <= cut.end:
                found = read_set_aside(Path(cut.path), end, leader_epoch)
                if found is not None:
                    return found
        return None

    def _mirrors(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, MirrorTopicNode | None]:
        """Returns those of the partitions that this broker leads as mirrors, with what is stored of them."""
        wanted = set(partitions)
        links = {
            replica.name: replica.leader.state.mirror
            for replica in self._services.partitions.replicas()
            if replica.name in wanted and replica.leader is not None and replica.leader.state.mirror
        }
        topics = {link: read_topics(self.coordination, link) for link in set(links.values())}
        return {partition: topics[link].get(partition.topic) for partition, link in links.items()}

    def read(
        self,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> ServiceRead:
        led = self._led(partition)
        log, epoch, bound = led.log, led.leader_epoch, ReadIsolation.of(isolation)
        found = LogRead(b"", log.high_watermark, log.log_start_offset, log.last_stable_offset)
        if max_bytes:
            with contextlib.suppress(OffsetOutOfRangeError):
                found = log.read(offset, max_bytes, isolation=bound)
        end = found.last_stable_offset if bound is ReadIsolation.COMMITTED else found.high_watermark
        read = ServiceRead(
            hide_aborted(found.data, found.aborted),
            found.high_watermark,
            found.log_start_offset,
            end,
            log.topic_id,
            epoch,
        )
        if self._led(partition).leader_epoch != epoch:
            raise BrokerError(ErrorCode.not_leader_or_follower, f"{partition} has a new leader epoch")
        return read

    def on_append(self, listener: AppendListener) -> None:
        self._services.append_listeners = (*self._services.append_listeners, listener)

    def epoch_end(self, partition: TopicPartition, leader_epoch: int) -> int:
        log = self._led(partition).log
        end = log.end_offset_for_epoch(leader_epoch)[1]
        return log.log_end_offset if end < 0 <= leader_epoch else end  # a mirror's log may have earlier epochs alone

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, CommittedOffset]:
        return self._offsets.fetch(group, partitions)

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        leader_epochs: Mapping[TopicPartition, int],
    ) -> set[TopicPartition]:
        return self._commits.commit(group, offsets, leader_epochs)

    def _led(self, partition: TopicPartition) -> Replica:
        led = self._services.led(partition.topic, partition.partition)
        if not isinstance(led, Replica):
            raise BrokerError(led, f"{partition} is not led by broker {self._services.broker_id}")
        if not _knows_the_end(led):
            raise BrokerError(ErrorCode.offset_not_available, f"{partition} has a new leader, which commits it again")
        return led

    def ensure_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        services = self._services
        factor = services.config.default_replication_factor
        self._on_loop(lambda: ensure_topic(services, name, partitions, factor, configs))

    def shared(self, name: str, make: Callable[[], R]) -> R:
        with self._sharing:
            if name not in self._shared:
                self._shared[name] = make()
            return cast(R, self._shared[name])

    def close(self) -> None:
        """Closes the resources that services share."""
        with self._sharing:
            shared, self._shared = self._shared, {}
        for resource in shared.values():
            resource.close()

    def _on_loop(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()


def _knows_the_end(replica: Replica) -> bool:
    """Returns whether the replica leads, and its high watermark has passed the start of its leader epoch. Before
    that the watermark may be lower than the former leader's, up to which a service may have read."""
    leader = replica.leader
    return leader is not None and leader.latest_offset_is_known
