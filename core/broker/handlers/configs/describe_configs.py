"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (KIP-226, KIP-339) of topics, brokers and their loggers
(KIP-412)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from ....cluster.image import TopicImage
from ....config.describe import ConfigDescription, describe_topic
from ....config.section import ConfigSource, ConfigType
from ....config.sections.topic import TOPIC_DEFINITIONS, topic_values
from ....config.sections.topic_settings import name_problem, too_high_minimum
from ....errors import BrokerError, ErrorCode, KlammError
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....mirror.origin import ORIGIN
from ....protocol.messages import Entity
from ...request import Request
from ...services import Services
from ...topic_creation import check_topic_config
from ..topics.answers import wire_error
from .alter_configs import (
    Alteration,
    AlterConfigOp,
    ConfigChange,
    changed,
    check_well_formed,
    incremental,
    legacy,
)
from .broker_configs import alter_broker, broker_entries
from .broker_loggers import alter_loggers, logger_entries

log = logging.getLogger(__name__)
_NO_CONFIGS = "resource type {}: only topics (2), brokers (4) and loggers of brokers (8) have configs"


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


def describe_configs(services: Services, request: Request) -> Entity:
    results = []
    for resource in request.message.resources:
        code, text, entries = ErrorCode.none, None, list[ConfigDescription]()
        try:
            _check_access(services, request, AclOperation.DESCRIBE_CONFIGS, resource)
            entries = _entries(services, resource.resource_type, resource.resource_name)
            if resource.resource_type == Resource.TOPIC and ORIGIN in (resource.configuration_keys or ()):
                entries = [*entries, *_origin(services, _topic(services, resource.resource_name))]
        except KlammError as error:
            code, text = wire_error(error)
        wanted = resource.configuration_keys  # null or empty requests all of them
        results.append(
            request.part(
                "DescribeConfigsResult",
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=tuple(_config(request, e) for e in entries if not wanted or e.name in wanted),
            )
        )
    return request.respond(results=tuple(results))


def _check_access(services: Services, request: Request, operation: AclOperation, resource: Any) -> None:
    """Raises `BrokerError` if the client may not see, or change, the configs of a topic, or of the cluster's
    brokers.
    """
    if resource.resource_type == Resource.TOPIC:
        services.access.check(request, operation, ResourceType.TOPIC, resource.resource_name)
    else:
        services.access.check(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def _entries(services: Services, kind: int, name: str) -> list[ConfigDescription]:
    if kind == Resource.TOPIC:
        live = services.live
        return describe_topic(_topic(services, name).configs, services.config, live.for_all, live.for_this)
    if kind == Resource.BROKER:
        return broker_entries(services, name)
    if kind == Resource.BROKER_LOGGER:
        return logger_entries(services, name)
    raise BrokerError(ErrorCode.invalid_request, _NO_CONFIGS.format(kind))


def _origin(services: Services, topic: TopicImage) -> list[ConfigDescription]:
    """Returns the cluster that a topic is copied from, if it is a mirror."""
    source = services.mirror_sources.get(topic.partitions[0].state.mirror, "") if topic.partitions else ""
    if not source:
        return []
    words = "The cluster that the topic is a mirror of."
    return [ConfigDescription(ORIGIN, source, ConfigType.STRING, ConfigSource.DEFAULT, words, True, ())]


def _topic(services: Services, name: str) -> TopicImage:
    if problem := name_problem(name):
        raise BrokerError(ErrorCode.invalid_topic_exception, problem)
    topic = services.image.topics.get(name)
    if topic is None:
        raise BrokerError(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
    return topic


def _config(request: Request, entry: ConfigDescription) -> Entity:
    synonyms = tuple(
        request.part("DescribeConfigsSynonym", name=s.name, value=s.value, source=int(s.source)) for s in entry.synonyms
    )
    return request.part(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=int(entry.source),
        is_sensitive=entry.type is ConfigType.PASSWORD,
        synonyms=synonyms if request.message.include_synonyms else (),
        config_type=int(entry.type),
        documentation=entry.doc if request.version >= 3 and request.message.include_documentation else None,
    )


async def incremental_alter_configs(services: Services, request: Request) -> Entity:
    return await _alter_each(services, request, incremental)


async def alter_configs(services: Services, request: Request) -> Entity:
    return await _alter_each(services, request, legacy)


async def _alter_each(services: Services, request: Request, read: Callable[[Any], Alteration]) -> Entity:
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.message.resources)
    responses = []
    for resource in request.message.resources:
        code, text = ErrorCode.none, None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "a resource is named more than once in the request")
            _check_access(services, request, AclOperation.ALTER_CONFIGS, resource)
            await _alter(services, read(resource), request.message.validate_only)
        except KlammError as error:
            code, text = wire_error(error)
        responses.append(
            request.part(
                "AlterConfigsResourceResponse",
                error_code=code,
                error_message=text,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    if any(resource.resource_type != Resource.BROKER_LOGGER for resource in request.message.resources):
        await services.leadership.refresh()
    return request.respond(responses=tuple(responses))


async def _alter(services: Services, resource: Alteration, validate_only: bool) -> None:
    if resource.resource_type == Resource.BROKER:
        await alter_broker(services, resource, validate_only)
        return
    if resource.resource_type == Resource.BROKER_LOGGER and not resource.replaces:
        alter_loggers(services, resource, validate_only)
        return
    if resource.resource_type != Resource.TOPIC:
        raise BrokerError(ErrorCode.invalid_request, _NO_CONFIGS.format(resource.resource_type))
    if not resource.resource_name:
        raise BrokerError(ErrorCode.invalid_request, "topics have no common configs: a topic's name is missing")
    check_well_formed(f"topic {resource.resource_name!r}", resource.configs)
    topic = _topic(services, resource.resource_name)
    changes = {change.name: _changed(services, topic, change) for change in resource.changes(topic.configs)}
    after = {name: value for name, value in {**topic.configs, **changes}.items() if value is not None}
    check_topic_config(services, after)
    if not validate_only:
        await services.workers.coordination(services.cluster.alter_topic_config, topic.name, changes)
        log.info("topic %s: changed %s", topic.name, ", ".join(sorted(changes)))
        lowered = too_high_minimum(topic.name, changes, min(len(each.replicas) for each in topic.partitions.values()))
        if lowered:
            log.warning("%s", lowered)


def _changed(services: Services, topic: TopicImage, change: ConfigChange) -> str | None:
    """Returns the new value of one config; None resets it to the default."""
    definition = TOPIC_DEFINITIONS.get(change.name)
    if definition is None and change.config_operation == AlterConfigOp.DELETE:
        return None  # a key that only Kafka has, and that is not set
    if definition is None:
        check_topic_config(services, {change.name: change.value or ""})  # names the nearest valid name
        raise AssertionError(f"{change.name} is unknown, and was accepted")
    current = topic.configs.get(change.name) or topic_values({}, services.config.topic_defaults())[change.name]
    return changed(change, definition.type, current)
