"""DescribeTopicPartitions (KIP-966): partitions with their eligible leader replicas, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ....cluster.image import TopicImage
from ....config.sections.topic_settings import name_problem
from ....errors import ErrorCode
from ....interfaces.security.authorizer import AclOperation, ResourceType
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from ..metadata import INTERNAL_TOPICS, partition_fields

MAX_PARTITIONS = 2000
"""Kafka's default of `max.request.partition.size.limit`."""


class _Cursor(NamedTuple):
    topic: str
    partition: int


def describe_topic_partitions(services: Services, request: Request) -> Entity:
    """Answers topics by name, from the cursor on, with at most `response_partition_limit` partitions; an empty list
    requests all topics that the client may describe.
    """
    message = request.message
    names = sorted({topic.name for topic in message.topics} or services.image.topics)
    start = _Cursor("", 0) if message.cursor is None else _Cursor(*_fields(message.cursor))
    if start.partition < 0 or (message.cursor is not None and message.topics and start.topic not in names):
        rows = [_failed(services, request, name, ErrorCode.invalid_request) for name in names if message.topics]
        return request.respond(topics=tuple(rows), next_cursor=None)
    left = max(1, min(message.response_partition_limit, MAX_PARTITIONS))
    rows = []
    for name in names:
        if name < start.topic:
            continue
        topic = services.image.topics.get(name)
        if not services.access.allows(request, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            if message.topics:
                rows.append(_failed(services, request, name, ErrorCode.topic_authorization_failed))
            continue
        if topic is None:
            wrong = ErrorCode.invalid_topic_exception if name_problem(name) else ErrorCode.unknown_topic_or_partition
            rows.append(_failed(services, request, name, wrong))
            continue
        if left == 0:
            return _page(request, rows, _Cursor(name, 0))
        first = start.partition if name == start.topic else 0
        numbers = [number for number in sorted(topic.partitions) if number >= first]
        rows.append(_described(services, request, topic, numbers[:left]))
        if len(numbers) > left:
            return _page(request, rows, _Cursor(name, numbers[left]))
        left -= len(numbers)
    return _page(request, rows, None)


def _fields(cursor: Any) -> Iterator[Any]:
    yield cursor.topic_name
    yield cursor.partition_index


def _page(request: Request, rows: list[Entity], following: _Cursor | None) -> Entity:
    cursor = None
    if following is not None:
        cursor = request.part("Cursor", topic_name=following.topic, partition_index=following.partition)
    return request.respond(topics=tuple(rows), next_cursor=cursor)


def _described(services: Services, request: Request, topic: TopicImage, numbers: list[int]) -> Entity:
    partitions = tuple(
        request.part(
            "DescribeTopicPartitionsResponsePartition",
            **partition_fields(services, request, number, topic.partitions[number]),
            eligible_leader_replicas=topic.partitions[number].elr,
            last_known_elr=(),
        )
        for number in numbers
    )
    return _topic(services, request, topic.name, ErrorCode.none, topic, partitions)


def _failed(services: Services, request: Request, name: str, error: ErrorCode) -> Entity:
    return _topic(services, request, name, error, None, ())


def _topic(
    services: Services,
    request: Request,
    name: str,
    error: ErrorCode,
    topic: TopicImage | None,
    partitions: tuple[Entity, ...],
) -> Entity:
    return request.part(
        "DescribeTopicPartitionsResponseTopic",
        error_code=error,
        name=name,
        topic_id=topic.topic_id if topic else None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=services.access.operations(topic is not None, request, ResourceType.TOPIC, name),
    )
