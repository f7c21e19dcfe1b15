"""The topic `__consumer_offsets`, whose partitions place the classic groups: the leader of a group's partition
coordinates it, as in Kafka, with any offset store.
"""

from __future__ import annotations

from typing import Final

__all__ = ["OFFSETS_TOPIC", "java_hash", "partition_for"]

OFFSETS_TOPIC: Final = "__consumer_offsets"
_NO_ABSOLUTE_VALUE: Final = -(1 << 31)


def java_hash(text: str) -> int:
    """Returns Java's `String.hashCode`: over UTF-16 units, as a signed 32-bit number."""
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(group: str, count: int) -> int:
    """Returns the partition of a group among `count`, as Kafka does: the absolute hash modulo the count. The one hash
    without a 32-bit absolute value counts as 0."""
    found = java_hash(group)
    return 0 if found == _NO_ABSOLUTE_VALUE else abs(found) % count
