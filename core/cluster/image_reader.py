"""Reads the metadata image: the whole tree, or only the topics that the last change touched."""

from __future__ import annotations

from collections.abc import Iterable

from ..interfaces.coordination import Coordination, NoNodeError
from .image import BrokerNode, ClusterImage, PartitionImage, TopicImage
from .tree import paths
from .tree.nodes import (
    BrokerIdNode,
    ClusterIdNode,
    ConfigNode,
    ControllerNode,
    MetadataVersionNode,
    PartitionStateNode,
    TopicNode,
)

__all__ = ["read_image", "read_topic"]

_ATTEMPTS = 5


def read_image(coordination: Coordination, previous: ClusterImage | None = None) -> ClusterImage:
    """Returns the present image. Topics are read again, a few times at most, until the metadata version is the same
    before and after: under constant change the image may mix two versions, and the watch that follows corrects it."""
    for _ in range(_ATTEMPTS):
        version, touched = _metadata_version(coordination)
        if previous is not None and previous.version == version:
            topics = dict(previous.topics)
        elif previous is not None and previous.version == version - 1:
            topics = {name: topic for name, topic in previous.topics.items() if name not in touched}
            topics |= _read_topics(coordination, touched)
        else:
            topics = _read_topics(coordination, coordination.children(paths.TOPICS))
        if _metadata_version(coordination)[0] == version:
            break
    return ClusterImage(
        cluster_id=ClusterIdNode.decode(paths.CLUSTER_ID, coordination.get(paths.CLUSTER_ID)[0]).id,
        controller_id=_controller_id(coordination),
        brokers=_read_brokers(coordination),
        topics=dict(sorted(topics.items())),
        version=version,
        broker_configs=_read_broker_configs(coordination),
    )


def _metadata_version(coordination: Coordination) -> tuple[int, tuple[str, ...]]:
    data, stat = coordination.get(paths.METADATA_VERSION)
    return stat.version, MetadataVersionNode.decode(paths.METADATA_VERSION, data).topics


def _controller_id(coordination: Coordination) -> int:
    try:
        data, _ = coordination.get(paths.CONTROLLER)
    except NoNodeError:
        return -1
    return ControllerNode.decode(paths.CONTROLLER, data).brokerid


def _read_brokers(coordination: Coordination) -> dict[int, BrokerNode]:
    brokers = {}
    for name in coordination.children(paths.BROKER_IDS):
        path = f"{paths.BROKER_IDS}/{name}"
        try:
            data, stat = coordination.get(path)
        except NoNodeError:
            continue  # deleted after the listing
        node = BrokerIdNode.decode(path, data)
        brokers[int(name)] = BrokerNode(int(name), node.host, node.port, stat.creation_id, node.rack, node.directory_id)
    return dict(sorted(brokers.items()))


def _read_broker_configs(coordination: Coordination) -> dict[str, dict[str, str]]:
    found = {}
    try:
        names = coordination.children(paths.BROKER_CONFIGS)
    except NoNodeError:
        return {}  # a tree written by an older release
    for name in names:
        path = f"{paths.BROKER_CONFIGS}/{name}"
        try:
            found[name] = ConfigNode.decode(path, coordination.get(path)[0]).config
        except NoNodeError:
            continue  # deleted after the listing
    return found


def _read_topics(coordination: Coordination, names: Iterable[str]) -> dict[str, TopicImage]:
    topics = {}
    for name in names:
        try:
            topics[name] = read_topic(coordination, name)
        except NoNodeError:
            continue  # deleted after the listing
    return topics


def read_topic(coordination: Coordination, name: str) -> TopicImage:
    """Returns the image of one topic. Raises `NoNodeError` if it does not exist or is being deleted."""
    path = paths.topic(name)
    node = TopicNode.decode(path, coordination.get(path)[0])
    config_path = paths.topic_config(name)
    config = ConfigNode.decode(config_path, coordination.get(config_path)[0])
    partitions = {}
    for number, replicas in sorted(node.partitions.items()):
        state_path = paths.partition_state(name, number)
        state = PartitionStateNode.decode(state_path, coordination.get(state_path)[0])
        partitions[number] = PartitionImage(state.leader, state.leader_epoch, replicas, state.isr)
    return TopicImage(name, node.topic_id, partitions, config.config)
