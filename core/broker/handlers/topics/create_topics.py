"""CreateTopics and CreatePartitions: each topic of a request is changed, or refused, separately.

The answer is sent when this broker serves its part of the new partitions, so that a client can continue at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any
from uuid import UUID

from ....config.describe import describe_topic
from ....config.sections.topic_settings import too_high_minimum
from ....errors import BrokerError, ConfigError, ErrorCode, KlammError
from ....groups.offsets_topic import OFFSETS_TOPIC
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....protocol.messages import Entity
from ....records.partition import counted
from ...request import Request
from ...services import Services
from ...topic_creation import TopicPlan, added_replicas, create_topic, plan_topic
from .answers import twice, wire_error

log = logging.getLogger(__name__)


async def create_topics(services: Services, request: Request) -> Entity:
    message = request.message
    counts = Counter(topic.name for topic in message.topics)
    results = []
    for name in counts:
        topic = next(t for t in message.topics if t.name == name)
        try:
            if counts[name] > 1:
                raise twice(ErrorCode.invalid_request, name)
            if not services.access.allows(request, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
                services.access.check(request, AclOperation.CREATE, ResourceType.TOPIC, name)
            plan = await _planned(services, topic)
            topic_id = None if message.validate_only else await _create(services, plan)
        except KlammError as error:
            results.append(_refused(request, name, error))
        else:
            results.append(_created(services, request, plan, topic_id))
    await services.leadership.refresh()
    return request.respond(topics=tuple(results))


async def _planned(services: Services, topic: Any) -> TopicPlan:
    try:
        return _plan(services, topic)
    except BrokerError as error:
        if error.code is not ErrorCode.invalid_replication_factor:
            raise
    await services.leadership.refresh()  # a broker may have registered, and be ready, since the metadata were read
    return _plan(services, topic)


def _plan(services: Services, topic: Any) -> TopicPlan:
    services.cluster.check_create_topic(topic.name, 1)  # checked before its configs, as in Kafka
    missing = [c.name for c in topic.configs if c.value is None]
    if missing:
        raise ConfigError(f"{missing[0]}: a value is missing")
    return plan_topic(
        services,
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {c.name: c.value for c in topic.configs},
        [(a.partition_index, a.broker_ids) for a in topic.assignments],
    )


async def _create(services: Services, plan: TopicPlan) -> UUID:
    topic_id = await services.workers.coordination(create_topic, services, plan)
    log.info(
        "created topic %s: %s, replication factor %d",
        plan.name,
        counted(plan.partitions, "partition"),
        plan.replication_factor,
    )
    lowered = too_high_minimum(plan.name, plan.configs, plan.replication_factor)
    if lowered:
        log.warning("%s", lowered)
    return topic_id


def _refused(request: Request, name: str, error: KlammError) -> Entity:
    code, text = wire_error(error)
    return request.part(
        "CreatableTopicResult", name=name, error_code=code, error_message=text, configs=(), topic_id=None
    )


def _created(services: Services, request: Request, plan: TopicPlan, topic_id: UUID | None) -> Entity:
    made: dict[str, object] = {
        "name": plan.name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    if request.version >= 5:  # KIP-525: from here on an answer describes the topic
        refused = services.access.refusal(request, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, plan.name)
        if refused is not None:  # partitions and replication factor stay at -1, as in Kafka's controller
            return request.part("CreatableTopicResult", **made, topic_config_error_code=int(refused), configs=())
    configs: tuple[Entity, ...] = ()
    if request.version >= 5:
        configs = tuple(
            request.part(
                "CreatableTopicConfigs",
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=int(entry.source),
                is_sensitive=False,
            )
            for entry in describe_topic(plan.configs, services.config, services.live.for_all, services.live.for_this)
        )
    return request.part(
        "CreatableTopicResult",
        **made,
        num_partitions=plan.partitions,
        replication_factor=plan.replication_factor,
        configs=configs,
    )


async def create_partitions(services: Services, request: Request) -> Entity:
    counts = Counter(topic.name for topic in request.message.topics)
    results = []
    for name in counts:
        topic = next(t for t in request.message.topics if t.name == name)
        code, text = ErrorCode.none, None
        try:
            if counts[name] > 1:
                raise twice(ErrorCode.invalid_request, name)
            services.access.check(request, AclOperation.ALTER, ResourceType.TOPIC, name)
            await _grow(services, topic, request.message.validate_only)
        except KlammError as error:
            code, text = wire_error(error)
        results.append(request.part("CreatePartitionsTopicResult", name=name, error_code=code, error_message=text))
    await services.leadership.refresh()
    return request.respond(results=tuple(results))


async def _grow(services: Services, topic: Any, validate_only: bool) -> None:
    known = services.image.topics.get(topic.name)
    if known is None:
        raise BrokerError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} does not exist")
    if topic.count <= len(known.partitions):
        raise BrokerError(
            ErrorCode.invalid_partitions,
            f"topic {topic.name!r} has {counted(len(known.partitions), 'partition')} already; "
            f"{topic.count} is not more",
        )
    if known.partitions[0].state.mirror:
        raise BrokerError(
            ErrorCode.policy_violation,
            f"topic {topic.name!r} is a mirror: it gets its partitions from its source",
        )
    if topic.name == OFFSETS_TOPIC:
        raise BrokerError(
            ErrorCode.invalid_partitions,
            f"topic {OFFSETS_TOPIC!r} keeps its {counted(len(known.partitions), 'partition')}: a group is "
            "in the one that this number and the group's name give, and would not be found any more",
        )
    replicas = None
    if topic.assignments is not None:
        replicas = added_replicas(services, known, topic.count, [each.broker_ids for each in topic.assignments])
    if not validate_only:
        await services.workers.coordination(services.cluster.create_partitions, topic.name, topic.count, replicas)
        log.info("topic %s now has %s", topic.name, counted(topic.count, "partition"))
