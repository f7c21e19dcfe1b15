"""The offset records of `__consumer_offsets`, byte for byte as Apache Kafka's group coordinator writes them.

Key, version 0 or 1 (int16): group, topic, partition (int32). Value, version 3 (int16): offset (int64), leader epoch
(int32, -1 unknown), metadata (string), commit time (int64 ms). Version 4 has compact strings and the topic id as tagged
field 0 (KIP-848): it is written if the topic id is known, else version 3. Value versions 0 to 2 can be read too (no
epoch; version 1 has an expiry time at the end, which Kafka no longer writes). A key of version 2 is a classic group's
(`kafka_groups`); keys of newer groups (3 and up) are ignored: Klamm does not create such groups.

Schemas: `OffsetCommitKey.json`, `OffsetCommitValue.json`, `GroupMetadataKey.json` of Kafka's group-coordinator.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

from ...errors import CorruptRecordError
from ...interfaces.offsets import CommittedOffset
from ...protocol.primitives import INT16, INT32, INT64, Reader, tagged
from ...records.partition import TopicPartition
from .kafka_strings import reading, string

KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
VALUE_VERSION: Final = 3
TOPIC_ID_VERSION: Final = 4
NEWEST_VALUE: Final = 4
_TOPIC_ID_TAG: Final = 0
_FIXED: Final = Struct(">hqi")


class OffsetKey(NamedTuple):
    group: str
    partition: TopicPartition


class GroupKey(NamedTuple):
    group: str


def encode_key(key: OffsetKey | GroupKey) -> bytes:
    if isinstance(key, GroupKey):
        return INT16.pack(GROUP_KEY_VERSION) + string(key.group)
    topic, number = key.partition
    return INT16.pack(KEY_VERSION) + string(key.group) + string(topic) + INT32.pack(number)


def encode_value(value: CommittedOffset) -> bytes:
    version = VALUE_VERSION if value.topic_id is None else TOPIC_ID_VERSION
    fixed = _FIXED.pack(version, value.offset, value.leader_epoch)
    time = INT64.pack(value.commit_timestamp_ms)
    if value.topic_id is None:
        return fixed + string(value.metadata) + time
    return fixed + string(value.metadata, flexible=True) + time + b"\1" + tagged(_TOPIC_ID_TAG, value.topic_id.bytes)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Returns None for a record of another kind. Raises `CorruptRecordError` for a truncated one."""
    with reading("key of an offset"):
        reader = Reader(memoryview(data), 0, flexible=False)
        version = reader.int16()
        if version == GROUP_KEY_VERSION:
            return GroupKey(reader.string())
        if version not in (0, KEY_VERSION):
            return None
        return OffsetKey(reader.string(), TopicPartition(reader.string(), reader.int32()))


def decode_value(data: bytes) -> CommittedOffset:
    """Raises `CorruptRecordError` for a value that is truncated or has an unknown version."""
    with reading("value of an offset"):
        reader = Reader(memoryview(data), 0, flexible=False)
        version = reader.int16()
        if not 0 <= version <= NEWEST_VALUE:
            raise CorruptRecordError(f"an offset record's value has version {version}, not 0 to {NEWEST_VALUE}")
        reader.flexible = version == NEWEST_VALUE
        offset = reader.int64()
        epoch = reader.int32() if version >= 3 else -1
        metadata, time = reader.nullable_string() or "", reader.int64()
        raw = reader.tags().get(_TOPIC_ID_TAG)
        return CommittedOffset(offset, epoch, metadata, time, None if raw is None else _topic_id(bytes(raw)))


def _topic_id(raw: bytes) -> UUID | None:
    """Returns None for Kafka's zero id, which means no id."""
    if len(raw) != 16:
        raise CorruptRecordError(f"an offset record's topic id has {len(raw)} bytes, not 16")
    return UUID(bytes=raw) if any(raw) else None
