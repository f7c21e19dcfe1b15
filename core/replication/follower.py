"""A follower of a partition: its next fetch, and how an answer changes its log (docs/replication.md, R9)."""

from __future__ import annotations

from enum import Enum

from kio.schema.errors import ErrorCode

from .partition_state import NO_EPOCH
from .replica_fetch import EpochEndOffset, ReplicaFetch, ReplicaFetchData
from .replica_log import ReplicaLog


class FetchResult(Enum):
    """What `on_answer` did."""

    APPENDED = "appended"
    """Records were stored, or there were none yet: fetch again."""
    COMPARED = "compared"
    """The leader's log may differ: fetch again, with the exact ends of the epochs."""
    TRUNCATED = "truncated"
    """The log was truncated towards the leader's: fetch again."""
    RESTARTED = "restarted"
    """The log ended below the leader's start and now begins there: fetch again."""
    STALE = "stale"
    """The answer belongs to an earlier request or to another leader epoch; it is ignored."""
    REFUSED = "refused"
    """The leader cannot serve this replica: back off; a new image of the metadata may be needed."""


class PartitionFollower:
    """One partition's follower in one term of following, in one leader epoch. All calls on one thread.

    With `compares_epochs` all epochs of its log are compared with the leader's before anything is appended
    (docs/mirror.md, M13)."""

    def __init__(
        self, broker_id: int, log: ReplicaLog, leader: int, leader_epoch: int, *, compares_epochs: bool = False
    ) -> None:
        self.broker_id = broker_id
        self.leader = leader
        self.leader_epoch = leader_epoch
        self._log = log
        self._sent: ReplicaFetch | None = None
        self._term = log.follow(leader_epoch)
        self._ranges = log.epoch_ranges(exact=False) if compares_epochs else ()
        """What is still to be compared."""

    def fetch(self, broker_epoch: int) -> ReplicaFetch | None:
        """Returns the next request; None while the log holds unflushed records that it does not report yet
        (`flush.messages`).
        """
        log = self._log
        if log.reported_end_offset < log.log_end_offset:
            return None
        self._sent = ReplicaFetch(
            self.broker_id,
            broker_epoch,
            self.leader_epoch,
            log.log_end_offset,
            log.leader_epoch,
            epoch_ranges=self._ranges,
        )
        return self._sent

    def on_answer(self, fetch: ReplicaFetch, answer: ReplicaFetchData) -> FetchResult:
        """Applies the answer to the request `fetch`."""
        if not self._is_current(fetch):
            return FetchResult.STALE
        if answer.error is ErrorCode.offset_out_of_range:
            return self._out_of_range(answer.log_start_offset)
        if answer.error is not ErrorCode.none:
            return FetchResult.REFUSED
        if answer.diverging_epoch is not None:
            return self._diverged(answer.diverging_epoch)
        self._ranges = ()
        if answer.records:
            self._log.append_as_follower(answer.records, self.leader_epoch, self._term)
        self._take_bounds(answer)
        return FetchResult.APPENDED

    def _take_bounds(self, answer: ReplicaFetchData) -> None:
        """Takes the leader's bounds, the log start first: below the leader's start it cannot be known whether the logs
        agree.
        """
        self._log.advance_log_start(answer.log_start_offset)
        self._log.advance_high_watermark(answer.high_watermark)

    def _is_current(self, fetch: ReplicaFetch) -> bool:
        """Returns True if the request is the last one, and the log has not changed since."""
        return fetch is self._sent and (fetch.leader_epoch, fetch.fetch_offset, fetch.last_fetched_epoch) == (
            self.leader_epoch,
            self._log.log_end_offset,
            self._log.leader_epoch,
        )

    def _diverged(self, diverging: EpochEndOffset) -> FetchResult:
        """Truncates the log. The high watermark of a diverging answer is not taken: the rest may still differ from the
        leader's log.
        """
        if diverging.end_offset < 0:
            return FetchResult.REFUSED
        if self._ranges and self._ranges != (exact := self._log.epoch_ranges(exact=True)):
            self._ranges = exact
            return FetchResult.COMPARED
        offset = truncation_offset(self._log, diverging)
        if offset < self._log.log_start_offset:
            self._log.restart_at(offset, self.leader_epoch, self._term)
        else:
            self._log.truncate_to(offset, self.leader_epoch, self._term)
        if self._ranges:
            self._ranges = self._log.epoch_ranges(exact=True)
        return FetchResult.TRUNCATED

    def _out_of_range(self, leader_log_start: int) -> FetchResult:
        """Restarts a log that ends below the leader's start, or that holds no record, at the leader's start.

        Any other log is left unchanged: records are truncated by epoch only.
        """
        log = self._log
        if leader_log_start < 0:  # the leader does not say where its log starts
            return FetchResult.REFUSED
        if log.log_end_offset < leader_log_start or (
            log.leader_epoch == NO_EPOCH and log.log_start_offset == log.log_end_offset
        ):
            log.restart_at(leader_log_start, self.leader_epoch, self._term)
            return FetchResult.RESTARTED
        return FetchResult.REFUSED


def truncation_offset(log: ReplicaLog, diverging: EpochEndOffset) -> int:
    """Returns the offset up to which the log and its leader's agree, or may agree: for the largest epoch up to the
    leader's that this log has, the smaller of the epoch's two ends (KIP-279).

    The leader of a mirror, whose log was cut to nothing, has no epoch: then nothing of this log agrees.
    """
    if log.leader_epoch <= diverging.leader_epoch:
        end = log.log_end_offset
    elif diverging.leader_epoch == NO_EPOCH:
        end = log.log_start_offset
    else:
        _, end = log.end_offset_for_epoch(diverging.leader_epoch)
    return min(end, diverging.end_offset, log.log_end_offset)
