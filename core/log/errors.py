"""The errors of the log, each with the Kafka error code that the client receives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..errors import ErrorCode, KlammError, NoSpaceError, StorageError

__all__ = [
    "FencedLeaderEpochError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTopicNameError",
    "InvalidTransactionStateError",
    "LogClosedError",
    "MessageTooLargeError",
    "NoSpaceError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "RecordError",
    "RecordListTooLargeError",
    "RecordValidationError",
    "StorageError",
    "TransactionCoordinatorFencedError",
    "WouldBlockError",
]


MAX_RECORD_ERRORS: Final = 1000
"""Upper bound of the records that one error names; its message has their total number."""


class RecordError(NamedTuple):
    """A record that causes its batch to be refused (KIP-467); `place` is its index in the batch."""

    place: int
    message: str


class RecordValidationError(KlammError):
    """A batch breaks a rule for appends; `record_errors` names the records at fault, if there are any."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors[:MAX_RECORD_ERRORS])


class InvalidRecordError(RecordValidationError):
    """A batch is complete but breaks a rule for appends."""

    code = ErrorCode.invalid_record


class MessageTooLargeError(KlammError):
    """A batch is larger than `max.message.bytes`."""

    code = ErrorCode.message_too_large


class RecordListTooLargeError(KlammError):
    """A batch is larger than `segment.bytes`."""

    code = ErrorCode.record_list_too_large


class InvalidTimestampError(RecordValidationError):
    """A timestamp is outside `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`."""

    code = ErrorCode.invalid_timestamp


class OutOfOrderSequenceError(KlammError):
    """A sequence of an idempotent producer does not follow the last one."""

    code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpochError(KlammError):
    """A batch has an older producer epoch than the last one stored."""

    code = ErrorCode.invalid_producer_epoch


class InvalidTransactionStateError(KlammError):
    """A batch outside a transaction comes from a producer that has a transaction open at the partition."""

    code = ErrorCode.invalid_txn_state


class TransactionCoordinatorFencedError(KlammError):
    """A marker comes from an older epoch of the transaction coordinator than the last marker of its producer."""

    code = ErrorCode.transaction_coordinator_fenced


class OffsetOutOfRangeError(KlammError):
    """An offset is outside [log start offset, log end offset]."""

    code = ErrorCode.offset_out_of_range


class FencedLeaderEpochError(KlammError):
    """An append has an older leader epoch than the latest one in the log."""

    code = ErrorCode.fenced_leader_epoch


class MirrorLogError(KlammError):
    """A client's append to a mirror."""

    code = ErrorCode.policy_violation


class InvalidTopicNameError(KlammError):
    """A topic name cannot be the name of a directory."""

    code = ErrorCode.invalid_topic_exception


class WouldBlockError(KlammError):
    """The append would block the event loop and must run on a worker thread; nothing was stored."""


class LogClosedError(StorageError):
    """The log of the partition is closed, or it failed and must be opened again."""
