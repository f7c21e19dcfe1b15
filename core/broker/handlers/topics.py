"""CreateTopics, DeleteTopics, CreatePartitions: each topic of a request is changed, or refused, separately.

The answer is sent when this broker leads its share of the new partitions, so that a client can continue at once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ...cluster.assignment import Replicas, checked_assignment
from ...cluster.image import TopicImage
from ...config.describe import describe_topic
from ...config.sections.topic import TopicConfig
from ...errors import BrokerError, ConfigError, CoordinationError, ErrorCode, KlammError
from ...faults import fault_point
from ...interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ...protocol.messages import Entity
from ..network.context import Request
from ..services import Services

log = logging.getLogger(__name__)

_DEFAULT = -1


@dataclass(frozen=True)
class _Plan:
    """A topic to be created, with the broker's defaults filled in; `replicas` if the request assigns them."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)
    replicas: Replicas | None = None


def wire_error(error: KlammError) -> tuple[ErrorCode, str]:
    """Returns an error's code and text for an admin client. An unreachable coordination is a time-out to clients (they
    may retry).
    """
    if isinstance(error, CoordinationError):
        return ErrorCode.request_timed_out, f"the coordination is unavailable, so nothing can be changed now: {error}"
    return error.code, words_of(error)


def words_of(error: KlammError) -> str:
    """Returns the error's message without its code, for which an answer has a separate field."""
    return (error.words if isinstance(error, BrokerError) else "") or str(error)


def _twice(code: ErrorCode, name: str) -> BrokerError:
    return BrokerError(code, f"topic {name!r} is named more than once in the request")


async def create_topics(services: Services, request: Request) -> Entity:
    message = request.message
    counts = Counter(topic.name for topic in message.topics)
    results = []
    for name in counts:
        topic = next(t for t in message.topics if t.name == name)
        try:
            if counts[name] > 1:
                raise _twice(ErrorCode.invalid_request, name)
            if not services.access.allows(request, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME):
                services.access.check(request, AclOperation.CREATE, ResourceType.TOPIC, name)
            plan = _plan(services, topic)
            topic_id = await _create(services, plan, message.validate_only)
        except KlammError as error:
            results.append(_refused(request, name, error))
        else:
            results.append(_created(services, request, plan, topic_id))
    await services.leadership.refresh()
    return request.respond(topics=tuple(results))


def _plan(services: Services, topic: Any) -> _Plan:
    services.cluster.check_create_topic(topic.name, 1)  # checked before its configs, as in Kafka
    missing = [c.name for c in topic.configs if c.value is None]
    if missing:
        raise ConfigError(f"{missing[0]}: a value is missing")
    configs = {c.name: c.value for c in topic.configs}
    check_topic_config(services, configs)
    if topic.assignments:
        if (topic.num_partitions, topic.replication_factor) != (_DEFAULT, _DEFAULT):
            raise BrokerError(
                ErrorCode.invalid_request,
                f"topic {topic.name!r}: with assignments, partitions and replication factor are left at -1",
            )
        given = [(a.partition_index, a.broker_ids) for a in topic.assignments]
        replicas = checked_assignment(services.image.brokers, given)
        return _Plan(topic.name, len(replicas), len(replicas[0]), configs, replicas)
    config = services.config
    count = config.num_partitions if topic.num_partitions == _DEFAULT else topic.num_partitions
    factor = config.default_replication_factor if topic.replication_factor == _DEFAULT else topic.replication_factor
    return _Plan(topic.name, count, factor, configs)


def check_topic_config(services: Services, configs: Mapping[str, str]) -> None:
    """Raises `ConfigError` for an unknown name or value; a codec named by compression.type must be one that is
    loaded.
    """
    config = TopicConfig.from_strings(configs, services.config.topic_defaults())
    known = {"producer", "uncompressed", *services.codecs.names()}
    if config.compression_type not in known:
        raise ConfigError(
            f"compression.type: {config.compression_type!r} is no codec (there are: {', '.join(sorted(known))})"
        )


async def _create(services: Services, plan: _Plan, validate_only: bool) -> UUID | None:
    if plan.replication_factor != 1:
        raise BrokerError(
            ErrorCode.invalid_replication_factor,
            f"topic {plan.name!r}: {plan.replication_factor} replicas; partitions are not replicated yet, so it is 1",
        )
    if validate_only:
        services.cluster.check_create_topic(plan.name, plan.partitions)
        return None
    topic_id = await services.workers.coordination(
        services.cluster.create_topic,
        plan.name,
        plan.partitions,
        plan.replication_factor,
        plan.configs,
        plan.replicas,
    )
    log.info("created topic %s with %d partitions", plan.name, plan.partitions)
    return topic_id


def _refused(request: Request, name: str, error: KlammError) -> Entity:
    code, text = wire_error(error)
    return request.part(
        "CreatableTopicResult", name=name, error_code=code, error_message=text, configs=(), topic_id=None
    )


def _created(services: Services, request: Request, plan: _Plan, topic_id: UUID | None) -> Entity:
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


