"""What the log refuses, each with the code that the client gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..errors import ErrorCode, KlammError, StorageError

__all__ = [
    "FencedLeaderEpochError",
    "InvalidProducerEpochError",
    "InvalidRecordError",
    "InvalidTimestampError",
    "InvalidTopicNameError",
    "LogClosedError",
    "MessageTooLargeError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "RecordError",
    "RecordListTooLargeError",
    "RecordValidationError",
    "StorageError",
    "WouldBlockError",
]


MAX_RECORD_ERRORS: Final = 1000
"""Records of one batch that are named; the message says how many there are in all."""


class RecordError(NamedTuple):
    """A record for which its whole batch is refused (KIP-467), by its place in the batch."""

    place: int
    message: str


class RecordValidationError(KlammError):
    """A batch that breaks the rules of appending; names the records, if it is for some of them."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = tuple(record_errors[:MAX_RECORD_ERRORS])


class InvalidRecordError(RecordValidationError):
    """A batch that breaks the rules of appending, though its bytes are whole."""

    code = ErrorCode.invalid_record


class MessageTooLargeError(KlammError):
    """A batch larger than `max.message.bytes`."""

    code = ErrorCode.message_too_large


class RecordListTooLargeError(KlammError):
    """A batch larger than a whole segment."""

    code = ErrorCode.record_list_too_large


class InvalidTimestampError(RecordValidationError):
    """A timestamp outside `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`."""

    code = ErrorCode.invalid_timestamp


class OutOfOrderSequenceError(KlammError):
    """An idempotent producer's sequence leaves a gap."""

    code = ErrorCode.out_of_order_sequence_number


class InvalidProducerEpochError(KlammError):
    """A newer instance of this producer has written."""

    code = ErrorCode.invalid_producer_epoch


class OffsetOutOfRangeError(KlammError):
    """A read outside [log start, log end]."""

    code = ErrorCode.offset_out_of_range


class FencedLeaderEpochError(KlammError):
    """An append under an older leader epoch than the log has seen."""

    code = ErrorCode.fenced_leader_epoch


class InvalidTopicNameError(KlammError):
    """A topic name that cannot name a directory."""

    code = ErrorCode.invalid_topic_exception


class WouldBlockError(KlammError):
    """An append that belongs on a worker thread; nothing has happened."""


class LogClosedError(StorageError):
    """The partition's log was closed, or failed and must be opened again."""
