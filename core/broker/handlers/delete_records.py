"""DeleteRecords (KIP-107): moves a partition's log start forward, durably before the answer, on all live replicas."""

from __future__ import annotations

import asyncio
import logging

from ...errors import ErrorCode, KlammError
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...protocol.messages import Entity
from ...records.partition import TopicPartition
from ..replication.replica import DeleteOutcome, Replica
from ..request import Request
from ..services import Services

log = logging.getLogger(__name__)
_NO_OFFSET = -1


async def delete_records(services: Services, request: Request) -> Entity:
    deadline = asyncio.get_running_loop().time() + request.message.timeout.total_seconds()

    async def delete(topic: str, partition: int, offset: int) -> Entity:
        refused = services.access.refusal(request, AclOperation.DELETE, ResourceType.TOPIC, topic)
        name = TopicPartition(topic, partition)
        code, low = (refused, _NO_OFFSET) if refused else await _delete(services, name, offset, deadline)
        return request.part(
            "DeleteRecordsPartitionResult", partition_index=partition, low_watermark=low, error_code=code
        )

    topics = request.message.topics
    parts = await asyncio.gather(*(delete(t.name, p.partition_index, p.offset) for t in topics for p in t.partitions))
    found = iter(parts)
    return request.respond(
        topics=tuple(
            request.part("DeleteRecordsTopicResult", name=t.name, partitions=tuple(next(found) for _ in t.partitions))
            for t in topics
        )
    )


async def _delete(services: Services, name: TopicPartition, offset: int, deadline: float) -> DeleteOutcome:
    """Deletes records, and waits for the followers; returns the error and the low watermark, which is the least log
    start offset of the live replicas."""
    led = services.led(*name)
    if not isinstance(led, Replica):
        return led, _NO_OFFSET
    if led.leader is not None and led.leader.state.mirror:  # the source decides what is deleted (docs/mirror.md, M5)
        return ErrorCode.policy_violation, _NO_OFFSET
    config = led.log.config
    if config.compacts and not config.deletes:  # as in Kafka, records of a compacted topic are not deleted
        return ErrorCode.policy_violation, _NO_OFFSET
    epoch = led.leader_epoch
    try:
        start = await services.workers.disk(services.logs.delete_records, led.log, offset)
    except KlammError as error:
        log.info("DeleteRecords of %s: %s", name, error)
        # Its log may have been closed because the topic was deleted, or moved to other brokers.
        return error.code if led.leader_epoch == epoch else ErrorCode.not_leader_or_follower, _NO_OFFSET
    log.info("%s: the log start offset is %d, as DeleteRecords requested", name, start)
    required = start if offset < 0 else min(start, offset)  # as in Kafka: what it has deleted beyond is not waited for
    return await led.deleted(epoch, required, lambda: services.image.registrations, deadline)
