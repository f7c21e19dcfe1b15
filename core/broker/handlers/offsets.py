"""OffsetCommit and OffsetFetch: a group's positions, kept by the offset store that the configuration names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from klamm.core.broker.context import Request
from klamm.core.broker.group_service import Committer
from klamm.core.broker.services import Services
from klamm.core.errors import ErrorCode, KlammError
from klamm.core.records.partition import TopicPartition
from klamm.core.seams.offsets import CommittedOffset


async def offset_commit(services: Services, request: Request) -> Any:
    """All partitions that pass are stored together, each for the topic id that this broker knows; the others carry
    their own error."""
    m = request.message
    committer = Committer(
        m.member_id, m.generation_id_or_member_epoch, m.group_instance_id if request.version >= 7 else None
    )
    errors: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in m.topics:
        for p in topic.partitions:
            name = TopicPartition(topic.name, p.partition_index)
            errors[name] = _problem(services, name, p.committed_metadata)
            if errors[name] is ErrorCode.none:
                epoch = p.committed_leader_epoch if request.version >= 6 else -1
                topic_id = services.image.topics[topic.name].topic_id
                offsets[name] = CommittedOffset(
                    p.committed_offset, epoch, p.committed_metadata or "", services.clock_ms(), topic_id
                )
    if offsets:
        errors |= await services.groups.commit(m.group_id, committer, offsets)
    return request.respond(topics=_committed(request, errors))


def _problem(services: Services, name: TopicPartition, metadata: str | None) -> ErrorCode:
    topic = services.image.topics.get(name.topic)
    if topic is None or name.partition not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if metadata is not None and len(metadata.encode()) > services.config.offset_metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def _committed(request: Request, errors: Mapping[TopicPartition, ErrorCode]) -> tuple[Any, ...]:
    topics: dict[str, list[Any]] = {}
    for name, code in errors.items():
        part = request.part("OffsetCommitResponsePartition", partition_index=name.partition, error_code=code)
        topics.setdefault(name.topic, []).append(part)
    return tuple(
        request.part("OffsetCommitResponseTopic", name=topic, partitions=tuple(parts))
        for topic, parts in topics.items()
    )


async def offset_fetch(services: Services, request: Request) -> Any:
    """One group up to version 7, several from 8 on; null topics (version 2 up) ask for all that is stored."""
    m = request.message
    if request.version < 8:
        names, code, found = await _fetch(services, m.group_id, m.topics)
        if request.version == 1 and code is not ErrorCode.none:
            names = [name for topic in m.topics or () for name in _names(topic)]
        return request.respond(error_code=code, topics=_fetched(request, names, found, code))
    groups = []
    for group in m.groups:
        names, code, found = await _fetch(services, group.group_id, group.topics)
        groups.append(
            request.part(
                "OffsetFetchResponseGroup",
                group_id=group.group_id,
                error_code=code,
                topics=_fetched(request, names, found, code),
            )
        )
    return request.respond(groups=tuple(groups))


async def _fetch(
    services: Services, group_id: str, topics: Iterable[Any] | None
) -> tuple[list[TopicPartition], ErrorCode, dict[TopicPartition, CommittedOffset]]:
    """(partitions to answer, error of the group, what is stored)."""
    error = services.groups.not_mine(group_id)
    if error is not None:
        return [], error, {}
    names = None if topics is None else [name for topic in topics for name in _names(topic)]
    try:
        found = await services.groups.fetch(group_id, names)
    except KlammError as problem:
        return [], problem.code, {}
    return sorted(found) if names is None else names, ErrorCode.none, found


def _names(topic: Any) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for index in topic.partition_indexes]


def _fetched(
    request: Request,
    names: Iterable[TopicPartition],
    found: Mapping[TopicPartition, CommittedOffset],
    code: ErrorCode,
) -> tuple[Any, ...]:
    """The topics of one group; -1 where nothing is stored."""
    suffix = "s" if request.version >= 8 else ""
    topics: dict[str, list[Any]] = {}
    for name in names:
        stored = found.get(name, CommittedOffset(-1))
        part = request.part(
            "OffsetFetchResponsePartition" + suffix,
            partition_index=name.partition,
            committed_offset=stored.offset,
            committed_leader_epoch=stored.leader_epoch,
            metadata=stored.metadata,
            error_code=code,
        )
        topics.setdefault(name.topic, []).append(part)
    kind = "OffsetFetchResponseTopic" + suffix
    return tuple(request.part(kind, name=topic, partitions=tuple(parts)) for topic, parts in topics.items())


async def offset_delete(services: Services, request: Request) -> Any:
    """Of topics that no member of the group reads now; the others get GROUP_SUBSCRIBED_TO_TOPIC."""
    m = request.message
    if not m.group_id:
        return request.respond(error_code=ErrorCode.invalid_group_id, topics=())
    codes = await services.groups.delete_offsets(
        m.group_id, [TopicPartition(topic.name, p.partition_index) for topic in m.topics for p in topic.partitions]
    )
    if isinstance(codes, ErrorCode):
        return request.respond(error_code=codes, topics=())
    topics = tuple(
        request.part(
            "OffsetDeleteResponseTopic",
            name=topic.name,
            partitions=tuple(
                request.part(
                    "OffsetDeleteResponsePartition",
                    partition_index=p.partition_index,
                    error_code=codes[TopicPartition(topic.name, p.partition_index)],
                )
                for p in topic.partitions
            ),
        )
        for topic in m.topics
    )
    return request.respond(error_code=ErrorCode.none, topics=topics)
