"""The records of `__consumer_offsets`, byte for byte as Apache Kafka's group coordinator writes them.

All integers big-endian; a string is its length (int16, -1 for null) and UTF-8. Key, version 0 or 1 (int16): group,
topic, partition (int32). Value, version 3 (int16): offset (int64), leader epoch (int32, -1 unknown), metadata (string),
commit time (int64 ms). Read are also value versions 0 to 2 (no epoch; 1 has an expiry time at the end, which Kafka
stopped writing) and 4 (KIP-848: compact strings and tagged fields). Keys of other versions are a group's members (2)
or newer groups' (3 and up): Klamm's members are known elsewhere, so those records are passed over.

Schemas: `OffsetCommitKey.json`, `OffsetCommitValue.json` of Kafka's group-coordinator.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from klamm.core.errors import CorruptRecordError
from klamm.core.records.partition import TopicPartition
from klamm.core.seams.offsets import CommittedOffset

KEY_VERSION: Final = 1
VALUE_VERSION: Final = 3
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_FIXED: Final = Struct(">hqi")


class OffsetKey(NamedTuple):
    group: str
    partition: TopicPartition


def encode_key(key: OffsetKey) -> bytes:
    topic, number = key.partition
    return _INT16.pack(KEY_VERSION) + _string(key.group) + _string(topic) + _INT32.pack(number)


def encode_value(value: CommittedOffset) -> bytes:
    fixed = _FIXED.pack(VALUE_VERSION, value.offset, value.leader_epoch)
    return fixed + _string(value.metadata) + _INT64.pack(value.commit_timestamp_ms)


def decode_key(data: bytes) -> OffsetKey | None:
    """None for a record that is no offset; `CorruptRecordError` for one that is cut off."""
    try:
        (version,) = _INT16.unpack_from(data)
        if version not in (0, KEY_VERSION):
            return None
        group, pos = _read_string(data, 2)
        topic, pos = _read_string(data, pos)
        (number,) = _INT32.unpack_from(data, pos)
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptRecordError(f"the key of an offset record cannot be read: {error}") from error
    return OffsetKey(group, TopicPartition(topic, number))


def decode_value(data: bytes) -> CommittedOffset:
    """`CorruptRecordError` for one that is cut off or of a version that is not known."""
    try:
        (version,) = _INT16.unpack_from(data)
        if not 0 <= version <= 4:
            raise CorruptRecordError(f"an offset record's value has version {version}, not 0 to 4")
        (offset,) = _INT64.unpack_from(data, 2)
        pos, epoch = 10, -1
        if version >= 3:
            (epoch,) = _INT32.unpack_from(data, pos)
            pos += 4
        metadata, pos = _read_compact(data, pos) if version == 4 else _read_string(data, pos)
        (committed,) = _INT64.unpack_from(data, pos)
    except (StructError, UnicodeDecodeError, IndexError) as error:
        raise CorruptRecordError(f"the value of an offset record cannot be read: {error}") from error
    return CommittedOffset(offset, epoch, metadata, committed)


def java_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 units, in 32 bits with sign."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group: str, count: int) -> int:
    """Kafka's: the absolute hash modulo the number of partitions; the one hash without an absolute value counts 0."""
    found = java_hash(group)
    return 0 if found == -(1 << 31) else abs(found) % count


def _string(text: str) -> bytes:
    raw = text.encode()
    return _INT16.pack(len(raw)) + raw


def _read_string(data: bytes, pos: int) -> tuple[str, int]:
    """Null is read as empty."""
    (size,) = _INT16.unpack_from(data, pos)
    return _text(data, pos + 2, max(size, 0))


def _read_compact(data: bytes, pos: int) -> tuple[str, int]:
    """Length + 1 as an unsigned varint."""
    size = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 28:
            return _text(data, pos, max(size - 1, 0))


def _text(data: bytes, pos: int, size: int) -> tuple[str, int]:
    if size > len(data) - pos:
        raise StructError(f"{size} bytes of text, {len(data) - pos} are left")
    return data[pos : pos + size].decode(), pos + size
