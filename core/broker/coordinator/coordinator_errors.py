"""The codes that members get when their commit or their group's state cannot be stored, as Kafka's
GroupMetadataManager chooses them.
"""

from __future__ import annotations

from typing import Final

from ...errors import ErrorCode, KlammError

_NOT_STORED: Final = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.fenced_leader_epoch: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
}
_COMMIT: Final = {
    **_NOT_STORED,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}
_STATE: Final = {
    **_NOT_STORED,
    ErrorCode.request_timed_out: ErrorCode.rebalance_in_progress,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


def commit_code(error: KlammError) -> ErrorCode:
    """Returns the code for offsets that could not be stored, read or deleted."""
    return _COMMIT.get(error.code, error.code)


def state_code(error: KlammError) -> ErrorCode:
    """Returns the code for members whose group could not be stored."""
    return _STATE.get(error.code, error.code)
