"""Fetch between brokers (version 18), written and read here: a follower's request carries only changed partitions, and
the records of a response are views into its frame. Each round of replication reads one of each. A mirror fetches from
its source in the same way, as a consumer (`CONSUMER`), with version 13 or later.

A follower of a mirror may add the epochs of its log, in a tagged field of Klamm's own (docs/mirror.md, M13), in a
partition:

    field 10000: for each epoch, its number (int32), its first offset and its end (int64)

A test compares the bytes with kio's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from ..errors import ErrorCode, ProtocolError
from ..records.epoch_end import EpochRange
from .bounds_check import read_uvarint, write_uvarint
from .headers import skip_tags
from .messages import Buffer
from .primitives import Reader, tagged

VERSION = 18
CONSUMER = -1
"""The replica id of a consumer."""
FIRST_BY_ID = 13
"""The first version that names topics by id: the earliest that a consumer's request is written in."""
PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic id, as its 16 bytes, and partition. (A `UUID` is hashed and compared in Python, at each look-up.)"""

_TOP = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqiB")
_INT32 = struct.Struct(">i")
_REPLICA = struct.Struct(">iqB")
_END = b"\1\1\1" + write_uvarint(_REPLICA.size)
"""The bytes before the replica's state: no rack, and one tagged field, the replica's state, with its size."""
_CONSUMER_END = b"\1\0"
"""No rack, and no tagged field."""
_REPLICA_STATE_FROM = 15
"""Earlier versions begin with the replica id instead of having the replica's state at the end."""
_ID = 16
_RESPONSE = struct.Struct(">ihi")
_ANSWER = struct.Struct(">ihqqq")
_DIVERGING = struct.Struct(">iq")
_RANGE = struct.Struct(">iqq")
_RANGES_TAG = 10_000
"""The tag of the follower's epochs, above the numbers that Kafka uses."""


class PartitionFetch(NamedTuple):
    """The fetch of one partition. `log_start_offset`, `epoch_ranges`: the follower's."""

    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    epoch_ranges: tuple[EpochRange, ...] = ()


class ReplicaFetchRequest(NamedTuple):
    """The body of a follower's request, or of a consumer's without a rack, whose `replica_epoch` is not sent."""

    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    partitions: Mapping[PartitionKey, PartitionFetch]
    forgotten: tuple[PartitionKey, ...] = ()

    def encode(self, version: int = VERSION) -> bytes:
        """Returns the body. `version` may be earlier, from `FIRST_BY_ID` on, for a consumer's request only."""
        is_consumer = self.replica_id == CONSUMER
        out = bytearray(_INT32.pack(CONSUMER) if is_consumer and version < _REPLICA_STATE_FROM else b"")
        out += _TOP.pack(self.max_wait_ms, self.min_bytes, self.max_bytes, 0, self.session_id, self.session_epoch)
        topics = _by_topic(self.partitions)
        out += write_uvarint(len(topics) + 1)
        for topic_id, numbers in topics.items():
            out += topic_id + write_uvarint(len(numbers) + 1)
            for number in numbers:
                epoch, offset, last_epoch, start, limit, ranges = self.partitions[topic_id, number]
                out += _PARTITION.pack(number, epoch, offset, last_epoch, start, limit, bool(ranges))
                if ranges:
                    out += tagged(_RANGES_TAG, b"".join(_RANGE.pack(*each) for each in ranges))
            out.append(0)
        forgotten = _by_topic(self.forgotten)
        out += write_uvarint(len(forgotten) + 1)
        for topic_id, numbers in forgotten.items():
            out += topic_id + write_uvarint(len(numbers) + 1)
            for number in numbers:
                out += _INT32.pack(number)
            out.append(0)
        out += _CONSUMER_END if is_consumer else _END + _REPLICA.pack(self.replica_id, self.replica_epoch, 0)
        return bytes(out)


def read_replica_fetch_request(frame: Buffer, at: int) -> ReplicaFetchRequest | None:
    """Reads the body of a follower's request, from `at` on, if it has the form that `encode` writes. Returns None for
    any other request, damaged ones included, which kio then reads."""
    end = len(frame) - _REPLICA.size
    if frame[end - len(_END) : end] != _END:
        return None
    try:
        return _read_request(memoryview(frame)[: end - len(_END)], at, *_REPLICA.unpack_from(frame, end))
    except (struct.error, IndexError, ProtocolError):
        return None


def _read_request(
    frame: memoryview, at: int, replica_id: int, replica_epoch: int, tags: int
) -> ReplicaFetchRequest | None:
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _TOP.unpack_from(frame, at)
    partitions: dict[PartitionKey, PartitionFetch] = {}
    topics, at = read_uvarint(frame, at + _TOP.size)
    other = isolation or tags or replica_id < 0 or not topics
    for _ in range(topics - 1):
        topic_id = bytes(frame[at : at + _ID])
        count, at = read_uvarint(frame, at + _ID)
        end = at + (count - 1) * _PARTITION.size
        if any(frame[at + _PARTITION.size - 1 : end : _PARTITION.size]):
            end = _read_tagged(frame, at, topic_id, count - 1, partitions)
        else:
            for number, epoch, offset, last_epoch, start, limit, _ in _PARTITION.iter_unpack(frame[at:end]):
                partitions[topic_id, number] = PartitionFetch(epoch, offset, last_epoch, start, limit)
        other = other or not count or frame[end]
        at = end + 1
    forgotten: list[PartitionKey] = []
    topics, at = read_uvarint(frame, at)
    other = other or not topics
    for _ in range(topics - 1):
        topic_id = bytes(frame[at : at + _ID])
        count, at = read_uvarint(frame, at + _ID)
        end = at + (count - 1) * _INT32.size
        other = other or not count or frame[end]
        forgotten += [(topic_id, number) for (number,) in _INT32.iter_unpack(frame[at:end])]
        at = end + 1
    if other or at != len(frame):
        return None
    return ReplicaFetchRequest(
        replica_id, replica_epoch, max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, partitions,
        tuple(forgotten),
    )  # fmt: skip


