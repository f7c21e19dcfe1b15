"""One replica of a partition on this broker: its log, its role, and the requests that wait for it.

Everything here belongs to the event loop. The rules are those of `core.replication`; this module holds the futures
of Produce requests that wait for the high watermark, and the parked fetches, which are woken by the append, commit
or flush that makes enough bytes visible. Nothing polls.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Container
from math import inf
from time import monotonic
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from ...errors import ErrorCode
from ...log.partition_log import AppendResult, PartitionLog
from ...protocol.replica_fetch import PartitionKey
from ...records.partition import TopicPartition
from ...replication.leader import PartitionLeader, ReplicationSettings
from ...replication.partition import Partition
from ...replication.partition_state import PartitionState
from ...replication.registrations import BrokerRegistration
from ..metrics.counters import TopicTraffic
from ..refused_batches import EARLIER_S
from .parked_fetch import FollowerWait, ParkedFetch

DeleteOutcome: TypeAlias = tuple[ErrorCode, int]
_MOST_COUNTED: Final = 4096
"""The number of uncommitted batches whose sizes are kept, for fetches that wait for bytes; older ones count as 0
bytes."""


class DelayedProduce(Protocol):
    """Records that wait until all in-sync replicas have them. `deadline`: the end of the wait, by the event loop's
    clock."""

    deadline: float

    def completed(self, error: ErrorCode, /) -> None:
        """Called once, with the error of the Produce request: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS_AFTER_APPEND
        or REQUEST_TIMED_OUT. Must not raise."""
        ...


class _CalledBack:
    """A `DelayedProduce` that calls a function."""

    __slots__ = ("completed", "deadline")

    def __init__(self, deadline: float, completed: Callable[[ErrorCode], None]) -> None:
        self.deadline = deadline
        self.completed = completed


class DelayedDelete:
    """A DeleteRecords request that waits until all live replicas start at `offset` or later (Kafka's
    `DelayedDeleteRecords`). `live` returns the live brokers; `done` gets the error and the low watermark, -1 if it
    is not known."""

    __slots__ = ("done", "live", "offset")

    def __init__(self, offset: int, live: Callable[[], Container[int]], done: asyncio.Future[DeleteOutcome]) -> None:
        self.offset = offset
        self.live = live
        self.done = done

    def try_complete(self, leader: PartitionLeader | None) -> bool:
        """Completes the request if its wait is over; returns whether it is."""
        if self.done.done():
            return True
        if leader is None:
            self.done.set_result((ErrorCode.not_leader_or_follower, -1))
            return True
        low_watermark = leader.low_watermark(self.live())
        if low_watermark >= self.offset:
            self.done.set_result((ErrorCode.none, low_watermark))
        return self.done.done()


def monotonic_ms() -> float:
    return monotonic() * 1000


class Replica:
    """`name` and `key` identify the partition by topic name and by topic id. `traffic`: the topic's counters."""

    def __init__(
        self,
        broker_id: int,
        name: TopicPartition,
        log: PartitionLog,
        traffic: TopicTraffic,
        replicas: tuple[int, ...],
        settings: ReplicationSettings,
    ) -> None:
        self.name = name
        self.key: PartitionKey = (log.topic_id.bytes, name.partition)
        self.log = log
        self.traffic = traffic
        self.partition: Partition[DelayedProduce] = Partition(broker_id, log, replicas, settings)
        self.leader_epoch = -1
        """The epoch in which this replica leads; -1 if it does not. Read for every append."""
        self.is_new_leader = False
        """True if this replica started to lead a short while ago and other brokers have the partition, as of the
        last call of `still_new_leader`. Read for every append."""
        self.commits_alone = False
        """True if an append on the event loop commits at once. Read for every append."""
        self.validated = False
        """True if the topic has validators, which read each batch before it is appended. Read for every append."""
        self._loop = asyncio.get_running_loop()
        self._parked: set[ParkedFetch] = set()
        self._followers: dict[int, FollowerWait] = {}
        self._uncommitted: deque[tuple[int, int]] = deque(maxlen=_MOST_COUNTED)
        self._deletes: list[DelayedDelete] = []
        self._expires = inf
        self._expiry: asyncio.TimerHandle | None = None
        self._shown = log.high_watermark
        self._told_start = -1
        self._new_until = 0.0
        self._loop_thread = threading.get_ident()
        log.on_visible = self._on_visible
        log.on_stable = self._on_stable

    def __repr__(self) -> str:
        return f"Replica({self.name}, leader_epoch={self.leader_epoch}, log={self.log!r})"

    # -- the role ------------------------------------------------------------------------------------------------

    @property
    def topic_id(self) -> UUID:
        return self.log.topic_id

    @property
    def is_offline(self) -> bool:
        """True after an I/O error of its log."""
        return self.log.offline is not None

    @property
    def leader(self) -> PartitionLeader | None:
        """The state of the leader, if this replica leads."""
        return self.partition.leader

    @property
    def replicas(self) -> tuple[int, ...]:
        """The brokers that have the partition, in order of preference."""
        return self.partition.replicas

    @property
    def in_sync(self) -> int:
        """The number of in-sync replicas, this one included, in the stored ISR."""
        return len(self.partition.state.isr) if self.partition.state is not None else 1

    def is_in_sync(self, broker_id: int) -> bool:
        """Returns True if this replica is in the stored ISR."""
        return self.partition.state is not None and broker_id in self.partition.state.isr

    def on_metadata(
        self,
        state: PartitionState,
        version: int,
        own: BrokerRegistration | None,
        replicas: tuple[int, ...],
        settings: ReplicationSettings,
    ) -> None:
        """Takes the role that the metadata give. Waiting Produce requests fail if it no longer leads."""
        self.partition.reconfigure(replicas, settings)
        self._fail(self.partition.on_metadata(state, version, own, monotonic_ms()))
        self.review_followers()

    def review_followers(self) -> None:
        """Evaluates the ends of followers again at their next fetches, if not all replicas are in sync, or if the
        log start has moved since the last call.

        A follower may have fetched before this broker knew it as a replica, or knew its registration. Such a Fetch does
        not count, and without appends the follower sends no other one for this partition. It would not learn of deleted
        records either, and would serve them again as a leader.
        """
        leader, start = self.partition.leader, self.log.log_start_offset
        if leader is not None and (leader.is_under_replicated or start != self._told_start):
            self._told_start = start
            for wait in self._followers.values():
                wait.on_bounds(self.key)

    def rest(self) -> None:
        """Leaves its role until the next metadata, for instance while its log is prepared for a new leader epoch."""
        self._fail(self.partition.rest())

    def forget_metadata(self) -> None:
        """Takes no role until the next metadata, and accepts those in any version: they come from a restored
        coordination."""
        self._fail(self.partition.forget_metadata())

    def _fail(self, waiters: list[DelayedProduce]) -> None:
        for waiter in waiters:
            waiter.completed(ErrorCode.not_leader_or_follower)
        led = self.leader_epoch
        self.refresh()
        if self.leader_epoch != led:
            for waiting in self._deletes:
                waiting.try_complete(None)
            self._uncommitted.clear()
            self.wake_all()
            for wait in self._followers.values():
                wait.on_append(self.key)  # its parked Fetch answers what has become of the partition

    def refresh(self) -> None:
        """Applies the leader's state after it may have changed: commits what has been replicated."""
        leader = self.partition.leader
        epoch = -1 if leader is None else leader.epoch
        if epoch != self.leader_epoch:
            self.leader_epoch = epoch
            self.is_new_leader = epoch > 0 and len(self.replicas) > 1  # no broker led before the first epoch, 0
            self._new_until = self._loop.time() + EARLIER_S
        # Beside followers, a log that shows flushed records only commits by its flush: its flushed end counts
        # (docs/replication.md, R2).
        held_back = self.log.flushes and len(self.replicas) > 1
        self.commits_alone = leader is not None and leader.commits_alone and not held_back
        if leader is not None:
            leader.advance_high_watermark()
        self.complete()

    def still_new_leader(self) -> bool:
        """Returns True if an earlier leader may still receive batches that were made before this one led."""
        self.is_new_leader = self.is_new_leader and self._loop.time() < self._new_until
        return self.is_new_leader

    # -- appends and commits -------------------------------------------------------------------------------------

    def appended(self, size: int, result: AppendResult) -> None:
        """Counts a batch of `size` bytes that a client produced, and notifies the fetches that can read it."""
        traffic = self.traffic
        traffic.produces += 1
        traffic.bytes_in += size
        traffic.messages_in += result[1] - result[0] + 1
        if result[4]:  # the append has committed it
            self._shown = result[1] + 1
            if self._parked:
                for fetch in tuple(self._parked):
                    fetch.on_visible(size)
        else:
            self._uncommitted.append((result[1] + 1, size))
            leader = self.partition.leader
            if leader is not None and leader.commits_alone:  # appended, and flushed, on a worker thread
                self.refresh()
        if self._followers:
            for wait in self._followers.values():
                wait.on_append(self.key)

    def replicated(self, size: int) -> None:
        """Counts `size` bytes that this replica has copied from the leader."""
        self.traffic.replication_bytes_in += size

    def mirrored(self, size: int) -> None:
        """Counts `size` bytes that this replica, a mirror's leader, has copied from the source, and notifies followers
        and the fetches that can read them."""
        self.replicated(size)
        if size:
            self._uncommitted.append((self.log.log_end_offset, size))
        self.extended()

    def extended(self) -> None:
        """Called after this leader has appended records that no client produced: commits what is replicated, and
        notifies followers."""
        self.refresh()
        for wait in self._followers.values():
            wait.on_append(self.key)

    def when_committed(
        self, leader_epoch: int, end_offset: int, timeout_s: float, completed: Callable[[ErrorCode], None]
    ) -> None:
        """Calls `completed` with the error of the Produce request, once the records below `end_offset`, appended in
        `leader_epoch`, are committed or cannot be."""
        self.commit(leader_epoch, end_offset, _CalledBack(self.deadline_in(timeout_s), completed))

    def deadline_in(self, timeout_s: float) -> float:
        """Returns the deadline of a request that may wait for `timeout_s`."""
        return self._loop.time() + timeout_s

    def commit(self, leader_epoch: int, end_offset: int, waiter: DelayedProduce) -> None:
        """Completes `waiter` once the records below `end_offset`, appended in `leader_epoch`, are committed; at once if
        they are."""
        partition = self.partition
        if not partition.appended(leader_epoch, end_offset, waiter):
            waiter.completed(ErrorCode.not_leader_or_follower)
            return
        if waiter.deadline < self._expires:
            self._expire_at(waiter.deadline)
        leader = partition.leader
        if end_offset <= self.log.high_watermark or leader is None or not leader.waits_for_others:
            self.complete()

    async def committed(self, leader_epoch: int, end_offset: int, timeout_s: float) -> ErrorCode:
        """Waits until the records are committed; see `when_committed`."""
        done: asyncio.Future[ErrorCode] = self._loop.create_future()
        self.when_committed(
            leader_epoch, end_offset, timeout_s, lambda error: None if done.done() else done.set_result(error)
        )
        return await done

    async def deleted(
        self, leader_epoch: int, offset: int, live: Callable[[], Container[int]], deadline: float
    ) -> DeleteOutcome:
        """Waits until all live replicas start at `offset` or later. The log must lead in `leader_epoch`.

        Returns the error (NOT_LEADER_OR_FOLLOWER if it no longer leads in that epoch, REQUEST_TIMED_OUT at
        `deadline`, by the event loop's clock) and the low watermark.
        """
        leader = self.partition.leader
        waiting = DelayedDelete(offset, live, self._loop.create_future())
        if waiting.try_complete(leader if self.leader_epoch == leader_epoch else None):
            return waiting.done.result()
        self._deletes.append(waiting)
        for wait in self._followers.values():
            wait.on_append(self.key)  # its parked Fetch is answered with the new log start
        try:
            async with asyncio.timeout_at(deadline):
                return await waiting.done
        except TimeoutError:
            leader = self.partition.leader
            return ErrorCode.request_timed_out, -1 if leader is None else leader.low_watermark(live())
        finally:
            if waiting in self._deletes:
                self._deletes.remove(waiting)

    def complete_deletes(self) -> None:
        """Completes the DeleteRecords requests whose wait is over, after a follower has fetched."""
        if self._deletes:
            leader = self.partition.leader
            self._deletes = [waiting for waiting in self._deletes if not waiting.try_complete(leader)]

    def _expire_at(self, deadline: float) -> None:
        """Sets the one timer for all waiting requests, since few of them ever expire."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires, self._expiry = deadline, self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expires, self._expiry = inf, None
        delayed, now = self.partition.delayed, self._loop.time()
        for waiter in delayed.take_if(lambda waiter: waiter.deadline <= now):
            waiter.completed(ErrorCode.request_timed_out)
        if delayed:
            self._expire_at(min(waiter.deadline for waiter in delayed))

    def complete(self) -> None:
        """Answers the requests that wait for the high watermark, if it has moved."""
        if self._deletes:
            self.complete_deletes()
        high_watermark = self.log.high_watermark
        done, error = self.partition.take_committed()
        for waiter in done:
            waiter.completed(error)
        if high_watermark == self._shown:
            return
        self._shown = high_watermark
        size = 0
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            size += self._uncommitted.popleft()[1]
        for fetch in tuple(self._parked):
            fetch.on_visible(size) if size else fetch.wake()
        for wait in self._followers.values():
            wait.on_bounds(self.key)

    def _on_visible(self, _: TopicPartition) -> None:
        """Called when the log shows more records. A flush calls it on another thread, and does not say how many."""
        if threading.get_ident() != self._loop_thread:
            self._loop.call_soon_threadsafe(self._flushed)

    def _on_stable(self, _: TopicPartition) -> None:
        """Called when a transaction has ended, which may show more records than the marker has bytes."""
        if threading.get_ident() == self._loop_thread:
            self.wake_all()
        else:
            self._loop.call_soon_threadsafe(self.wake_all)

    def _flushed(self) -> None:
        self.refresh()
        self.wake_all()

    # -- parked fetches ------------------------------------------------------------------------------------------

    @property
    def parked(self) -> int:
        """The number of consumers' fetches that wait for more of its records."""
        return len(self._parked)

    def park(self, fetch: ParkedFetch) -> None:
        self._parked.add(fetch)

    def unpark(self, fetch: ParkedFetch) -> None:
        self._parked.discard(fetch)

    def wake_all(self) -> None:
        """Wakes all consumers' fetches because its state has changed."""
        for fetch in tuple(self._parked):
            fetch.wake()

    def add_follower(self, session_id: int, wait: FollowerWait) -> None:
        """Notifies a follower's fetch session of appends from now on."""
        self._followers[session_id] = wait

    def remove_follower(self, session_id: int) -> None:
        self._followers.pop(session_id, None)
