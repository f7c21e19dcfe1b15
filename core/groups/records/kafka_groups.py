"""The group records of `__consumer_offsets`: the members of a classic group, in Apache Kafka's format.

Value, version 3 (int16): protocol type (string), generation (int32), protocol and leader (strings or null), the time of
the change (int64 ms, -1 unknown), members; of each: id, instance id (or null), client id and host (strings), rebalance
and session time-out (int32 ms), subscription and assignment (bytes). Versions 0 to 2 can be read too (no instance id; 0
and 1 have no time; 0 has no rebalance time-out and uses the session's), and 4 (compact strings and tagged fields).

Schema: `GroupMetadataValue.json` of Kafka's group-coordinator.
"""

from __future__ import annotations

from typing import Final

from ...errors import CorruptRecordError
from ...protocol.primitives import INT16, INT32, INT64, Reader
from .kafka_strings import blob, reading, string
from .stored_group import StoredGroup, StoredMember

VALUE_VERSION: Final = 3
NEWEST_VALUE: Final = 4


def encode_group(group: StoredGroup) -> bytes:
    return b"".join(
        [
            INT16.pack(VALUE_VERSION),
            string(group.protocol_type),
            INT32.pack(group.generation),
            string(group.protocol),
            string(group.leader),
            INT64.pack(group.changed_ms),
            INT32.pack(len(group.members)),
            *map(_encode_member, group.members),
        ]
    )


def _encode_member(member: StoredMember) -> bytes:
    return b"".join(
        [
            string(member.member_id),
            string(member.instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            blob(member.subscription),
            blob(member.assignment),
        ]
    )


def decode_group(data: bytes) -> StoredGroup:
    """Raises `CorruptRecordError` for a value that is truncated or has an unknown version."""
    with reading("value of a group"):
        reader = Reader(memoryview(data), 0, flexible=False)
        version = reader.int16()
        if not 0 <= version <= NEWEST_VALUE:
            raise CorruptRecordError(f"a group record's value has version {version}, not 0 to {NEWEST_VALUE}")
        reader.flexible = version == NEWEST_VALUE
        group = StoredGroup(
            reader.nullable_string() or "",
            reader.int32(),
            reader.nullable_string(),
            reader.nullable_string(),
            reader.int64() if version >= 2 else -1,
            tuple(_decode_member(reader, version) for _ in range(reader.count())),
        )
        reader.tags()
        return group


def _decode_member(reader: Reader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.nullable_string() or "", reader.nullable_string() or ""
    rebalance_ms = reader.int32() if version >= 1 else -1
    session_ms = reader.int32()
    subscription, assignment = bytes(reader.nullable_bytes() or b""), bytes(reader.nullable_bytes() or b"")
    reader.tags()
    return StoredMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_ms if rebalance_ms >= 0 else session_ms,
        session_ms,
        subscription,
        assignment,
    )
