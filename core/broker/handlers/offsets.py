"""OffsetCommit and OffsetFetch: a group's positions, stored by the offset store that the configuration names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from ...cluster.image import TopicImage
from ...errors import ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...interfaces.security.authorizer import AclOperation, ResourceType
from ...protocol.messages import Entity
from ...records.partition import TopicPartition
from ..coordinator.coordinator_errors import commit_code
from ..coordinator.offset_commits import OffsetCommitter
from ..request import Request
from ..services import Services

BY_TOPIC_ID = 10
"""From this version on, OffsetCommit and OffsetFetch name topics by id (KIP-848)."""

_Asked = list[tuple[str | UUID | None, TopicImage | None, TopicPartition]]
"""Partitions, each with the topic as the request names it and the topic's name. The name of an unknown topic id is
empty."""


async def offset_commit(services: Services, request: Request) -> Entity:
    """Stores the offsets of all partitions that pass the checks together, each for the topic id that the request
    names, or in versions with names for the id that this broker knows; the others get their own errors."""
    m = request.message
    committer = OffsetCommitter(
        m.member_id, m.generation_id_or_member_epoch, m.group_instance_id if request.version >= 7 else None
    )
    by_id = request.version >= BY_TOPIC_ID
    no_group = services.access.refusal(request, AclOperation.READ, ResourceType.GROUP, m.group_id)
    codes: dict[str | UUID | None, dict[int, ErrorCode]] = {}
    """By the topic as the request names it, since the answer names it in the same way."""
    named: dict[TopicPartition, dict[int, ErrorCode]] = {}
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for asked in m.topics:
        topic = _topic_by_id(services, asked.topic_id) if by_id else services.image.topics.get(asked.name)
        answer = codes.setdefault(asked.topic_id if by_id else asked.name, {})
        name = None if by_id else asked.name
        refused = no_group or _unreadable(services, request, name if topic is None else topic.name)
        for p in asked.partitions:
            answer[p.partition_index] = refused or _problem(
                services, topic, p.partition_index, p.committed_metadata, by_id=by_id
            )
            if topic is None or answer[p.partition_index] is not ErrorCode.none:
                continue
            tp = TopicPartition(topic.name, p.partition_index)
            epoch = p.committed_leader_epoch if request.version >= 6 else -1
            offsets[tp] = CommittedOffset(
                p.committed_offset, epoch, p.committed_metadata or "", services.clock_ms(), topic.topic_id
            )
            named[tp] = answer
    if offsets:
        for tp, code in (await services.groups.commits.commit(m.group_id, committer, offsets)).items():
            gone = by_id and code is ErrorCode.unknown_topic_or_partition  # deleted since the lookup
            named[tp][tp.partition] = ErrorCode.unknown_topic_id if gone else code
    return request.respond(topics=_committed(request, codes))


def _unreadable(services: Services, request: Request, topic: str | None) -> ErrorCode | None:
    """Returns why the client may not read the topic; None if it may, or no name is known."""
    if topic is None:
        return None
    return services.access.refusal(request, AclOperation.READ, ResourceType.TOPIC, topic)


def _topic_by_id(services: Services, topic_id: UUID | None) -> TopicImage | None:
    return None if topic_id is None else services.image.topic_by_id(topic_id)


def _problem(
    services: Services, topic: TopicImage | None, partition: int, metadata: str | None, *, by_id: bool
) -> ErrorCode:
    if topic is None and by_id:
        return ErrorCode.unknown_topic_id
    if topic is None or partition not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if metadata is not None and len(metadata.encode()) > services.config.offset_metadata_max_bytes:
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


def _committed(request: Request, codes: Mapping[str | UUID | None, Mapping[int, ErrorCode]]) -> tuple[Entity, ...]:
    kind = "topic_id" if request.version >= BY_TOPIC_ID else "name"
    return tuple(
        request.part(
            "OffsetCommitResponseTopic",
            **{kind: topic},
            partitions=tuple(
                request.part("OffsetCommitResponsePartition", partition_index=number, error_code=code)
                for number, code in partitions.items()
            ),
        )
        for topic, partitions in codes.items()
    )


async def offset_fetch(services: Services, request: Request) -> Entity:
    """Returns the offsets of one group up to version 7, of several from version 8 on; null topics (from version 2
    on) request all stored offsets. The member id and epoch of a request (from version 9 on) are not checked: Kafka
    checks them only for groups of the newer protocol (KIP-848)."""
    m = request.message
    if request.version < 8:
        asked, code, found = await _fetch(services, request, m.group_id, m.topics)
        if request.version == 1 and code is not ErrorCode.none:
            asked = [row for topic in m.topics or () for row in _asked(services, request, topic)]
        return request.respond(error_code=code, topics=_fetched(services, request, asked, found, code))
    groups = []
    for group in m.groups:
        asked, code, found = await _fetch(services, request, group.group_id, group.topics)
        groups.append(
            request.part(
                "OffsetFetchResponseGroup",
                group_id=group.group_id,
                error_code=code,
                topics=_fetched(services, request, asked, found, code),
            )
        )
    return request.respond(groups=tuple(groups))


async def _fetch(
    services: Services, request: Request, group_id: str, topics: Iterable[Entity] | None
) -> tuple[_Asked, ErrorCode, dict[TopicPartition, CommittedOffset]]:
    """Returns (partitions to answer, error of the group, stored offsets)."""
    error = services.access.refusal(request, AclOperation.DESCRIBE, ResourceType.GROUP, group_id)
    error = error or services.groups.not_mine(group_id)
    if error is not None:
        return [], error, {}
    asked = None if topics is None else [row for topic in topics for row in _asked(services, request, topic)]
    names = None if asked is None else [name for _, _, name in asked if name.topic]
    try:
        found = await services.groups.offsets.fetch(group_id, names)
    except KlammError as problem:
        return [], commit_code(problem), {}
    if asked is None:
        visible = [name for name in sorted(found) if _hidden(services, request, name.topic) is None]
        if request.version < BY_TOPIC_ID:
            asked = [(name.topic, None, name) for name in visible]
        else:
            known = ((services.image.topics.get(name.topic), name) for name in visible)
            asked = [(topic.topic_id, topic, name) for topic, name in known if topic is not None]
    return asked, ErrorCode.none, found


def _hidden(services: Services, request: Request, topic: str) -> ErrorCode | None:
    return services.access.refusal(request, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)


def _asked(services: Services, request: Request, topic: Any) -> _Asked:
    if request.version < BY_TOPIC_ID:
        return [(topic.name, None, TopicPartition(topic.name, index)) for index in topic.partition_indexes]
    known = _topic_by_id(services, topic.topic_id)
    name = "" if known is None else known.name
    return [(topic.topic_id, known, TopicPartition(name, index)) for index in topic.partition_indexes]


def _fetched(
    services: Services,
    request: Request,
    asked: _Asked,
    found: Mapping[TopicPartition, CommittedOffset],
    code: ErrorCode,
) -> tuple[Entity, ...]:
    """Returns the topics of one group. The offset is -1 for a partition without a stored offset, and for one that
    was stored for an earlier topic of the name."""
    by_id = request.version >= BY_TOPIC_ID
    suffix = "s" if request.version >= 8 else ""
    topics: dict[str | UUID | None, list[Entity]] = {}
    for topic, known, name in asked:
        unknown = ErrorCode.unknown_topic_id if by_id and known is None else None
        error = unknown or _hidden(services, request, name.topic)
        stored = CommittedOffset(-1) if error else found.get(name, CommittedOffset(-1))
        if known is not None and stored.topic_id not in (None, known.topic_id):
            stored = CommittedOffset(-1)
        part = request.part(
            "OffsetFetchResponsePartition" + suffix,
            partition_index=name.partition,
            committed_offset=stored.offset,
            committed_leader_epoch=stored.leader_epoch,
            metadata=stored.metadata,
            error_code=error or code,
        )
        topics.setdefault(topic, []).append(part)
    kind = "OffsetFetchResponseTopic" + suffix
    named = "topic_id" if by_id else "name"
    return tuple(request.part(kind, **{named: topic}, partitions=tuple(parts)) for topic, parts in topics.items())


async def offset_delete(services: Services, request: Request) -> Entity:
    """Deletes offsets of topics that no member of the group reads now; the others get GROUP_SUBSCRIBED_TO_TOPIC."""
    m = request.message
    if not m.group_id:
        return request.respond(error_code=ErrorCode.invalid_group_id, topics=())
    refused = services.access.refusal(request, AclOperation.DELETE, ResourceType.GROUP, m.group_id)
    if refused is not None:
        return request.respond(error_code=refused, topics=())
    unreadable = {topic.name: _unreadable(services, request, topic.name) for topic in m.topics}
    names = [TopicPartition(topic.name, p.partition_index) for topic in m.topics for p in topic.partitions]
    codes = await services.groups.deletions.delete_offsets(
        m.group_id, [n for n in names if unreadable[n.topic] is None]
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
                    error_code=unreadable[topic.name] or codes[TopicPartition(topic.name, p.partition_index)],
                )
                for p in topic.partitions
            ),
        )
        for topic in m.topics
    )
    return request.respond(error_code=ErrorCode.none, topics=topics)