async def delete_topics(services: Services, request: Request) -> Entity:
    """Deletes topics. The answer names a topic that was requested by id only to a client that may DESCRIBE it."""
    results = []
    deleted = False
    asked = _asked(services, request)
    counts: Counter[str | None] = Counter()
    for topic in asked:
        if topic.problem is None:
            counts[topic.name] += topic.times
    for topic in asked:
        code, text, topic_id = ErrorCode.none, None, topic.topic_id
        try:
            if not services.config.delete_topic_enable:
                raise BrokerError(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false")
            if topic.problem is not None:
                raise topic.problem
            assert topic.name is not None
            if topic.times > 1:
                raise _repeated(topic.name, topic_id)
            services.access.check(request, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
            if counts[topic.name] > 1:  # named by name and by id: reported only to a client that may delete it
                raise _twice(ErrorCode.invalid_request, topic.name)
            topic_id = await services.workers.coordination(services.cluster.delete_topic, topic.name, topic_id)
            deleted = True
            log.info("deleted topic %s", topic.name)
            fault_point("topics.deleted")
        except KlammError as error:
            code, text = wire_error(error)
        if topic.hidden and topic.times == 1 and code not in (ErrorCode.none, ErrorCode.topic_deletion_disabled):
            text = f"the topic with the id {topic_id}: {code.name}"  # the error's own message may contain the name
        results.append(
            request.part(
                "DeletableTopicResult",
                name=None if topic.hidden else topic.name,
                topic_id=topic_id,
                error_code=code,
                error_message=text,
            )
        )
    await services.leadership.refresh()  # from now on no offset of theirs is committed at this broker
    if deleted:
        await services.deletions.finish()
    return request.respond(responses=tuple(results))


@dataclass(frozen=True)
class _Asked:
    """A topic that a DeleteTopics request names.

    `topic_id` if it is named by id; `problem`: why it cannot be deleted; `times`: how often the request names it so;
    `hidden`: it is named by its id, and the answer must not contain its name.
    """

    name: str | None
    topic_id: UUID | None = None
    problem: BrokerError | None = None
    times: int = 1
    hidden: bool = False


def _asked(services: Services, request: Request) -> list[_Asked]:
    """Returns the requested topics, each once: by name up to version 5; by name or id (KIP-516) from version 6 on."""
    times: Counter[tuple[str | None, UUID | None]]
    if request.version < 6:
        times = Counter((name, None) for name in request.message.topic_names)
    else:
        times = Counter((topic.name, topic.topic_id) for topic in request.message.topics)
    return [_asked_for(services, request, name, topic_id, count) for (name, topic_id), count in times.items()]


def _asked_for(services: Services, request: Request, name: str | None, topic_id: UUID | None, times: int) -> _Asked:
    if (name is None) == (topic_id is None):
        problem = BrokerError(ErrorCode.invalid_request, "a topic is named either by its name or by its id")
        return _Asked(name, topic_id, problem)
    if topic_id is None:
        return _Asked(name, times=times)
    known = services.image.topic_by_id(topic_id)
    if known is None:
        unknown = BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        return _Asked(None, topic_id, _repeated(None, topic_id) if times > 1 else unknown)
    visible = times == 1 and services.access.allows(request, AclOperation.DESCRIBE, ResourceType.TOPIC, known.name)
    return _Asked(known.name, topic_id, times=times, hidden=not visible)


def _repeated(name: str | None, topic_id: UUID | None) -> BrokerError:
    """Returns the error for a name or id that occurs more than once; it is found before the access check, so it repeats
    only the request.
    """
    if topic_id is not None:
        return BrokerError(ErrorCode.invalid_request, "Duplicate topic id.")
    assert name is not None
    return _twice(ErrorCode.invalid_request, name)


async def create_partitions(services: Services, request: Request) -> Entity:
    counts = Counter(topic.name for topic in request.message.topics)
    results = []
    for name in counts:
        topic = next(t for t in request.message.topics if t.name == name)
        code, text = ErrorCode.none, None
        try:
            if counts[name] > 1:
                raise _twice(ErrorCode.invalid_request, name)
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
            f"topic {topic.name!r} has {len(known.partitions)} partitions already; {topic.count} is not more",
        )
    replicas = None if topic.assignments is None else _new_replicas(services, known, topic)
    if not validate_only:
        await services.workers.coordination(services.cluster.create_partitions, topic.name, topic.count, replicas)
        log.info("topic %s now has %d partitions", topic.name, topic.count)


def _new_replicas(services: Services, known: TopicImage, topic: Any) -> Replicas:
    """Returns the replicas that a CreatePartitions request assigns to the added partitions, in their order."""
    count = len(known.partitions)
    if len(topic.assignments) != topic.count - count:
        raise BrokerError(
            ErrorCode.invalid_replica_assignment,
            f"topic {topic.name!r}: {len(topic.assignments)} assignments for {topic.count - count} new partitions",
        )
    given = [(count + index, assignment.broker_ids) for index, assignment in enumerate(topic.assignments)]
    return checked_assignment(services.image.brokers, given, count, len(known.partitions[0].replicas))
