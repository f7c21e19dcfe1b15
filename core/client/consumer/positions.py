"""A consumer's positions in its partitions, and the records fetched but not yet returned.

For each partition, in this order of offsets:

    committed ≤ confirmed ≤ position ≤ fetch_from

`fetch_from` is the next offset to fetch; `position` the next to return; `confirmed` the position at the application's
last call for records, which marks the earlier ones as processed. Automatic commits store `confirmed`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from ...errors import KlammError
from ...groups.membership.member import Owned
from ...interfaces.offsets import CommittedOffset
from ...interfaces.sink import LogCut
from ...records.decode import Columns
from ...records.partition import TopicPartition
from ..network.backoff import Delays

MAX_CHUNKS = 2
"""Fetch responses buffered for one partition: one being delivered, one in reserve."""


@dataclass(slots=True)
class FetchedBatches:
    """Whole batches of one answer. `at`: the byte at which the next unread batch starts; `end`: the offset after the
    last batch; `epoch`: the leader epoch of the last. `error`, instead of data, is raised when the records before it
    have been returned: by each call until a seek, or `once`."""

    data: bytes
    end: int
    at: int = 0
    epoch: int = -1
    error: KlammError | None = None
    once: bool = False


@dataclass(slots=True)
class ReadyRecords:
    """The records of one batch or several. Those before `index` are returned or not wanted; `end` is the offset
    after them, `epoch` the leader epoch of the last batch. `log_append_time`: the broker has set their timestamps."""

    columns: Columns
    index: int
    end: int
    epoch: int = -1
    log_append_time: bool = False


@dataclass(slots=True)
class TopicPartitionState:
    """The state of one partition.

    `version` changes with each seek, reset and assignment: data fetched or decoded under another version is void.
    `reset`: why the position is to be found by `auto.offset.reset` even if an offset is stored. `reading`: the
    number of first chunks that a running take reads, which no longer count as buffered.

    A position is valid in one topic, `topic_id`, and in one history of it: `position_epoch` is the leader epoch of
    the record before it (KIP-320) or a later one, -1 when unknown. `furthest`: the last position, with its epoch,
    from which the position moved back. `check`: both are to be compared with the cluster before the next fetch.
    `leader_epoch`: the partition's at the last comparison; `watched_at`: when a fetch was last answered; `suspect`:
    the broker has refused the position since. `cut`: a cut of which the application has asked to be notified and has
    not been yet; until then, no record is returned and no offset committed. `divergence`: where the log was cut
    below the position, if `auto.offset.reset` is none.

    `node` leads the partition; `replica`, until `replica_until`, is the broker that the leader has named to fetch from
    (KIP-392). Until `leader_until` the leader is asked to name none, since one has refused or did not answer. `end`:
    where the records end that the consumer may read, as of the last answer: the high watermark, or the last stable
    offset for `read_committed`. `fetch_epoch` is the leader epoch of the record before `fetch_from`. `failures`: the
    attempts to reach the leader since the last answer; `asked_at`: when the fetch in flight was sent; `looked_at`: when
    the leader was last looked up because the broker did not answer.
    """

    partition: TopicPartition
    stream: int = 0
    epoch: int = -1
    position: int | None = None
    position_epoch: int = -1
    furthest: tuple[int, int] = (-1, -1)
    confirmed: int | None = None
    confirmed_epoch: int = -1
    committed: int | None = None
    fetch_from: int | None = None
    fetch_epoch: int = -1
    node: int | None = None
    replica: int | None = None
    replica_until: float = 0.0
    leader_until: float = 0.0
    asked_at: float | None = None
    looked_at: float = 0.0
    failures: int = 0
    chunks: deque[FetchedBatches] = field(default_factory=deque)
    reading: int = 0
    ready: ReadyRecords | None = None
    version: int = 0
    reset: str = ""
    topic_id: UUID | None = None
    check: bool = True
    leader_epoch: int = -1
    watched_at: float = 0.0
    suspect: bool = False
    cut: LogCut | None = None
    divergence: CommittedOffset | None = None
    paused: bool = False
    revoking: bool = False
    gone: bool = False
    retry_at: float = 0.0
    high_watermark: int = -1
    end: int = -1

    def move(self, offset: int | None, epoch: int = -1, *, reset: str = "") -> None:
        """Moves to another position (None: still to be found); drops fetched data."""
        if self.position is not None and self.position_epoch >= 0 and self.position >= self.furthest[0]:
            self.furthest = self.position, self.position_epoch
        self.position, self.position_epoch = offset, epoch
        self.confirm()
        self.reset = reset
        self.divergence = None
        self.suspect = False
        self.refetch()

    def confirm(self) -> None:
        """Marks the records before the position as processed."""
        self.confirmed, self.confirmed_epoch = self.position, self.position_epoch

    def epoch_before(self, offset: int) -> int:
        """Returns the leader epoch of the record before an offset up to which records were fetched, or a later one; -1
        when unknown.

        A later one is equally suitable: leader epochs never fall from record to record, and the cluster is asked where
        the largest epoch up to this one ends. In a log that has the record, that end is not before the offset; in one
        that was cut below it, the end is at the cut, since later records have a larger epoch than all lost ones.
        """
        read = (self.confirmed, self.confirmed_epoch), (self.position, self.position_epoch), self.furthest
        for known, epoch in read:
            if known is not None and offset <= known and epoch >= 0:
                return epoch
        if self.has_data and self.fetch_from is not None and offset <= self.fetch_from:
            return self.leader_epoch
        return -1

    def refetch(self) -> None:
        """Drops fetched data, so that it is fetched again."""
        self.version += 1
        self.fetch_from, self.fetch_epoch = self.position, self.position_epoch
        self.asked_at = None
        self.chunks.clear()
        self.reading = 0
        self.ready = None
        self.retry_at = 0.0

    @property
    def source(self) -> int | None:
        """The broker from which to fetch."""
        return self.node if self.replica is None else self.replica

    def lead_again(self) -> None:
        """Fetches from the leader again, instead of a preferred replica."""
        self.replica = None
        self.high_watermark = -1  # that of another broker may be lower

    def failed(self, now: float, delays: Delays) -> None:
        """Schedules a new look-up of the leader, after the delay for this number of consecutive failures."""
        self.failures += 1
        self.lead_again()
        self.node = self.asked_at = None
        self.check = True
        self.retry_at = now + delays.delay(self.failures)

    def refuse(self, offset: int, error: KlammError) -> None:
        """Passes the broker's error to the application, whose next call raises it once. If an earlier error was not
        raised yet, that one stays."""
        if not any(chunk.once for chunk in self.chunks):
            self.chunks.append(FetchedBatches(b"", offset, error=error, once=True))

    def raised(self, error: KlammError) -> None:
        """Drops the error from the buffer if it is to be raised once."""
        for at, chunk in enumerate(self.chunks):
            if chunk.once and chunk.error is error:
                del self.chunks[at]
                return

    @property
    def has_data(self) -> bool:
        return bool(self.chunks) or self.ready is not None

    @property
    def has_space(self) -> bool:
        return len(self.chunks) - self.reading < MAX_CHUNKS

    @property
    def deliverable(self) -> bool:
        return self.has_data and self.cut is None and not (self.paused or self.revoking or self.gone)

    @property
    def wants_records(self) -> bool:
        """Returns True if records are to be fetched, now or after the position was compared."""
        return self.fetch_from is not None and not (self.paused or self.revoking or self.gone)


class Positions:
    """All partitions of a consumer. Thread-safe: state is read and changed under `lock` (a condition); code that
    makes a change for which others may wait notifies it."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.states: dict[TopicPartition, TopicPartitionState] = {}
        self.closed = False
        self.tells_cuts = False
        self._failure: KlammError | None = None
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._former_ids: dict[TopicPartition, UUID] = {}
        self._furthest: dict[TopicPartition, tuple[int, int]] = {}
        self._busy: dict[object, set[TopicPartition]] = {}

    @contextmanager
    def changing(self) -> Iterator[dict[TopicPartition, TopicPartitionState]]:
        with self.lock:
            yield self.states
            self.lock.notify_all()

    def add(self, owned: Iterable[Owned]) -> None:
        with self.changing() as states:
            for one in owned:
                furthest = self._furthest.get(one.partition, (-1, -1))
                states[one.partition] = TopicPartitionState(one.partition, one.stream, one.epoch, furthest=furthest)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        with self.changing() as states:
            for partition in partitions:
                state = states.pop(partition, None)
                if state is not None:
                    state.gone = True
                    state.move(None)
                    self._furthest[partition] = state.furthest
                for held in self._busy.values():
                    held.discard(partition)

    def state(self, partition: TopicPartition) -> TopicPartitionState:
        """Returns the partition's state. Raises `KlammError` if it is not this consumer's."""
        state = self.states.get(partition)
        if state is None:
            mine = ", ".join(map(str, sorted(self.states))) or "none"
            raise KlammError(f"{partition} is not assigned to this consumer (assigned: {mine})")
        return state

    def epoch(self, partition: TopicPartition) -> int:
        """Returns the epoch of this consumer's ownership; -1 if the partition is not this consumer's."""
        state = self.states.get(partition)
        return -1 if state is None else state.epoch

    # What the application is processing

    def hold(self, holder: object, partitions: Iterable[TopicPartition]) -> None:
        """Makes a revocation of these partitions wait until the holder comes back or releases them. Call it under the
        lock.
        """
        self._busy.setdefault(holder, set()).update(partitions)

    def release(self, holder: object) -> None:
        """Releases all partitions that the holder holds. Call it under the lock."""
        self._busy.pop(holder, None)

    def come_back(self, holder: object) -> None:
        """Marks the records that the holder received as processed, since the application asks for more."""
        with self.lock:
            done = self._busy.pop(holder, None)
            if done:
                for partition in done:
                    state = self.states.get(partition)
                    if state is not None:
                        state.confirm()
                self.lock.notify_all()

    def revoke(self, partitions: Iterable[TopicPartition], timeout_s: float) -> bool:
        """Stops returning records of these partitions, and waits until the application has processed those it has;
        returns False if it did not ask for more in time."""
        wanted = set(partitions)
        with self.changing() as states:
            for partition in wanted & states.keys():
                states[partition].revoking = True
        with self.lock:
            return self.lock.wait_for(lambda: self.closed or not self._held(wanted), timeout_s)

    def _held(self, partitions: set[TopicPartition]) -> bool:
        return any(held & partitions for held in self._busy.values())

    def confirm_all(self) -> None:
        """Marks all records returned to the application as processed."""
        with self.lock:
            for state in self.states.values():
                state.confirm()

    def to_commit(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, CommittedOffset]:
        """Returns the confirmed positions that are not committed yet."""
        with self.lock:
            chosen = self.states.keys() if partitions is None else partitions
            return {
                p: CommittedOffset(state.confirmed, state.confirmed_epoch, topic_id=state.topic_id)
                for p in chosen
                if (state := self.states.get(p))
                and state.confirmed is not None
                and state.confirmed != state.committed
                and state.cut is None
            }

    # Logs that lost their ends

    def note_cut(self, state: TopicPartitionState, offset: int, lost_epoch: int) -> None:
        """Records a cut; call it under the lock."""
        if not self.tells_cuts:
            return
        if state.cut is not None:
            offset, lost_epoch = min(offset, state.cut.offset), max(lost_epoch, state.cut.lost_epoch)
        state.cut = LogCut(state.partition, offset, lost_epoch)

    def cuts(self) -> list[LogCut]:
        with self.lock:
            return [state.cut for state in self.states.values() if state.cut is not None]

    def cut_known(self, cut: LogCut) -> None:
        with self.changing() as states:
            state = states.get(cut.partition)
            if state is not None and state.cut == cut:
                state.cut = None

    def read_in(self, state: TopicPartitionState, topic_id: UUID | None) -> None:
        """Binds the position to this topic id, which is None if the brokers give no ids. Call it under the lock."""
        state.topic_id = topic_id
        if topic_id is None:
            return
        before = self._topic_ids.setdefault(state.partition, topic_id)
        if before != topic_id:
            self._former_ids[state.partition] = before
            self._topic_ids[state.partition] = topic_id

    def named(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, CommittedOffset]:
        """Returns offsets that an application chose, with the ids of their topics and with leader epochs, which are
        unknown only if nothing was read up to the offset."""
        with self.lock:
            return {p: self._named(p, offset) for p, offset in offsets.items()}

    def _named(self, partition: TopicPartition, offset: int) -> CommittedOffset:
        state = self.states.get(partition)
        topic_id = self._topic_ids.get(partition)
        former = self._former_ids.get(partition)
        if state is not None and former is not None and (state.position is None or offset > state.position):
            topic_id = former  # no record before the offset was returned since the topic was created again
        return CommittedOffset(offset, self._epoch_before(partition, offset), topic_id=topic_id)

    def _epoch_before(self, partition: TopicPartition, offset: int) -> int:
        """Returns the state's `epoch_before`, also for a partition that was revoked."""
        state = self.states.get(partition)
        if state is not None:
            return state.epoch_before(offset)
        furthest, epoch = self._furthest.get(partition, (-1, -1))
        return epoch if offset <= furthest else -1

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self.lock:
            for partition, offset in offsets.items():
                if partition in self.states:
                    self.states[partition].committed = offset

    # Errors, and the end

    def fail(self, error: KlammError) -> None:
        """Makes the application's next call raise the error."""
        with self.changing():
            self._failure = error

    def broke(self, what: str, error: Exception) -> None:
        """Makes the application's next call raise an unexpected error of a background thread, with its cause."""
        failure = KlammError(f"{what}: {error!r}")
        failure.__cause__ = error
        self.fail(failure)

    def check(self) -> None:
        """Raises the error of the background, once. Call it under the lock."""
        error, self._failure = self._failure, None
        if error is not None:
            raise error

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self.lock:
            return self.lock.wait_for(condition, timeout_s)

    def wait_until(self, condition: Callable[[], bool], rest_s: Callable[[], float]) -> None:
        """Waits until the condition holds, which is evaluated after each change and when `rest_s()` is over. Both
        are called under the lock."""
        with self.lock:
            while not condition():
                self.lock.wait(rest_s())

    def close(self) -> None:
        with self.changing():
            self.closed = True
