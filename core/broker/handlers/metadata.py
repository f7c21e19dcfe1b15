"""Metadata: returns brokers, and the partitions of all or some topics; creates topics where the configuration
says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from typing import Any, Final
from uuid import UUID

from ...cluster.image import PartitionImage, TopicImage
from ...config.sections.topic_settings import name_problem
from ...errors import ErrorCode, KlammError, ProtocolError
from ...interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ...protocol.apis import ApiKey
from ...protocol.current_leader import NodeEndpoint
from ...protocol.messages import Entity
from ...replication.partition_state import NO_LEADER
from ..internal_topics import ensure_topic
from ..request import Request
from ..services import Services
from ..topic_creation import BY_DEFAULT

log = logging.getLogger(__name__)

Unled = Set[tuple[str, int]]
"""New partitions that no leader serves yet."""
_FIRST_WITH_LISTENER_ERROR: Final = 6
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def metadata(services: Services, request: Request) -> Entity | Coroutine[Any, Any, Entity]:
    """Answers the request. Version 0 requests all topics by an empty list, later versions by null."""
    topics = request.message.topics
    if topics is None or (request.version == 0 and not topics):
        everything = [name for name in sorted(services.image.topics) if _visible(services, request, name)]
        return _when_led(services, everything, lambda unled: _answer(services, request, everything, unled))
    if request.version >= 10 and any(topic.topic_id is not None for topic in topics):
        # As in Kafka, one topic id makes it a request by ids.
        ids = list(dict.fromkeys(topic.topic_id for topic in topics if topic.topic_id is not None))
        known = [topic.name for topic_id in ids if (topic := services.image.topic_by_id(topic_id)) is not None]
        return _when_led(services, known, lambda unled: _answer_ids(services, request, ids, unled))
    if any(topic.name is None for topic in topics):
        raise ProtocolError("a Metadata request names a topic by neither name nor topic id")
    names = list(dict.fromkeys(topic.name for topic in topics))
    unknown = [
        name
        for name in names
        if name not in services.image.topics and not name_problem(name) and _visible(services, request, name)
    ]
    allowed = request.version < 4 or request.message.allow_auto_topic_creation
    if unknown and allowed and services.config.auto_create_topics_enable:
        return _create_and_answer(services, request, names, unknown)
    return _when_led(services, names, lambda unled: _answer(services, request, names, unled))


def _when_led(
    services: Services, names: Sequence[str], answer: Callable[[Unled], Entity]
) -> Entity | Coroutine[Any, Any, Entity]:
    """Returns the answer, given the partitions that no leader serves yet; waits a while for leaders of new ones."""
    if not services.new_leaders.has_new(names):
        return answer(frozenset())

    async def waited() -> Entity:
        return answer(await services.new_leaders.wait(names))

    return waited()


def _visible(services: Services, request: Request, name: str) -> bool:
    return services.access.allows(request, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


async def _create_and_answer(services: Services, request: Request, names: list[str], unknown: list[str]) -> Entity:
    created = await asyncio.gather(*(_create(services, request, name) for name in unknown))
    await services.leadership.refresh()
    unled = await services.new_leaders.wait(names)
    return _answer(services, request, names, unled, dict(zip(unknown, created, strict=True)))


async def _create(services: Services, request: Request, name: str) -> ErrorCode:
    allows = services.access.allows
    for kind, resource in ((ResourceType.CLUSTER, CLUSTER_NAME), (ResourceType.TOPIC, name)):
        if allows(request, AclOperation.CREATE, kind, resource):
            break
    else:
        return ErrorCode.topic_authorization_failed
    try:
        await ensure_topic(services, name, BY_DEFAULT, BY_DEFAULT, {})
    except KlammError as error:
        log.warning("topic %s cannot be created on demand: %s", name, error)
        return error.code
    return ErrorCode.leader_not_available  # while this broker has not read of it: another one created it


def _answer(
    services: Services,
    request: Request,
    names: Iterable[str],
    unled: Unled,
    errors: dict[str, ErrorCode] | None = None,
) -> Entity:
    rows = [_topic(services, request, name, (errors or {}).get(name), unled) for name in names]
    return _respond(services, request, rows)


def _answer_ids(services: Services, request: Request, ids: Iterable[UUID], unled: Unled) -> Entity:
    """Answers topics by their ids (KIP-516); one that does not exist is UNKNOWN_TOPIC_ID, without a name."""
    rows = []
    for topic_id in ids:
        known = services.image.topic_by_id(topic_id)
        if known is None or not _visible(services, request, known.name):
            rows.append(_unknown_id(request, topic_id))
        else:
            rows.append(_topic(services, request, known.name, None, unled))
    return _respond(services, request, rows)


def _unknown_id(request: Request, topic_id: UUID) -> Entity:
    return request.part(
        "MetadataResponseTopic",
        error_code=ErrorCode.unknown_topic_id,
        name=None if request.version >= 12 else "",
        topic_id=topic_id,
        partitions=(),
        is_internal=False,
    )


def _respond(services: Services, request: Request, topics: Iterable[Entity]) -> Entity:
    image = services.image
    brokers = tuple(
        request.part("MetadataResponseBroker", node_id=node, host=host, port=port, rack=rack)
        for node, host, port, rack in nodes(services, request.listener)
    )
    return request.respond(
        error_code=ErrorCode.none,
        brokers=brokers,
        topics=tuple(topics),
        controller_id=image.controller_id,
        cluster_id=image.cluster_id,
        cluster_authorized_operations=services.access.operations(
            8 <= request.version <= 10 and request.message.include_cluster_authorized_operations,
            request,
            ResourceType.CLUSTER,
        ),
    )


def nodes(services: Services, listener: str) -> list[NodeEndpoint]:
    """Returns each live broker's address by the listener that received the request; brokers without that listener are
    left out, as in Kafka.
    """
    found = []
    for node in sorted(services.image.brokers.values(), key=lambda broker: broker.id):
        endpoint = node.endpoints.get(listener)
        if node.id == services.broker_id and listener in services.advertised:
            host, port = services.advertised[listener]
            found.append((node.id, host, port, node.rack))
        elif endpoint is not None:
            found.append((node.id, endpoint.host, endpoint.port, node.rack))
    return found


def _topic(services: Services, request: Request, name: str, error: ErrorCode | None, unled: Unled) -> Entity:
    topic = services.image.topics.get(name)
    if not _visible(services, request, name):
        topic, error = None, ErrorCode.topic_authorization_failed
    elif topic is None:
        if name_problem(name):
            error = ErrorCode.invalid_topic_exception
        error = error or ErrorCode.unknown_topic_or_partition
    return request.part(
        "MetadataResponseTopic",
        error_code=ErrorCode.none if topic else error,
        name=name,
        topic_id=topic.topic_id if topic else None,
        partitions=_partitions(services, request, topic, unled) if topic else (),
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=services.access.operations(
            request.version >= 8 and request.message.include_topic_authorized_operations,
            request,
            ResourceType.TOPIC,
            name,
        ),
    )


def _partitions(services: Services, request: Request, topic: TopicImage, unled: Unled) -> tuple[Entity, ...]:
    return tuple(
        request.part(
            "MetadataResponsePartition",
            **partition_fields(services, request, number, partition, is_led=(topic.name, number) not in unled),
        )
        for number, partition in sorted(topic.partitions.items())
    )


def partition_fields(
    services: Services, request: Request, number: int, partition: PartitionImage, *, is_led: bool = True
) -> dict[str, Any]:
    """Returns the fields that a partition has in Metadata and DescribeTopicPartitions.

    A leader that is not live, does not serve the partition yet (not `is_led`), or has no listener of the request's
    name, is left out.
    """
    alive = services.image.brokers
    leader = alive.get(partition.leader)
    error = ErrorCode.none
    if leader is None or not is_led:
        error = ErrorCode.leader_not_available
    elif request.listener not in leader.endpoints and leader.id != services.broker_id:
        old = request.api is ApiKey.METADATA and request.version < _FIRST_WITH_LISTENER_ERROR
        error = ErrorCode.leader_not_available if old else ErrorCode.listener_not_found
    return {
        "error_code": error,
        "partition_index": number,
        "leader_id": NO_LEADER if error else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": tuple(replica for replica in partition.replicas if replica not in alive),
    }
