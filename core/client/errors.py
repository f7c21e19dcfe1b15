"""The errors that clients raise besides the brokers' error codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ..errors import (
    BrokerError,
    CorruptRecordError,
    ErrorCode,
    KlammError,
    SchemaError,
    describe_error,
    describe_failure,
)
from ..records.partition import TopicPartition

if TYPE_CHECKING:
    from ..interfaces.offsets import CommittedOffset

__all__ = [
    "FAIL_OVER_ERRORS",
    "STALE_COORDINATOR_ERRORS",
    "STALE_LEADER_ERRORS",
    "ClientClosedError",
    "ConnectionFailedError",
    "DataLossError",
    "LogTruncatedError",
    "NoOffsetError",
    "OffsetsDeletedError",
    "RequestTimeoutError",
    "SinkError",
    "TopicReplacedError",
    "UnknownTopicError",
    "UnreadableBatchError",
    "UnreadableRecordError",
    "nearest_of",
    "unknown_topic",
]


STALE_LEADER_ERRORS: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
    }
)
"""Errors of a partition after which a client forgets its leader and refreshes the metadata before it tries again:
the leader has moved, or the topic was deleted or created again. The producer, the consumer, the readers and the
admin calls use this set."""

FAIL_OVER_ERRORS: Final = STALE_LEADER_ERRORS | {
    ErrorCode.network_exception,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.offset_not_available,
}
"""Errors of a partition that end when another broker leads it, or replicas have caught up: they are retried with the
delays of a fail-over."""

STALE_COORDINATOR_ERRORS: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
"""Errors after which a client looks up a group's coordinator again."""


class ConnectionFailedError(KlammError):
    """No connection could be made, or it broke before the answer arrived: it is not known whether the request was
    carried out.
    """

    code = ErrorCode.network_exception


class RequestTimeoutError(ConnectionFailedError):
    """No answer arrived in time; it is not known whether the request was carried out."""

    code = ErrorCode.request_timed_out


class ClientClosedError(KlammError):
    """The client was closed before or during the call."""


class UnknownTopicError(BrokerError):
    """The cluster has no topic of this name."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unknown_topic_or_partition, message)


def unknown_topic(topic: str, known: Iterable[str], *, wanted: bool = True) -> UnknownTopicError:
    """Returns an error that names the topic and the nearest existing one. If there is none and the topic is
    `wanted`, the error says how to create it."""
    near = nearest_of(topic, known)
    hint = f"; create it with `klamm topics create {topic}`" if wanted and not near else near
    return UnknownTopicError(f"there is no topic {topic!r}{hint}")


def nearest_of(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'trips'?`, or an empty text."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


class UnreadableBatchError(CorruptRecordError):
    """A batch cannot be read. The consumer's position stays before it; `seek(partition, next_offset)` skips it
    (`next_offset` is read from the batch, or None if even that cannot be read).
    """

    def __init__(self, message: str, partition: TopicPartition, offset: int, next_offset: int | None) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset


class UnreadableRecordError(SchemaError):
    """A record's value cannot be deserialized. The consumer's position stays before it; `seek(partition, next_offset)`
    skips it.
    """

    def __init__(self, message: str, partition: TopicPartition, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.next_offset = offset + 1


class DataLossError(KlammError):
    """Expected records are missing: they were deleted, the log was cut, or the topic was created again."""

    code = ErrorCode.offset_out_of_range


class OffsetsDeletedError(DataLossError):
    """The broker no longer has the offset: retention or DeleteRecords deleted it, or the log ends before it."""

    def __init__(self, message: str, position: int, log_start_offset: int) -> None:
        super().__init__(message)
        self.position = position
        self.log_start_offset = log_start_offset


class LogTruncatedError(DataLossError):
    """The log was cut below the position and may have been written again since (KIP-320; Kafka's
    LogTruncationException). `divergent`, from a consumer: for each partition the offset up to which the log is the
    one that was read, and the leader epoch before it, each -1 if the leader does not know it."""

    def __init__(self, message: str, divergent: Mapping[TopicPartition, CommittedOffset] | None = None) -> None:
        super().__init__(message)
        self.divergent = dict(divergent or {})


class SinkError(KlammError):
    """A sink failed: names the sink and, unless the error is a `KlammError`, the method that raised it."""

    def __init__(self, name: str, method: str, error: Exception | SystemExit) -> None:
        if isinstance(error, KlammError):
            what, self.code = str(error), error.code
        else:
            known = isinstance(error, OSError)  # a full disk: no defect of the sink
            what = f"{method} failed: {describe_failure(error) if known else describe_error(error)}"
        super().__init__(f"sink {name}: {what}")


class TopicReplacedError(DataLossError):
    """The topic was deleted and another one has its name (KIP-516)."""


class NoOffsetError(BrokerError):
    """No offset is stored, or it is out of range, and `auto.offset.reset` is none."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.offset_out_of_range, message)
