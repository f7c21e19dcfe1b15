"""Requests of a member of a classic group, or of the group's administrator, over a raw socket.

The first request about a group on a connection asks for the group's coordinator before, as clients do, and waits until
the broker is it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from klamm.core.errors import ErrorCode
from klamm.core.protocol.apis import ApiKey
from klammtest.wire import WireClient, part

_COORDINATED: WeakKeyDictionary[WireClient, set[str]] = WeakKeyDictionary()
SESSION = timedelta(seconds=10)
LOADING_S = 120.0


def join(wire: WireClient, group: str, version: int = 7, member_id: str = "", instance_id: str | None = None) -> Any:
    coordinated(wire, group)
    protocol = part(ApiKey.JOIN_GROUP, version, "JoinGroupRequestProtocol", name="range", metadata=b"topics")
    return wire.call(
        ApiKey.JOIN_GROUP, version, group_id=group, session_timeout=SESSION, rebalance_timeout=SESSION,
        member_id=member_id, group_instance_id=instance_id, protocol_type="consumer", protocols=(protocol,),
    )  # fmt: skip


def once_loaded(ask: Callable[[], Any]) -> Any:
    """Repeats a request while the broker loads its groups, as clients do; returns the first other response or error
    code.
    """
    deadline = time.monotonic() + LOADING_S
    while getattr(answer := ask(), "error_code", answer) is ErrorCode.coordinator_load_in_progress:
        assert time.monotonic() < deadline, "the broker is still loading its groups"
        time.sleep(0.02)
    return answer


def joined(wire: WireClient, group: str, version: int = 7) -> Any:
    answer = once_loaded(lambda: join(wire, group, version))
    if answer.error_code is ErrorCode.member_id_required:
        answer = join(wire, group, version, answer.member_id)
    assert answer.error_code is ErrorCode.none
    return answer


def sync(wire: WireClient, group: str, member: Any, version: int = 5) -> Any:
    mine = part(ApiKey.SYNC_GROUP, version, "SyncGroupRequestAssignment", member_id=member.member_id, assignment=b"all")
    return wire.call(
        ApiKey.SYNC_GROUP, version, group_id=group, generation_id=member.generation_id, member_id=member.member_id,
        protocol_type="consumer", protocol_name="range", assignments=(mine,),
    )  # fmt: skip


def heartbeat(wire: WireClient, group: str, member: Any, version: int = 4) -> ErrorCode:
    who = {"group_id": group, "generation_id": member.generation_id, "member_id": member.member_id}
    code = wire.call(ApiKey.HEARTBEAT, version, **who).error_code
    assert isinstance(code, ErrorCode)
    return code


def leave(wire: WireClient, group: str, member_id: str, version: int = 4) -> Any:
    members = (part(ApiKey.LEAVE_GROUP, version, "MemberIdentity", member_id=member_id),) if version >= 3 else ()
    return wire.call(ApiKey.LEAVE_GROUP, version, group_id=group, member_id=member_id, members=members)


def commit(
    wire: WireClient,
    group: str,
    offsets: dict[tuple[str, int], int],
    member: Any = None,
    version: int = 8,
    metadata: str = "",
    ids: Mapping[str, UUID] | None = None,
) -> dict[tuple[str, int], ErrorCode]:
    """Commits offsets. `ids` of the topics, for version 10; the result is by their names."""
    coordinated(wire, group)
    answer = wire.call(ApiKey.OFFSET_COMMIT, version, **commit_fields(group, offsets, member, version, metadata, ids))
    names = {topic_id: name for name, topic_id in (ids or {}).items()}
    return {
        (names[t.topic_id] if version >= 10 else t.name, p.partition_index): p.error_code
        for t in answer.topics
        for p in t.partitions
    }


def commit_fields(
    group: str,
    offsets: dict[tuple[str, int], int],
    member: Any,
    version: int,
    metadata: str = "",
    ids: Mapping[str, UUID] | None = None,
) -> dict[str, Any]:
    topics: dict[str, list[Any]] = {}
    for (topic, partition), offset in offsets.items():
        asked = part(
            ApiKey.OFFSET_COMMIT, version, "OffsetCommitRequestPartition",
            partition_index=partition, committed_offset=offset, committed_leader_epoch=3, committed_metadata=metadata,
        )  # fmt: skip
        topics.setdefault(topic, []).append(asked)
    known = ids or {}
    return {
        "group_id": group,
        "generation_id_or_member_epoch": member.generation_id if member else -1,
        "member_id": member.member_id if member else "",
        "topics": tuple(
            part(
                ApiKey.OFFSET_COMMIT, version, "OffsetCommitRequestTopic", partitions=tuple(parts),
                **({"topic_id": known[topic]} if version >= 10 else {"name": topic}),
            )
            for topic, parts in topics.items()
        ),
    }  # fmt: skip


def stored(
    wire: WireClient,
    group: str,
    topic: str,
    partitions: tuple[int, ...],
    version: int = 8,
    topic_id: UUID | None = None,
) -> dict[int, Any]:
    """Fetches committed offsets. `topic_id`: for version 10."""
    coordinated(wire, group)
    if version >= 8:
        named = {"topic_id": topic_id} if version >= 10 else {"name": topic}
        asked = part(ApiKey.OFFSET_FETCH, version, "OffsetFetchRequestTopics", **named, partition_indexes=partitions)
        one = part(ApiKey.OFFSET_FETCH, version, "OffsetFetchRequestGroup", group_id=group, topics=(asked,))
        answer = wire.call(ApiKey.OFFSET_FETCH, version, groups=(one,)).groups[0]
    else:
        asked = part(ApiKey.OFFSET_FETCH, version, "OffsetFetchRequestTopic", name=topic, partition_indexes=partitions)
        answer = wire.call(ApiKey.OFFSET_FETCH, version, group_id=group, topics=(asked,))
    return {p.partition_index: p for t in answer.topics for p in t.partitions}


def describe(wire: WireClient, group: str, version: int = 5) -> Any:
    coordinated(wire, group)
    return wire.call(ApiKey.DESCRIBE_GROUPS, version, groups=(group,), include_authorized_operations=False).groups[0]


NOT_YET = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
    }
)
"""What a broker answers until it coordinates the group; clients ask again."""


def coordinated(wire: WireClient, *groups: str) -> None:
    """Has the broker make `__consumer_offsets`, and waits until it coordinates the groups; once for each group and
    connection. For one broker alone."""
    known = _COORDINATED.setdefault(wire, set())
    for group in [group for group in groups if group not in known]:
        deadline = time.monotonic() + LOADING_S
        while coordination_error(wire, group) in NOT_YET:
            assert time.monotonic() < deadline, f"the broker does not coordinate group {group!r}"
            time.sleep(0.02)
        known.add(group)


def coordination_error(wire: WireClient, group: str) -> ErrorCode:
    """Asks for the group's coordinator, then the broker itself about a member that does not exist."""
    code = find_coordinator(wire, group).error_code
    if code is ErrorCode.none:
        who = {"group_id": group, "generation_id": 1, "member_id": "nobody"}
        code = wire.call(ApiKey.HEARTBEAT, 4, **who).error_code
    assert isinstance(code, ErrorCode)
    return code


def find_coordinator(wire: WireClient, group: str) -> Any:
    return wire.call(ApiKey.FIND_COORDINATOR, 3, key=group, key_type=0)
