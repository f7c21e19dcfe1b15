"""The subscriptions and assignments that members of a classic consumer group exchange through the coordinator.

Kafka's ConsumerProtocol: a version (int16), then the message. Klamm writes version 0, which every client reads, and
reads any version: a newer message begins with the fields of the newest one that Klamm knows.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable

from ...errors import ProtocolError
from ...protocol import messages
from ...records.partition import TopicPartition

_VERSION = struct.Struct(">h")
_NEWEST = 3
_WRITTEN = 0
_SUBSCRIPTION = "consumer_protocol_subscription"
_ASSIGNMENT = "consumer_protocol_assignment"


def encode_subscription(topics: Iterable[str]) -> bytes:
    schema = messages.data(_SUBSCRIPTION, _WRITTEN)
    message = schema.build(topics=tuple(sorted(topics)), user_data=None)
    return _VERSION.pack(_WRITTEN) + schema.encode(message)


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """Returns the topics. Raises `ProtocolError` if the data cannot be decoded."""
    schema = messages.data(_SUBSCRIPTION, _version(data))
    return tuple(schema.decode(data, _VERSION.size, whole=False).topics)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    schema = messages.data(_ASSIGNMENT, _WRITTEN)
    by_topic: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        by_topic[partition.topic].append(partition.partition)
    parts = tuple(schema.part("TopicPartition", topic=t, partitions=tuple(ps)) for t, ps in by_topic.items())
    return _VERSION.pack(_WRITTEN) + schema.encode(schema.build(assigned_partitions=parts, user_data=None))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Returns the partitions; none for empty data, which a leader may send."""
    if not data:
        return []
    message = messages.data(_ASSIGNMENT, _version(data)).decode(data, _VERSION.size, whole=False)
    return [TopicPartition(part.topic, number) for part in message.assigned_partitions for number in part.partitions]


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size or (version := _VERSION.unpack_from(data)[0]) < 0:
        raise ProtocolError(f"not a message of the consumer protocol: {data[:16]!r}")
    return min(int(version), _NEWEST)
