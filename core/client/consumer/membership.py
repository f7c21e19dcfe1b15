"""Chooses the group protocol of a consumer and makes its group member."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from ...cluster.tree import paths
from ...cluster.tree.nodes import ClusterIdNode
from ...config.settings import Settings
from ...errors import BrokerError, ConfigError, ErrorCode
from ...groups.membership.classic_calls import ClassicSettings
from ...groups.membership.classic_member import ClassicMember
from ...groups.membership.member import GroupMember, LostOwnershipError, MemberListener, Owned
from ...groups.membership.registry import RegistryMember, RegistrySettings
from ...groups.membership.topic_watch import TopicPartitions, TopicWatch
from ...interfaces.coordination import Coordination, NoNodeError
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from ..cluster_client import ClusterClient
from ..typed import SharedCoordination


def uses_registry(settings: Settings) -> bool:
    """Returns True unless the protocol is classic. The registry is the default: every `Coordination` can hold it
    (design D6).
    """
    return settings.consumer.group_protocol != "classic"


def patience_s(settings: Settings) -> float:
    """Returns how long a revocation waits for the application: half of the time after which the other members fail."""
    config = settings.consumer
    if uses_registry(settings):
        return config.rebalance_max_retries * config.rebalance_backoff_ms / 2000
    return config.max_poll_interval_ms / 2000


def make_member(
    settings: Settings,
    group: str,
    subscription: Mapping[str, int],
    listener: MemberListener,
    *,
    client: ClusterClient,
    coordination: SharedCoordination,
    idle_s: Callable[[], float],
) -> GroupMember:
    """Returns a group member that is not started. `subscription`: the number of streams by topic."""
    config = settings.consumer
    if uses_registry(settings):
        opened = coordination()
        _check_cluster(settings, client, opened)
        return RegistryMember(
            opened,
            settings.make_offset_store(opened),
            RegistrySettings(group, subscription, config.rebalance_max_retries, config.rebalance_backoff_ms / 1000),
            listener,
        )
    classic = ClassicSettings(
        group,
        subscription,
        config.partition_assignment_strategy,
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_s=config.heartbeat_interval_ms / 1000,
        max_poll_interval_s=config.max_poll_interval_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
    )

    topics = TopicWatch(partial(_topics, client), config.metadata_max_age_ms / 1000, client.network.retry.delay)
    return ClassicMember(client, classic, listener, topics, idle_s=idle_s)


def _check_cluster(settings: Settings, client: ClusterClient, opened: Coordination) -> None:
    """Checks that the coordination belongs to the brokers' cluster: otherwise a member of one cluster's registry would
    wait without end for partitions of another's topics.
    """
    brokers = client.cluster.view.cluster_id
    try:
        found = ClusterIdNode.decode(paths.CLUSTER_ID, opened.get(paths.CLUSTER_ID)[0]).id
    except NoNodeError:
        found = None
    if brokers is not None and found != brokers:
        raise ConfigError(
            f"the coordination {settings.coordination.plugin!r} is of {f'cluster {found}' if found else 'no cluster'}, "
            f"but the brokers at {settings.consumer.bootstrap_servers} are of cluster {brokers}: give the coordination "
            "that they have, or set consumer.group.protocol: classic"
        )


def _topics(client: ClusterClient, names: Collection[str], timeout_s: float | None) -> dict[str, TopicPartitions]:
    """Returns those topics that exist: another member may subscribe to one that was deleted, or does not exist yet."""
    found = client.metadata(names, timeout_s=timeout_s).topics
    return {
        name: TopicPartitions(tuple(sorted(topic.partitions)), topic.topic_id)
        for name, topic in found.items()
        if topic.partitions
    }


class SoleMember:
    """Partitions assigned by hand, with offsets stored for a group without other members: the broker refuses these
    commits while the group has members.
    """

    def __init__(self, client: ClusterClient, group: str, listener: MemberListener) -> None:
        self.group = group
        self.member_id = ""
        self._client = client
        self._listener = listener
        self._owned: dict[TopicPartition, Owned] = {}

    def start(self) -> None:
        """Does nothing: there is no group to join."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assigned partitions."""
        wanted = set(partitions)
        gone = self._owned.keys() - wanted
        if gone:
            self._listener.on_revoked(gone)
        new = {p: Owned(p, 0, -1) for p in sorted(wanted - self._owned.keys())}
        self._owned = {p: o for p, o in self._owned.items() if p in wanted} | new
        self._listener.on_assigned(list(new.values()))

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        try:
            self._client.commit_offsets(self.group, offsets)
        except BrokerError as error:
            if error.code in (ErrorCode.unknown_member_id, ErrorCode.inconsistent_group_protocol):
                raise LostOwnershipError(
                    f"group {self.group!r} has members, so offsets cannot be stored for it from outside", error.code
                ) from error
            raise

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self._client.fetch_offsets(self.group, list(partitions))

    def close(self) -> None:
        self._listener.on_revoked(list(self._owned))
        self._owned = {}
