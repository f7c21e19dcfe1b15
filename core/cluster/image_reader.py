"""Reads the metadata image: the changes since the last image from the ring, or the whole tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ..interfaces.coordination import Coordination, CoordinationUnavailableError, NoNodeError, Stat
from ..replication.partition_state import PartitionState
from ..replication.registrations import BrokerRegistration
from ..transport.address import Address
from .changes import RING_SIZE, MetadataChange, StoredState, change_at, lacks_change, ring_path
from .image import BrokerNode, ClusterImage, Endpoint, PartitionImage, TopicImage
from .tree import paths
from .tree.nodes import (
    BrokerIdNode,
    ClusterIdNode,
    ConfigNode,
    ControllerNode,
    MetadataVersionNode,
    RestoredNode,
    TopicNode,
)
from .tree.steps import Steps, children, get, get_many, run_steps

__all__ = ["MetadataWentBackError", "image_steps", "metadata_version", "read_image"]

_ATTEMPTS = 5


class MetadataWentBackError(CoordinationUnavailableError):
    """The coordination lacks the change at which an image was read: it was restored from an older backup."""


class _Topics(NamedTuple):
    """`by`: the name of the change that led to `version`."""

    version: int
    topics: Mapping[str, TopicImage]
    by: str


def read_image(coordination: Coordination, previous: ClusterImage | None = None) -> ClusterImage:
    """Reads the image on the calling thread: see `image_steps`."""
    return run_steps(coordination, image_steps(previous))


def image_steps(previous: ClusterImage | None = None) -> Steps[ClusterImage]:
    """Returns the present image; without `previous` the whole tree is read.

    Registrations are read after the states (docs/replication.md, R10).

    Raises `MetadataWentBackError` if the coordination is older than `previous`.
    """
    known = None if previous is None else _Topics(previous.version, previous.topics, previous.by)
    found = yield from _read_topics(known)
    brokers = [f"{paths.BROKER_IDS}/{name}" for name in (yield from children(paths.BROKER_IDS))]
    configs = [f"{paths.BROKER_CONFIGS}/{name}" for name in (yield from children(paths.BROKER_CONFIGS))]
    fixed = (paths.CLUSTER_ID, paths.CONTROLLER, paths.RESTORED)
    data = yield from get_many([*fixed, *brokers, *configs])
    if paths.CLUSTER_ID not in data:
        raise NoNodeError(f"{paths.CLUSTER_ID} does not exist")
    controller = data.get(paths.CONTROLLER)
    return ClusterImage(
        cluster_id=ClusterIdNode.decode(paths.CLUSTER_ID, data[paths.CLUSTER_ID][0]).id,
        controller_id=ControllerNode.decode(paths.CONTROLLER, controller[0]).brokerid if controller else -1,
        brokers=_brokers({path: data[path] for path in brokers if path in data}),
        topics=found.topics,
        version=found.version,
        broker_configs={_name(path): ConfigNode.decode(path, data[path][0]).config for path in configs if path in data},
        by=found.by,
        restored=_restored(data.get(paths.RESTORED)),
    )


def _restored(found: tuple[bytes, Stat] | None) -> int | None:
    return None if found is None else RestoredNode.decode(paths.RESTORED, found[0]).leader_epoch


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _read_topics(previous: _Topics | None) -> Steps[_Topics]:
    known = previous
    for _ in range(_ATTEMPTS):
        version, by = yield from metadata_version()
        if known is not None and 0 <= version - known.version < RING_SIZE:
            caught_up = yield from _catch_up(known, version, by)
            if caught_up is not None:
                return caught_up
        if previous is not None and known is previous and (yield from lacks_change(previous.version, previous.by)):
            raise MetadataWentBackError(
                f"the coordination does not have change {previous.version} of the metadata any more: it was restored "
                "from an older backup"
            )
        # What changes during this read is in the ring, in whole topics and states, and is applied in the next round.
        known = _Topics(version, (yield from _read_all()), by)
    assert known is not None
    return known


def metadata_version() -> Steps[tuple[int, str]]:
    """Returns the version of the metadata, and the name of the change that led to it."""
    data, stat = yield from get(paths.METADATA_VERSION)
    return stat.version, MetadataVersionNode.decode(paths.METADATA_VERSION, data or b"{}").by


def _catch_up(known: _Topics, version: int, by: str) -> Steps[_Topics | None]:
    """Applies the changes since `known`; returns None if the ring lacks one of them, or has another change than the one
    that led to `known`."""
    if version == known.version:
        return known if by == known.by else None
    numbers = range(known.version, version + 1)
    found = yield from get_many([ring_path(number) for number in numbers])
    entries = [found.get(ring_path(number)) for number in numbers]
    last = change_at(known.version, entries[0])
    if last is not None and last.by != known.by:
        return None
    topics = dict(known.topics)
    for number, entry in zip(numbers[1:], entries[1:], strict=True):
        change = change_at(number, entry)
        if change is None or not _apply(topics, change):
            return None
    return _Topics(version, dict(sorted(topics.items())), by)


def _apply(topics: dict[str, TopicImage], change: MetadataChange) -> bool:
    """Applies a change; returns False if it was made from other `topics`."""
    for name, node in change.topics.items():
        if node is None:
            topics.pop(name, None)
            continue
        before = topics.get(name)
        if before is not None and before.topic_id != node.topic_id:
            before = None
        old = before.partitions if before is not None else {}
        states = {number: StoredState(partition.state, partition.path_version) for number, partition in old.items()}
        states |= {tp.partition: stored for tp, stored in change.states.items() if tp.topic == name}
        if not set(node.partitions) <= set(states):
            return False
        configs = {} if before is None else before.configs
        topics[name] = TopicImage(name, node.topic_id, _partitions(node, states), configs, node.former)
    grouped: dict[str, dict[int, StoredState]] = {}
    for tp, stored in change.states.items():
        if tp.topic not in change.topics:
            grouped.setdefault(tp.topic, {})[tp.partition] = stored
    for name, found in grouped.items():
        topic = topics.get(name)
        if topic is None or not set(found) <= set(topic.partitions):
            return False
        changed = {
            number: replace(topic.partitions[number], state=stored.state, path_version=stored.path_version)
            for number, stored in found.items()
        }
        topics[name] = replace(topic, partitions={**topic.partitions, **changed})
    for name, configs in change.configs.items():
        if name not in topics:
            return False
        topics[name] = replace(topics[name], configs=configs)
    return True


def _partitions(node: TopicNode, states: Mapping[int, StoredState]) -> dict[int, PartitionImage]:
    return {
        number: PartitionImage(
            states[number].state,
            replicas,
            states[number].path_version,
            node.adding_replicas.get(number, ()),
            node.removing_replicas.get(number, ()),
        )
        for number, replicas in sorted(node.partitions.items())
    }


def _brokers(found: Mapping[str, tuple[bytes, Stat]]) -> dict[int, BrokerNode]:
    brokers = {}
    for path, (data, stat) in found.items():
        brokers[int(_name(path))] = _broker_node(path, data, stat.creation_id, stat.ephemeral_owner)
    return dict(sorted(brokers.items()))


@lru_cache(maxsize=1024)
def _broker_node(path: str, data: bytes, creation_id: int, session_id: int) -> BrokerNode:
    """Returns the image of a registration. All registrations are read again after each change and are mostly
    unchanged."""
    broker_id, node = int(_name(path)), BrokerIdNode.decode(path, data)
    registration = BrokerRegistration(
        broker_id,
        creation_id,
        node.incarnation,
        node.data,
        leaving=node.state == "leaving",
        full=node.state == "full",
    )
    endpoints = {}
    for text in node.endpoints:
        listener, _, address = text.partition("://")
        at = Address.parse(address)
        protocol = node.listener_security_protocol_map.get(listener, listener)
        endpoints[listener] = Endpoint(at.host, at.port, listener, protocol)
    return BrokerNode(
        broker_id,
        registration,
        endpoints,
        node.inter_broker_listener,
        node.rack,
        node.directory_id,
        session_id,
        node.timestamp,
    )


def _read_all() -> Steps[dict[str, TopicImage]]:
    """Reads all topics; one that is being deleted, of which a part is missing, is left out."""
    names = yield from children(paths.TOPICS)
    data = yield from get_many([path for name in names for path in (paths.topic(name), paths.topic_config(name))])
    nodes = {
        name: TopicNode.decode(path, data[path][0])
        for name in names
        if (path := paths.topic(name)) in data and paths.topic_config(name) in data
    }
    wanted_states = [paths.partition_state(name, number) for name, node in nodes.items() for number in node.partitions]
    states = yield from get_many(wanted_states)
    topics = {}
    for name, node in nodes.items():
        wanted = {number: paths.partition_state(name, number) for number in node.partitions}
        if all(path in states for path in wanted.values()):
            config = ConfigNode.decode(paths.topic_config(name), data[paths.topic_config(name)][0]).config
            found = {
                number: StoredState(PartitionState.decode(path, states[path][0]), states[path][1].version)
                for number, path in wanted.items()
            }
            topics[name] = TopicImage(name, node.topic_id, _partitions(node, found), config, node.former)
    return topics
