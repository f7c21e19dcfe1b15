"""Metadata: returns brokers, and the partitions of all or some topics; creates topics where the configuration
says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any
from uuid import UUID

from ...cluster.image import TopicImage
from ...config.sections.topic_settings import name_problem
from ...errors import ErrorCode, KlammError, ProtocolError
from ...interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ...protocol.messages import Entity
from ..network.context import Request
from ..services import Services

log = logging.getLogger(__name__)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def metadata(services: Services, request: Request) -> Entity | Coroutine[Any, Any, Entity]:
    """Answers the request. Version 0 requests all topics by an empty list, later versions by null."""
    topics = request.message.topics
    if topics is None or (request.version == 0 and not topics):
        return _answer(services, request, [n for n in sorted(services.image.topics) if _visible(services, request, n)])
    if request.version >= 10 and any(topic.topic_id is not None for topic in topics):
        # As in Kafka, one topic id makes it a request by ids.
        return _answer_ids(services, request, [topic.topic_id for topic in topics if topic.topic_id is not None])
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
    return _answer(services, request, names)


def _visible(services: Services, request: Request, name: str) -> bool:
    return services.access.allows(request, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


async def _create_and_answer(services: Services, request: Request, names: list[str], unknown: list[str]) -> Entity:
    created = await asyncio.gather(*(_create(services, request, name) for name in unknown))
    await services.leadership.refresh()
    return _answer(services, request, names, dict(zip(unknown, created, strict=True)))


async def _create(services: Services, request: Request, name: str) -> ErrorCode:
    config, allows = services.config, services.access.allows
    for kind, resource in ((ResourceType.CLUSTER, CLUSTER_NAME), (ResourceType.TOPIC, name)):
        if allows(request, AclOperation.CREATE, kind, resource):
            break
    else:
        return ErrorCode.topic_authorization_failed
    try:
        await services.workers.coordination(
            services.cluster.create_topic, name, config.num_partitions, config.default_replication_factor, {}
        )
    except KlammError as error:
        if error.code is ErrorCode.topic_already_exists:
            return ErrorCode.none
        log.warning("topic %s cannot be created on demand: %s", name, error)
        return error.code
    log.info("created topic %s on demand", name)
    return ErrorCode.none


def _answer(
    services: Services, request: Request, names: Iterable[str], errors: dict[str, ErrorCode] | None = None
) -> Entity:
    return _respond(services, request, [_topic(services, request, name, (errors or {}).get(name)) for name in names])


def _answer_ids(services: Services, request: Request, ids: Iterable[UUID]) -> Entity:
    """Answers topics by their ids (KIP-516); one that does not exist is UNKNOWN_TOPIC_ID, without a name."""
    rows = []
    for topic_id in dict.fromkeys(ids):
        known = services.image.topic_by_id(topic_id)
        if known is None or not _visible(services, request, known.name):
            rows.append(_unknown_id(request, topic_id))
        else:
            rows.append(_topic(services, request, known.name, None))
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
        for node, host, port, rack in nodes(services, request)
    )
    return request.respond(
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


def nodes(services: Services, request: Request) -> list[tuple[int, str, int, str | None]]:
    """Returns (id, host, port, rack) of each live broker; this one by the address of the listener that received the
    request.
    """
    found = []
    for node in sorted(services.image.brokers.values(), key=lambda broker: broker.id):
        host, port = node.host, node.port
        if node.id == services.broker_id:
            host, port = services.advertised.get(request.listener, (host, port))
        found.append((node.id, host, port, node.rack))
    return found


def _topic(services: Services, request: Request, name: str, error: ErrorCode | None) -> Entity:
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
        partitions=_partitions(services, request, topic) if topic else (),
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=services.access.operations(
            request.version >= 8 and request.message.include_topic_authorized_operations,
            request,
            ResourceType.TOPIC,
            name,
        ),
    )


def _partitions(services: Services, request: Request, topic: TopicImage) -> tuple[Entity, ...]:
    alive = services.image.brokers
    rows = []
    for index, partition in sorted(topic.partitions.items()):
        led = partition.leader in alive
        rows.append(
            request.part(
                "MetadataResponsePartition",
                error_code=ErrorCode.none if led else ErrorCode.leader_not_available,
                partition_index=index,
                leader_id=partition.leader if led else -1,
                leader_epoch=partition.leader_epoch,
                replica_nodes=tuple(partition.replicas),
                isr_nodes=tuple(partition.isr),
                offline_replicas=tuple(r for r in partition.replicas if r not in alive),
            )
        )
    return tuple(rows)
