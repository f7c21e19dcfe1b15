"""Commits a consumer's offsets, and handles the events of its group member.

Around every commit: the audit's events for the committed records are stored, then the offsets, then interceptors are
called. One commit runs at a time, from the choice of its offsets until they are stored: a commit never stores an older
offset than the one before, unless the application asks for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...errors import BrokerError, ConfigError, ErrorCode, KlammError
from ...groups.membership.member import GroupMember, LostOwnershipError, Owned
from ...interfaces.interceptor import ConsumerInterceptor
from ...interfaces.offsets import CommittedOffset
from ...records.partition import TopicPartition
from .audit import ConsumerAudit
from .positions import Positions

_log = logging.getLogger(__name__)

SHORTEST_S = 0.05
"""The shortest time between two automatic commits, however short `auto.commit.interval.ms` is."""


class RebalanceListener(Protocol):
    """An application's own listener; called on the group member's thread, which waits for it."""

    def on_assigned(self, partitions: Collection[TopicPartition]) -> None: ...

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Called before the partitions are released; a commit still succeeds."""
        ...

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Called when the partitions already belong to others; a commit is refused."""
        ...


@dataclass(frozen=True)
class CommitPolicy:
    """`automatic`: `enable.auto.commit`. `patience_s`: how long a revocation waits for the application's next call.
    `wall_ms` returns commit times.
    """

    automatic: bool
    interval_s: float
    patience_s: float
    wall_ms: Callable[[], int]


class Commits:
    """Thread-safe; one commit at a time. It is the listener of the group member that `follow` sets."""

    def __init__(
        self,
        positions: Positions,
        audit: ConsumerAudit,
        interceptors: Sequence[ConsumerInterceptor],
        policy: CommitPolicy,
        listener: RebalanceListener | None = None,
    ) -> None:
        self.interceptor_errors = 0
        self.rebalances = 0
        self._positions = positions
        self._audit = audit
        self._interceptors = interceptors
        self._policy = policy
        self._listener = listener
        self._member: GroupMember | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._timer = threading.Thread(target=self._run, name="klamm-autocommit", daemon=True)

    def follow(self, member: GroupMember) -> None:
        self._member = member
        if self._policy.automatic:
            self._timer.start()

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores the offsets, or raises; `LostOwnershipError` if a partition now belongs to another member, or its
        topic was deleted.
        """
        self._commit(lambda: self._positions.named(offsets))

    def commit_all(self) -> None:
        """Commits the offsets after all records returned to the application; marks these as processed."""

        def choose() -> dict[TopicPartition, CommittedOffset]:
            self._positions.confirm_all()
            return self._positions.to_commit()

        self._commit(choose)

    def commit_confirmed(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Commits automatically the records that the application has processed. A failure is logged, and retried
        later.
        """
        try:
            self._commit(lambda: self._positions.to_commit(partitions))
        except LostOwnershipError as error:
            _log.warning("%s", error)
        except KlammError as error:
            _log.warning("offsets were not committed, and will be later: %s", error)

    def _commit(self, choose: Callable[[], Mapping[TopicPartition, CommittedOffset]]) -> None:
        member = self._member
        if member is None:
            raise ConfigError("consumer.group.id is not set, so nothing can be committed")
        with self._lock:
            chosen = choose()
            offsets = {p: committed.offset for p, committed in chosen.items()}
            if not offsets:
                return
            now = self._policy.wall_ms()
            self._audit.publish(offsets)
            self._store(member, {p: replace(c, commit_timestamp_ms=now) for p, c in chosen.items()})
            self._positions.committed(offsets)
            self._audit.committed(offsets)
        for interceptor in self._interceptors:
            try:
                interceptor.on_commit(offsets)
            except Exception as error:  # a plugin may raise anything
                self.interceptor_errors += 1
                _log.warning("an interceptor failed and was skipped: %r", error)

    @staticmethod
    def _store(member: GroupMember, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        try:
            member.commit(offsets)
        except LostOwnershipError:
            raise
        except BrokerError as error:
            if error.code not in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id):
                raise
            raise LostOwnershipError(f"group {member.group!r}: {error}", error.code) from error

    def _run(self) -> None:
        while not self._stop.wait(max(self._policy.interval_s, SHORTEST_S)):
            self.commit_confirmed()

    def close(self) -> None:
        self._stop.set()
        if self._timer.ident is not None and threading.current_thread() is not self._timer:
            self._timer.join(10)

    # The member's listener

    def on_assigned(self, owned: Collection[Owned]) -> None:
        self.rebalances += 1
        self._positions.add(owned)
        self._tell("on_assigned", [o.partition for o in owned])

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        if not self._positions.revoke(partitions, self._policy.patience_s):
            _log.warning("the application did not poll within %.0f s; the records it holds will be read again",
                         self._policy.patience_s)  # fmt: skip
        self._tell("on_revoked", partitions)
        if self._policy.automatic:
            self.commit_confirmed(partitions)
        self._drop(partitions)

    def on_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._drop(partitions)
        self._tell("on_lost", partitions)

    def on_error(self, error: KlammError) -> None:
        self._positions.fail(error)

    def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        """Calls the application's listener. An error that it raises is raised by the next poll, and the rebalance
        continues."""
        if self._listener is None:
            return
        try:
            getattr(self._listener, what)(partitions)
        except Exception as error:  # an application's code may raise anything
            failure = error if isinstance(error, KlammError) else KlammError(f"the listener's {what} raised {error!r}")
            failure.__cause__ = failure.__cause__ or (None if failure is error else error)
            self._positions.fail(failure)

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self._positions.remove(partitions)
        with self._lock:  # a running commit of them ends before the member continues, and may own them again
            self._audit.stop(partitions)