def _read_tagged(
    frame: memoryview, at: int, topic_id: bytes, count: int, partitions: dict[PartitionKey, PartitionFetch]
) -> int:
    """Reads the partitions of a topic of which some have the tagged field; returns the position after them. Raises
    `ProtocolError` if there are other tagged fields, and `struct.error`."""
    for _ in range(count):
        number, epoch, offset, last_epoch, start, limit, _ = _PARTITION.unpack_from(frame, at)
        reader = Reader(frame, at + _PARTITION.size - 1, flexible=True)
        tags = reader.tags()
        if tags.keys() - {_RANGES_TAG}:
            raise ProtocolError("an unknown tagged field")
        ranges = tuple(EpochRange(*each) for each in _RANGE.iter_unpack(tags.get(_RANGES_TAG, b"")))
        partitions[topic_id, number] = PartitionFetch(epoch, offset, last_epoch, start, limit, ranges)
        at = reader.position
    return at


class PartitionAnswer(NamedTuple):
    """The answer for one partition. `diverging`: leader epoch and its end offset."""

    error: ErrorCode
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: Buffer


class ReplicaFetchResponse(NamedTuple):
    error: ErrorCode
    session_id: int
    partitions: Mapping[PartitionKey, PartitionAnswer]


def read_replica_fetch_response(frame: memoryview, offset: int) -> ReplicaFetchResponse:
    """Reads the body of a response, of version `FIRST_BY_ID` or later, from `offset` on. Raises `ProtocolError` if it
    cannot be read."""
    try:
        return _read_response(frame, offset)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"cannot read a Fetch response: {error}") from error


def _read_response(frame: memoryview, at: int) -> ReplicaFetchResponse:
    _, error, session_id = _RESPONSE.unpack_from(frame, at)
    topics, at = read_uvarint(frame, at + _RESPONSE.size)
    found: dict[PartitionKey, PartitionAnswer] = {}
    for _ in range(topics - 1):
        topic_id = bytes(frame[at : at + _ID])
        count, at = read_uvarint(frame, at + _ID)
        for _ in range(count - 1):
            number, answer, at = _read_answer(frame, at)
            found[topic_id, number] = answer
        at = skip_tags(frame, at)
    return ReplicaFetchResponse(ErrorCode(error) if error else ErrorCode.none, session_id, found)


def _read_answer(frame: memoryview, at: int) -> tuple[int, PartitionAnswer, int]:
    number, error, high_watermark, _, log_start = _ANSWER.unpack_from(frame, at)
    at += _ANSWER.size
    if frame[at] > 1:
        raise ValueError("an answer to a follower lists aborted transactions")
    size, at = read_uvarint(frame, at + 1 + _INT32.size)  # after the preferred read replica
    size = max(size - 1, 0)
    records = frame[at : at + size]
    if len(records) < size:
        raise ValueError("the frame ends within the records")
    at += size
    if not error and not frame[at]:
        return number, PartitionAnswer(ErrorCode.none, high_watermark, log_start, None, records), at + 1
    reader = Reader(frame, at, flexible=True)
    field = reader.tags().get(0)
    epoch, end = (-1, -1) if field is None else _DIVERGING.unpack_from(field)
    diverging = (epoch, end) if (epoch, end) != (-1, -1) else None
    return number, PartitionAnswer(ErrorCode(error), high_watermark, log_start, diverging, records), reader.position


def _by_topic(keys: Iterable[PartitionKey]) -> dict[bytes, list[int]]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in keys:
        topics.setdefault(topic_id, []).append(number)
    return topics


def as_replica_fetch(message: Any) -> ReplicaFetchRequest:
    """Returns a decoded request of a follower (kio's message, version 15 or later) as a `ReplicaFetchRequest`."""
    partitions = {
        (_id_of(topic), p.partition): PartitionFetch(
            p.current_leader_epoch, p.fetch_offset, p.last_fetched_epoch, p.log_start_offset, p.partition_max_bytes
        )
        for topic in message.topics
        for p in topic.partitions
    }
    forgotten = tuple((_id_of(topic), number) for topic in message.forgotten_topics_data for number in topic.partitions)
    return ReplicaFetchRequest(
        message.replica_state.replica_id, message.replica_state.replica_epoch,
        round(message.max_wait.total_seconds() * 1000), message.min_bytes, message.max_bytes, message.session_id,
        message.session_epoch, partitions, forgotten,
    )  # fmt: skip


def _id_of(topic: Any) -> bytes:
    return bytes(_ID) if topic.topic_id is None else bytes(topic.topic_id.bytes)
