"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455)."""

from __future__ import annotations

import logging

from ....errors import BrokerError, ErrorCode, KlammError
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....protocol.messages import Entity
from ....records.partition import TopicPartition
from ...request import Request
from ...services import Services
from ..topics.answers import wire_error

log = logging.getLogger(__name__)
_FIRST_WITH_FIXED_FACTOR = 1


async def alter_partition_reassignments(services: Services, request: Request) -> Entity:
    """Answers when the reassignments have started, or are cancelled (null replicas); the controller completes them."""
    asked: dict[TopicPartition, tuple[int, ...] | None] = {}
    try:
        services.access.check(request, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        for topic in request.message.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.name, each.partition_index)
                if tp in asked:
                    raise BrokerError(
                        ErrorCode.invalid_request, f"partition {tp} is named more than once in the request"
                    )
                asked[tp] = None if each.replicas is None else tuple(each.replicas)
        fixed = request.version >= _FIRST_WITH_FIXED_FACTOR and not request.message.allow_replication_factor_change
        results = await services.workers.coordination(
            services.cluster.alter_reassignments, asked, may_change_factor=not fixed
        )
    except KlammError as error:
        code, text = wire_error(error)
        return request.respond(error_code=code, error_message=text, responses=(), allow_replication_factor_change=True)
    for tp, (code, text) in results.items():
        if code is ErrorCode.none:
            log.info("reassignment of %s to %s", tp, "cancelled" if asked[tp] is None else list(asked[tp] or ()))
        else:
            log.info("reassignment of %s refused: %s", tp, text)
    await services.leadership.refresh()
    topics: dict[str, list[Entity]] = {}
    for tp, (code, text) in results.items():
        row = request.part(
            "ReassignablePartitionResponse",
            partition_index=tp.partition,
            error_code=code,
            error_message=text if code else None,
        )
        topics.setdefault(tp.topic, []).append(row)
    return request.respond(
        allow_replication_factor_change=not fixed,
        error_code=ErrorCode.none,
        error_message=None,
        responses=tuple(
            request.part("ReassignableTopicResponse", name=topic, partitions=tuple(rows))
            for topic, rows in topics.items()
        ),
    )


def list_partition_reassignments(services: Services, request: Request) -> Entity:
    """Answers from this broker's image, the newest that it knows."""
    try:
        services.access.check(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        if not services.cluster.is_controller:
            raise BrokerError(ErrorCode.not_controller, f"broker {services.broker_id} is not the controller")
    except KlammError as error:
        code, text = wire_error(error)
        return request.respond(error_code=code, error_message=text, topics=())
    asked = request.message.topics
    wanted = (
        None if asked is None else [TopicPartition(t.name, number) for t in asked for number in t.partition_indexes]
    )
    topics: dict[str, list[Entity]] = {}
    for tp, found in sorted(services.cluster.reassignments(wanted).items()):
        row = request.part(
            "OngoingPartitionReassignment",
            partition_index=tp.partition,
            replicas=found.replicas,
            adding_replicas=found.adding,
            removing_replicas=found.removing,
        )
        topics.setdefault(tp.topic, []).append(row)
    return request.respond(
        error_code=ErrorCode.none,
        error_message=None,
        topics=tuple(
            request.part("OngoingTopicReassignment", name=topic, partitions=tuple(rows))
            for topic, rows in topics.items()
        ),
    )
