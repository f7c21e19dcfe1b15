"""A replica's Fetch of one partition, and its answer (Fetch 15 and later: KIP-595, KIP-903)."""

from __future__ import annotations

from typing import NamedTuple

from kio.schema.errors import ErrorCode

from ..records.epoch_end import EpochRange


class EpochEndOffset(NamedTuple):
    """The end of an epoch in the leader's log."""

    leader_epoch: int
    end_offset: int


class ReplicaFetch(NamedTuple):
    """`last_fetched_epoch` is the epoch of the record before `fetch_offset` in the follower's log, -1 if unknown;
    `replica_epoch` is the follower's broker epoch, `log_start_offset` that of its log, as the leader receives it.
    `epoch_ranges` are those of the follower's log, until they have been compared (docs/mirror.md, M13); else empty.
    """

    replica_id: int
    replica_epoch: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int = -1
    epoch_ranges: tuple[EpochRange, ...] = ()


class ReplicaFetchData(NamedTuple):
    """The leader's answer. With `diverging_epoch` it has no records, and the follower truncates. All bounds are read
    together with the records, in one lock."""

    error: ErrorCode = ErrorCode.none
    diverging_epoch: EpochEndOffset | None = None
    high_watermark: int = -1
    log_start_offset: int = -1
    records: bytes = b""
    preferred_read_replica: int = -1
    """Only in the answer to a consumer (KIP-392)."""
