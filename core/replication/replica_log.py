"""The log that replication needs of a partition: `PartitionLog` implements it, and the simulation's `MemoryLog`."""

from __future__ import annotations

from typing import Protocol

from ..records.epoch_end import EpochRange


class ReplicaLog(Protocol):
    """One replica's log and its role.

    The log checks the role under its own lock (docs/replication.md, R11): a client's append is stored only while the
    log leads in that append's epoch, a replica's only while the log follows in its epoch. Offsets may be read without
    the lock.
    """

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def reported_end_offset(self) -> int:
        """The end that this replica reports for its records: the log end offset, or the flushed end where
        `flush.messages` or `flush.ms` holds records back.
        """
        ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The latest epoch in the log's epoch cache; -1 when none is known."""
        ...

    @property
    def last_record_epoch(self) -> int:
        """The epoch of the last record; -1 if there is none. Unlike `leader_epoch`, it does not count an epoch without
        records."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Returns the largest known epoch up to `epoch` and its end offset (KIP-101).

        (-1, -1) for an epoch that is not known; (`epoch`, first known start) for one older than all known epochs.
        """
        ...

    def epoch_ranges(self, *, exact: bool) -> tuple[EpochRange, ...]:
        """Returns the epochs that have records, in order. Each ends where the next begins; with `exact` it ends with
        its last batch, which is earlier where the log has a gap: a read for each epoch."""
        ...

    def lead(self, leader_epoch: int) -> None:
        """Accepts clients' appends of this epoch, which begins at the log end offset; in memory only."""
        ...

    def follow(self, leader_epoch: int) -> int:
        """Accepts replicas' appends of this epoch. Returns the number of this term of following, which is unique:
        `append_as_follower`, `truncate_to` and `restart_at` of an earlier term are refused, even in the same epoch."""
        ...

    def mirror(self, leader_epoch: int) -> int:
        """Accepts what a mirror's leader stores in this epoch: batches of the source, with the source's leader epochs
        (docs/mirror.md, M3). Unlike `lead`, the epoch does not begin in the log. Returns the number of this term, as
        `follow` does."""
        ...

    def rest(self) -> None:
        """Accepts no append."""
        ...

    def append_as_follower(self, records: bytes, leader_epoch: int, term: int | None = None) -> object:
        """Appends whole batches as the leader stored them, with their offsets and epochs.

        The first begins at the log end offset, except on a compacted topic. Raises `FencedLeaderEpochError` when the
        log does not follow in `leader_epoch`, or not in `term`.
        """
        ...

    def truncate_to(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        """Drops every batch that holds `offset` or a later one, and every epoch that begins at `offset` or later, also
        when `offset` is the log end. Lowers the high watermark to the log end if it lies above. Raises
        `FencedLeaderEpochError` when the log does not follow in `leader_epoch`, or not in `term`.
        """
        ...

    def restart_at(self, offset: int, leader_epoch: int, term: int | None = None) -> None:
        """Drops all records: start, end and high watermark become `offset`, and no epoch is known (KAFKA-9491). Raises
        as `truncate_to` does.
        """
        ...

    def advance_high_watermark(self, offset: int) -> bool:
        """Raises the high watermark to `offset`, at most to the log end, and never lowers it; returns True if consumers
        see more.
        """
        ...

    def advance_log_start(self, offset: int) -> None:
        """Raises the log start offset to `offset`, at most to the log end, and the high watermark with it if that is
        lower: the leader has deleted the records below, so they were committed and are never shown here."""
        ...
