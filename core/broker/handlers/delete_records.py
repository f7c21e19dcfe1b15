"""DeleteRecords (KIP-107): moves a partition's log start forward, durably before the answer."""

from __future__ import annotations

import logging

from ...errors import ErrorCode, KlammError
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...protocol.messages import Entity
from ...records.partition import TopicPartition
from ..network.context import Request
from ..partitions import LedPartition
from ..services import Services

log = logging.getLogger(__name__)
_NO_OFFSET = -1


async def delete_records(services: Services, request: Request) -> Entity:
    topics = []
    for topic in request.message.topics:
        parts = []
        refused = services.access.refusal(request, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
        for asked in topic.partitions:
            name = TopicPartition(topic.name, asked.partition_index)
            code, start = (refused, _NO_OFFSET) if refused else await _delete(services, name, asked.offset)
            parts.append(
                request.part(
                    "DeleteRecordsPartitionResult",
                    partition_index=asked.partition_index,
                    low_watermark=start,
                    error_code=code,
                )
            )
        topics.append(request.part("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(parts)))
    return request.respond(topics=tuple(topics))


async def _delete(services: Services, name: TopicPartition, offset: int) -> tuple[ErrorCode, int]:
    """Deletes records; returns the error and the offset at which the partition now begins."""
    led = services.led(*name)
    if not isinstance(led, LedPartition):
        return led, _NO_OFFSET
    if not led.log.config.deletes:  # as in Kafka, records of a compacted topic are not deleted
        return ErrorCode.policy_violation, _NO_OFFSET
    try:
        start = await services.workers.disk(services.logs.delete_records, name, offset)
    except KlammError as error:
        log.info("DeleteRecords of %s: %s", name, error)
        return error.code, _NO_OFFSET
    log.info("%s begins at offset %d, as DeleteRecords asked", name, start)
    return ErrorCode.none, start
