"""The background of a consumer: finds positions and leaders, and keeps the buffers filled.

One thread manages the partitions: where each starts (stored offset, else `auto.offset.reset`), which broker leads it,
and whether its position is still valid. One thread for each broker sends it one long-polling Fetch for all of its
partitions that have room.

A position is compared with the cluster before the first fetch, and again after any event that may have hidden a change:
an error, another leader, a high watermark that fell, or `UNWATCHED_S` without a fetch. In a topic that was deleted and
created again (KIP-516), `auto.offset.reset` decides where to start. If the log was cut below the position (KIP-320),
reading continues at the end of what both histories have; with `auto.offset.reset` none an error is raised.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ...config.sections.consumer import ConsumerConfig
from ...errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...records.chain import check_chain
from ...records.header import iter_headers
from ...records.partition import TopicPartition, some_of
from ..cluster_client import EARLIEST, LATEST, ClusterClient, EpochEnd, FetchedPartition
from ..errors import STALE_LEADER_ERRORS, ClientClosedError, NoOffsetError, UnknownTopicError, UnreadableBatchError
from ..network.metadata import TopicView
from .positions import FetchedBatches, Positions, TopicPartitionState

_log = logging.getLogger(__name__)

IDLE_S = 0.5
"""Seconds that a thread with nothing to do waits before it looks again."""
RETRY_S = 0.2
UNWATCHED_S = 1.0
"""Seconds that a partition may go without a fetch: meanwhile its topic may be deleted and created again."""
HURRY_MS = 20
"""Milliseconds that a broker may wait while some of its partitions have no room: they may soon have it."""

REPLACED = "is of a topic that was deleted and created again"

Committed = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]
Positioned = Callable[[TopicPartition, int], None]


@dataclass(frozen=True)
class FetchHooks:
    """`committed`: the group's stored offsets. `positioned`: called with the start
    position of a partition, before its first record is returned."""

    committed: Committed
    positioned: Positioned


class Fetcher:
    """Runs from `start` to `close`."""

    def __init__(self, client: ClusterClient, positions: Positions, config: ConsumerConfig, hooks: FetchHooks) -> None:
        self._client = client
        self._positions = positions
        self._config = config
        self._hooks = hooks
        self._nodes: dict[int, NodeFetcher] = {}
        self._thread = threading.Thread(target=self._run, name="klamm-fetcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Waits for the threads to end. `Positions.close` and the client's `close` must be called first: they end every
        wait.
        """
        if self._thread.ident is not None:
            self._thread.join(10)
        for node in self._nodes.values():
            node.join(10)

    def _run(self) -> None:
        while not self._positions.closed:
            try:
                self._find_positions()
                self._find_leaders()
                self._check_histories()
            except ClientClosedError:
                return
            except KlammError as error:
                # Brokers or the coordination are unavailable: buffered records are still returned.
                _log.warning("consumer: %s", error)
                self._pause(RETRY_S)
            self._positions.wait_for(self._has_work, IDLE_S)

    def _has_work(self) -> bool:
        now = time.monotonic()
        return self._positions.closed or any(
            (state.position is None or state.node is None or state.check) and state.retry_at <= now
            for state in self._positions.states.values()
        )

    def _pause(self, seconds: float) -> None:
        self._positions.wait_for(lambda: self._positions.closed, seconds)

    # Positions

    def _find_positions(self) -> None:
        now = time.monotonic()
        with self._positions.lock:
            unplaced = {
                p: state
                for p, state in self._positions.states.items()
                if state.position is None and not state.revoking and state.retry_at <= now
            }
        if not unplaced:
            return
        versions = {p: state.version for p, state in unplaced.items()}
        # Read before any request about the topics: if one is replaced meanwhile, its id is later seen to differ.
        topics = self._client.metadata({p.topic for p in unplaced}).topics
        ids = {topic.name: topic.topic_id for topic in topics.values()}
        stored = dict(self._hooks.committed([p for p, state in unplaced.items() if not state.reset]))
        why = {p: state.reset or "is not stored" for p, state in unplaced.items() if p not in stored}
        for p, committed in list(stored.items()):
            now_id = ids.get(p.topic)
            if None not in (committed.topic_id, now_id) and committed.topic_id != now_id:
                del stored[p]
                why[p] = REPLACED
        for partition, start in {**stored, **self._reset(why, unplaced, topics)}.items():
            state = unplaced[partition]
            start = replace(start, topic_id=ids.get(partition.topic))
            self._start_at(state, versions[partition], start, start.offset if partition in stored else None)

    def _start_at(
        self,
        state: TopicPartitionState,
        version: int,
        start: CommittedOffset,
        committed: int | None,
        lost_epoch: int | None = None,
    ) -> None:
        """Starts the partition there, unless it was moved or taken away meanwhile. `lost_epoch`: the log was cut
        there.
        """
        with self._positions.lock:
            if state.gone or state.version != version:
                return
        self._hooks.positioned(state.partition, start.offset)
        with self._positions.changing():
            if not state.gone and state.version == version:
                state.move(start.offset, start.leader_epoch)
                if lost_epoch is not None:
                    self._positions.note_cut(state, start.offset, lost_epoch)
                self._positions.read_in(state, start.topic_id)
                state.committed = committed
                state.leader_epoch = -1
                state.check = True

    def _reset(
        self,
        why: Mapping[TopicPartition, str],
        states: Mapping[TopicPartition, TopicPartitionState],
        topics: Mapping[str, TopicView],
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns the start offsets by `auto.offset.reset`; `why` is the reason for each partition, as the end of a
        sentence.
        """
        if not why:
            return {}
        policy = self._config.auto_offset_reset
        if policy == "none":
            self._put_off(states[p] for p in why)
            self._positions.fail(
                NoOffsetError(
                    f"{_reasons(why)}, and consumer.auto.offset.reset is none: seek, or set it to earliest or latest"
                )
            )
            return {}
        side = EARLIEST if policy == "earliest" else LATEST
        try:
            found = self._client.list_offsets(dict.fromkeys(why, side))
        except BrokerError as error:
            self._put_off(states[p] for p in why)
            self._positions.fail(error)
            return {}
        # The records before the end were written under the leader's epoch or a former one.
        epochs = {p: _leader_epoch(topics.get(p.topic), p) if side == LATEST else -1 for p in found}
        return {p: CommittedOffset(offset, epochs[p]) for p, (offset, _) in found.items()}

    def _put_off(self, states: Iterable[TopicPartitionState]) -> None:
        with self._positions.lock:
            for state in states:
                state.retry_at = time.monotonic() + 1.0

    # Leaders

    def _find_leaders(self) -> None:
        now = time.monotonic()
        with self._positions.lock:
            lost = [p for p, s in self._positions.states.items() if s.node is None and s.retry_at <= now]
        for topic in sorted({p.topic for p in lost}):
            mine = [p for p in lost if p.topic == topic]
            try:
                placed = self._client.by_leader(mine)
            except UnknownTopicError as error:
                with self._positions.lock:
                    self._put_off([s for p in mine if (s := self._positions.states.get(p))])
                self._positions.fail(error)
                continue
            self._place(placed)

    def _place(self, placed: Mapping[int, Iterable[TopicPartition]]) -> None:
        with self._positions.changing() as states:
            for node, partitions in placed.items():
                for partition in partitions:
                    if partition in states:
                        states[partition].node = node
        for node in placed:
            if node not in self._nodes and not self._positions.closed:
                self._nodes[node] = NodeFetcher(node, self._client, self._positions, self._config)
                self._nodes[node].start()

    # Histories

    def _check_histories(self) -> None:
        now = time.monotonic()
        with self._positions.lock:
            due = [
                _Check(state, state.version, state.position, state.position_epoch)
                for state in self._positions.states.values()
                if state.check and state.node is not None and state.position is not None and state.retry_at <= now
            ]
        if not due:
            return
        topics = self._client.metadata({one.partition.topic for one in due}).topics
        ends = self._epoch_ends({one.partition: one.epoch for one in due if one.elected(topics)})
        for one in due:
            end = ends.get(one.partition)
            if one.replaced(topics):
                self._replaced(one)
            elif end is not None and 0 <= end.end_offset < one.position:
                self._truncated(one, end)
            else:
                self._unchanged(one, topics.get(one.partition.topic))

    def _epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        if not epochs:
            return {}
        try:
            return self._client.leader_epoch_ends(epochs)
        except BrokerError as error:
            if error.code is not ErrorCode.unsupported_version:
                raise
            return {}

    def _replaced(self, one: _Check) -> None:
        _log.warning("%s: topic %r was deleted and created again", one.partition, one.partition.topic)
        with self._positions.changing():
            if one.current:
                one.state.topic_id = one.state.committed = None
                one.state.high_watermark = -1
                one.state.move(None, reset=REPLACED)

    def _truncated(self, one: _Check, end: EpochEnd) -> None:
        words = f"{one.position} lies after {end.end_offset}, up to which alone the log is what was read"
        _log.warning("%s: the offset %s", one.partition, words)
        if self._config.auto_offset_reset == "none":
            with self._positions.changing():
                if one.current:
                    one.state.move(None, reset=words)
        else:
            start = CommittedOffset(end.end_offset, end.leader_epoch, topic_id=one.state.topic_id)
            self._start_at(one.state, one.version, start, one.state.committed, one.epoch)

    def _unchanged(self, one: _Check, topic: TopicView | None) -> None:
        state = one.state
        with self._positions.changing():
            if not one.current:
                return
            if topic is None or one.partition.partition not in topic.partitions:
                state.node = None  # retried until the topic exists; the application gets the error
                return
            leader_epoch = _leader_epoch(topic, one.partition)
            if leader_epoch != state.leader_epoch:
                state.refetch()  # the buffers may hold records that the new leader does not have
            self._positions.read_in(state, state.topic_id or topic.topic_id)
            state.leader_epoch = leader_epoch
            state.check = False
            state.watched_at = time.monotonic()


@dataclass(frozen=True)
class _Check:
    """A position that is compared with the cluster, as it was at that time."""

    state: TopicPartitionState
    version: int
    position: int
    epoch: int

    @property
    def partition(self) -> TopicPartition:
        return self.state.partition

    @property
    def current(self) -> bool:
        """Returns True if the partition was neither moved nor taken away since. Call it under the lock."""
        return not self.state.gone and self.state.version == self.version

    def elected(self, topics: Mapping[str, TopicView]) -> bool:
        """Returns True if the leader is another one than at the last comparison, and the epoch of the position is
        known.
        """
        epoch = _leader_epoch(topics.get(self.partition.topic), self.partition)
        return self.epoch >= 0 and epoch != self.state.leader_epoch and not self.replaced(topics)

    def replaced(self, topics: Mapping[str, TopicView]) -> bool:
        """Returns True if the topic has another id now."""
        topic = topics.get(self.partition.topic)
        ids = (self.state.topic_id, None if topic is None else topic.topic_id)
        return None not in ids and ids[0] != ids[1]


def _leader_epoch(topic: TopicView | None, partition: TopicPartition) -> int:
    found = None if topic is None else topic.partitions.get(partition.partition)
    return -1 if found is None else found.leader_epoch


class NodeFetcher(threading.Thread):
    """Fetches from one broker."""

    def __init__(self, node: int, client: ClusterClient, positions: Positions, config: ConsumerConfig) -> None:
        super().__init__(name=f"klamm-fetch-{node}", daemon=True)
        self._node = node
        self._client = client
        self._positions = positions
        self._config = config
        self._isolation = 1 if config.isolation_level == "read_committed" else 0

    def run(self) -> None:
        while not self._positions.closed:
            wanted, crowded = self._wanted()
            if not wanted:
                self._positions.wait_for(lambda: self._positions.closed or bool(self._wanted()[0]), IDLE_S)
                continue
            try:
                self._fetch(wanted, crowded)
            except ClientClosedError:
                return
            except KlammError as error:
                _log.warning("fetch from broker %d: %s", self._node, error)
                self._leave(wanted)
            except Exception as error:  # the thread must survive any error; the application receives it
                self._positions.fail(KlammError(f"fetch from broker {self._node}: {error!r}"))
                self._leave(wanted)

    def _wanted(self) -> tuple[dict[TopicPartition, tuple[TopicPartitionState, int, int]], bool]:
        """Returns partitions with room (state, version, offset), and whether others have none. The one that was served
        longest ago comes first, since the first ones get most of an answer's room.
        """
        now = time.monotonic()
        wanted = {}
        crowded = False
        with self._positions.lock:
            for partition, state in self._positions.states.items():
                if state.node != self._node or not state.fetchable or state.retry_at > now:
                    continue
                if not state.has_room:
                    crowded = True
                elif now - state.watched_at > UNWATCHED_S:
                    state.check = True
                    self._positions.lock.notify_all()
                elif state.fetch_from is not None:
                    wanted[partition] = (state, state.version, state.fetch_from)
        order = sorted(wanted, key=lambda p: len(wanted[p][0].chunks))
        return {p: wanted[p] for p in order}, crowded

    def _fetch(self, wanted: Mapping[TopicPartition, tuple[TopicPartitionState, int, int]], crowded: bool) -> None:
        config = self._config
        answers = self._client.fetch(
            self._node,
            {p: offset for p, (_, _, offset) in wanted.items()},
            max_wait_ms=min(config.fetch_max_wait_ms, HURRY_MS) if crowded else config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            partition_max_bytes=config.max_partition_fetch_bytes,
            isolation_level=self._isolation,
        )
        taken = [
            (*wanted[partition], answer, chunk_of(partition, wanted[partition][2], answer.records))
            for partition, answer in answers.items()
            if partition in wanted
        ]
        with self._positions.changing():  # changed once for all of them, so that waiting threads are woken once
            for one in taken:
                self._take(*one)

    def _take(
        self,
        state: TopicPartitionState,
        version: int,
        offset: int,
        answer: FetchedPartition,
        chunk: FetchedBatches | None,
    ) -> None:
        """Takes one partition's answer; call it under the lock."""
        if state.gone or state.version != version:
            return  # moved or taken away while the fetch was in flight
        if answer.error is not ErrorCode.none:
            self._refused(state, offset, answer.error)
            return
        state.suspect = False
        state.watched_at = time.monotonic()
        fell = answer.high_watermark < state.high_watermark
        state.high_watermark = answer.high_watermark
        if fell:
            state.check = True  # the records that came with it may be another topic's
            state.leader_epoch = -1
        elif chunk is not None:
            state.chunks.append(chunk)
            state.fetch_from = chunk.end
            if chunk.error is not None:
                state.retry_at = float("inf")  # until a seek: no record after it can be reached

    def _refused(self, state: TopicPartitionState, offset: int, error: ErrorCode) -> None:
        state.retry_at = time.monotonic() + RETRY_S
        if error is ErrorCode.offset_out_of_range:
            if state.has_data:
                return
            if state.suspect:
                _log.warning("%s: offset %d is out of range", state.partition, offset)
                state.move(None, reset="is out of range")
            else:
                state.suspect = state.check = True
                state.leader_epoch = -1
            state.retry_at = 0.0
        elif error in STALE_LEADER_ERRORS:
            state.node = None
            state.check = True
            self._client.cluster.forget([state.partition.topic])
        else:
            state.chunks.append(
                FetchedBatches(b"", offset, error=BrokerError(error, f"fetch {state.partition} at {offset}"))
            )
            state.retry_at = float("inf")

    def _leave(self, wanted: Iterable[TopicPartition]) -> None:
        """Forgets the leaders of these partitions, so that they are looked up again."""
        with self._positions.changing() as states:
            for partition in wanted:
                if partition in states:
                    states[partition].node = None
                    states[partition].check = True
                    states[partition].retry_at = time.monotonic() + RETRY_S
        self._client.cluster.forget({p.topic for p in wanted})


def chunk_of(partition: TopicPartition, offset: int, data: bytes) -> FetchedBatches | None:
    """Returns the whole batches in an answer; None if there is none. Raises if the data cannot be divided into
    batches.
    """
    try:
        chain = check_chain(data)
        return FetchedBatches(data, max(chain.next_offset, offset)) if chain.batches else None
    except CorruptRecordError:
        pass  # the walk by batch lengths finds how far the data is good
    end, size = offset, 0
    try:
        for at, header in iter_headers(data):
            end, size = header.next_offset, at + header.size
    except CorruptRecordError as error:
        if size == 0:
            problem = UnreadableBatchError(f"{partition} offset {offset}: {error}", partition, offset, None)
            return FetchedBatches(b"", offset, error=problem)
    return FetchedBatches(data, max(end, offset)) if size else None


def _reasons(why: Mapping[TopicPartition, str]) -> str:
    """Returns each reason once, after the first of its partitions."""
    grouped: dict[str, list[TopicPartition]] = {}
    for partition, reason in why.items():
        grouped.setdefault(reason, []).append(partition)
    return "; ".join(f"{some_of(found)}: the offset {reason}" for reason, found in grouped.items())
