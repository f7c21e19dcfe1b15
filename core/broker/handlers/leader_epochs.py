"""OffsetForLeaderEpoch (KIP-101, KIP-320): returns where a leader epoch ended in this broker's log.

A client that resumes at an offset which it read under an epoch compares: an end below its offset means that the records
it read are no longer part of the log.
"""

from __future__ import annotations

from typing import Any

from ...errors import ErrorCode
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...protocol.messages import Entity
from ..replication.replica import Replica
from ..request import Request
from ..services import Services

_UNKNOWN = (-1, -1)


def offset_for_leader_epoch(services: Services, request: Request) -> Entity:
    topics = []
    for topic in request.message.topics:
        refused = services.access.refusal(request, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.topic)
        parts = tuple(_partition(services, request, topic.topic, asked, refused) for asked in topic.partitions)
        topics.append(request.part("OffsetForLeaderTopicResult", topic=topic.topic, partitions=parts))
    return request.respond(topics=tuple(topics))


def _partition(services: Services, request: Request, topic: str, asked: Any, refused: ErrorCode | None) -> Entity:
    led = refused or services.led(topic, asked.partition, asked.current_leader_epoch)
    code = ErrorCode.none if isinstance(led, Replica) else led
    epoch, end = led.log.end_offset_for_epoch(asked.leader_epoch) if isinstance(led, Replica) else _UNKNOWN
    return request.part(
        "EpochEndOffset", error_code=code, partition=asked.partition, leader_epoch=epoch, end_offset=end
    )
