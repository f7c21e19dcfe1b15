"""Decides the numbers, replicas and configs of new topics and partitions, for all ways of creating them (CreateTopics,
CreatePartitions, creation on demand, services)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from ..cluster.assignment import Replicas, checked_assignment
from ..cluster.image import TopicImage
from ..config.sections.topic import TopicConfig
from ..errors import BrokerError, ConfigError, ErrorCode
from .services import Services

BY_DEFAULT: Final = -1
"""The number of partitions or replicas that means the broker's default."""

Assignments = Sequence[tuple[int, Sequence[int]]]
"""Replicas that an administrator gives: (partition, brokers)."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic to be created, with the broker's defaults filled in; `replicas` if an administrator assigned them."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)
    replicas: Replicas | None = None


def plan_topic(
    services: Services,
    name: str,
    partitions: int = BY_DEFAULT,
    replication_factor: int = BY_DEFAULT,
    configs: Mapping[str, str] | None = None,
    assignments: Assignments = (),
) -> TopicPlan:
    """Returns the plan of a new topic. Raises `BrokerError` with Kafka's code, or `ConfigError`, if it cannot be
    created so.
    """
    services.cluster.check_create_topic(name, 1)  # checked before its configs, as in Kafka
    configs = configs or {}
    check_topic_config(services, configs)
    if assignments:
        if (partitions, replication_factor) != (BY_DEFAULT, BY_DEFAULT):
            raise BrokerError(
                ErrorCode.invalid_request,
                f"topic {name!r}: with assignments, partitions and replication factor are left at -1",
            )
        replicas = checked_assignment(services.image.brokers, assignments)
        plan = TopicPlan(name, len(replicas), len(replicas[0]), configs, replicas)
    else:
        config = services.config
        plan = TopicPlan(
            name,
            config.num_partitions if partitions == BY_DEFAULT else partitions,
            config.default_replication_factor if replication_factor == BY_DEFAULT else replication_factor,
            configs,
        )
    services.cluster.check_create_topic(name, plan.partitions)
    _check_factor(services, plan)
    return plan


def create_topic(services: Services, plan: TopicPlan) -> UUID:
    """Creates the topic and returns its id. Blocks; raises `BrokerError` with Kafka's code."""
    return services.cluster.create_topic(
        plan.name, plan.partitions, plan.replication_factor, plan.configs, plan.replicas
    )


def added_replicas(services: Services, topic: TopicImage, total: int, given: Sequence[Sequence[int]]) -> Replicas:
    """Returns the replicas that an administrator gives to the partitions that are added, in their order."""
    count = len(topic.partitions)
    if len(given) != total - count:
        raise BrokerError(
            ErrorCode.invalid_replica_assignment,
            f"topic {topic.name!r}: {len(given)} assignments for {total - count} new partitions",
        )
    numbered: Iterable[tuple[int, Sequence[int]]] = enumerate(given, count)
    return checked_assignment(services.image.brokers, numbered, count, len(topic.partitions[0].assignment.target))


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


def _check_factor(services: Services, plan: TopicPlan) -> None:
    factor, live = plan.replication_factor, len(services.image.brokers)
    if factor < 1:
        why = "a topic has at least one replica"
    elif factor > live:
        why = f"it is larger than the number of live brokers, {live}"
    else:
        return
    raise BrokerError(
        ErrorCode.invalid_replication_factor, f"topic {plan.name!r} with replication factor {factor}: {why}"
    )
