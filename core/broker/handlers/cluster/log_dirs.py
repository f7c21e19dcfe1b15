"""DescribeLogDirs (KIP-113, KIP-827): the replicas in this broker's log directory, and the free space of its file
system. AlterReplicaLogDirs moves nothing: there is only one directory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from ....errors import BrokerError, ErrorCode
from ....interfaces.security.authorizer import CLUSTER_NAME, AclOperation, ResourceType
from ....protocol.messages import Entity
from ....records.partition import TopicPartition
from ...request import Request
from ...services import Services

_UNKNOWN = -1


class _Space(NamedTuple):
    """Bytes of the file system; -1 if they cannot be read."""

    error: ErrorCode
    total: int
    usable: int


async def describe_log_dirs(services: Services, request: Request) -> Entity:
    """Answers all replicas if the topics are null. A partition without a replica here is left out."""
    try:
        services.access.check(request, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    except BrokerError as error:
        return request.respond(error_code=error.code, results=())
    directory = services.logs.directory.absolute()
    space = await services.workers.disk(_space, directory)
    wanted = _wanted(request)
    found: dict[str, list[Entity]] = {}
    for tp, log in sorted(services.logs.logs().items()):
        if wanted is not None and tp not in wanted:
            continue
        found.setdefault(tp.topic, []).append(
            request.part(
                "DescribeLogDirsPartition",
                partition_index=tp.partition,
                partition_size=log.size,
                offset_lag=max(0, log.high_watermark - log.log_end_offset),
                is_future_key=False,
            )
        )
    result = request.part(
        "DescribeLogDirsResult",
        error_code=space.error,
        log_dir=str(directory),
        topics=tuple(
            request.part("DescribeLogDirsTopic", name=name, partitions=tuple(partitions))
            for name, partitions in found.items()
        ),
        total_bytes=space.total,
        usable_bytes=space.usable,
    )
    return request.respond(error_code=ErrorCode.none, results=(result,))


def alter_replica_log_dirs(services: Services, request: Request) -> Entity:
    """Answers LOG_DIR_NOT_FOUND unless the directory is this broker's only one, where its replicas already are."""
    refused = services.access.refusal(request, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    own = str(services.logs.directory.absolute())
    found: dict[str, list[Entity]] = {}
    for asked in request.message.dirs:
        for topic in asked.topics:
            for number in topic.partitions:
                code = refused or _altered(services, asked.path == own, TopicPartition(topic.name, number))
                row = request.part("AlterReplicaLogDirPartitionResult", partition_index=number, error_code=code)
                found.setdefault(topic.name, []).append(row)
    return request.respond(
        results=tuple(
            request.part("AlterReplicaLogDirTopicResult", topic_name=name, partitions=tuple(rows))
            for name, rows in found.items()
        )
    )


def _altered(services: Services, is_own: bool, name: TopicPartition) -> ErrorCode:
    if not is_own:
        return ErrorCode.log_dir_not_found
    if services.partitions.replica(name) is not None:
        return ErrorCode.none
    code = services.not_led(*name)
    return ErrorCode.replica_not_available if code is ErrorCode.not_leader_or_follower else code


def _wanted(request: Request) -> set[TopicPartition] | None:
    topics = request.message.topics
    if topics is None:
        return None
    return {TopicPartition(topic.topic, number) for topic in topics for number in topic.partitions}


def _space(directory: Path) -> _Space:
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return _Space(ErrorCode.kafka_storage_error, _UNKNOWN, _UNKNOWN)
    return _Space(ErrorCode.none, usage.total, usage.free)
