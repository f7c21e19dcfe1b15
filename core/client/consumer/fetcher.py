"""The background of a consumer: finds positions and leaders, and keeps the buffers filled.

One thread manages the partitions: which broker leads each, and whether its position is still valid. Another one,
while there are partitions without a position, finds where they start (stored offset, else `auto.offset.reset`): the
coordinator may be unavailable, which does not delay the others. One thread for each broker fetches (`node_fetcher`).

A position is compared with the cluster before the first fetch, and again after any event that may have hidden a
change: an error, another leader, a high watermark that fell, another epoch before it, or `UNWATCHED_S` without a
fetch. In a topic that was deleted and created again (KIP-516), `auto.offset.reset` decides where to start. If the
log was cut below the position (KIP-320), a warning states the lost records, and reading continues at the end of the
common history; with `auto.offset.reset` none `LogTruncatedError` is raised.

A partition whose leader fails or moves does not delay the others: each waits for its next attempt by itself, with
the delays of a fail-over. The leader is looked up, too, if a Fetch is not answered for `OVERDUE_S` longer than the
broker may wait. That applies to the partitions in the Fetch and to those that wait for its end: if another broker
leads them by then, that one is asked.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...config.sections.consumer import ConsumerConfig
from ...errors import BrokerError, ErrorCode, KlammError
from ...interfaces.offsets import CommittedOffset
from ...records.epoch_end import EpochEnd
from ...records.partition import TopicPartition, counted, some_of
from ..cluster_client import EARLIEST, LATEST, ClusterClient
from ..errors import ClientClosedError, ConnectionFailedError, LogTruncatedError, NoOffsetError, UnknownTopicError
from ..network.metadata import TopicView
from .node_fetcher import FAILURES_LOGGED, IDLE_S, REPLICA_REST_S, NodeFetcher
from .positions import Positions, TopicPartitionState

_log = logging.getLogger(__name__)

RETRY_S = 0.2
OVERDUE_S = 1.0
"""Seconds beyond `fetch.max.wait.ms` after which an unanswered Fetch makes the consumer look the leader up again."""
COMPARE_S = 5.0
"""The time-out, in seconds, of asking a leader where an epoch or the log ends."""

REPLACED = "is of a topic that was deleted and created again"

Committed = Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, CommittedOffset]]
Positioned = Callable[[Mapping[TopicPartition, int], Collection[TopicPartition]], None]


@dataclass(frozen=True)
class FetchHooks:
    """`committed` returns the group's stored offsets. `positioned` is called with the start positions of partitions,
    before their first records are returned, and with the partitions in which these are no committed offsets."""

    committed: Committed
    positioned: Positioned


class _Start(NamedTuple):
    """Where a partition starts. `version`: of the state when that was found; `committed`: the group's offset, if it
    starts there; `lost_epoch`: the log was cut there."""

    state: TopicPartitionState
    version: int
    offset: CommittedOffset
    committed: int | None
    lost_epoch: int | None = None


class Fetcher:
    """Runs from `start` to `close`."""

    def __init__(self, client: ClusterClient, positions: Positions, config: ConsumerConfig, hooks: FetchHooks) -> None:
        self._client = client
        self._positions = positions
        self._config = config
        self._hooks = hooks
        self._delays = client.network.fail_over
        self._overdue_s = config.fetch_max_wait_ms / 1000 + OVERDUE_S
        self._nodes: dict[int, NodeFetcher] = {}
        self._thread = threading.Thread(target=self._run, name="klamm-fetcher", daemon=True)
        self._finder: threading.Thread | None = None
        """The thread that finds positions; None while there is none. Changed under the lock."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Waits for the threads to end. `Positions.close` and the client's `close` must be called first: they end every
        wait.
        """
        if self._thread.ident is not None:
            self._thread.join(10)
        finder = self._finder
        if finder is not None:
            finder.join(10)
        for node in self._nodes.values():
            node.join(10)

    def _run(self) -> None:
        while not self._positions.closed:
            self._start_finder()
            if not self._attempt(self._compare):
                return
            self._start_nodes()
            self._positions.wait_until(self._has_work, self._rest_s)

    def _start_finder(self) -> None:
        """Starts the thread that finds positions, if positions are missing and it is not running."""
        with self._positions.lock:
            if self._finder is not None or not self._unplaced():
                return
            self._finder = threading.Thread(target=self._find, name="klamm-positions", daemon=True)
            self._finder.start()

    def _find(self) -> None:
        if self._attempt(self._find_positions):
            with self._positions.changing():
                self._finder = None

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Calls `work`, and pauses after an error; returns False if the client is closed."""
        try:
            work()
        except ClientClosedError:
            return False
        except KlammError as error:
            # Brokers or the coordination are unavailable: buffered records are still returned.
            _log.warning("consumer: %s", error)
            self._pause(RETRY_S)
        except Exception as error:  # the thread must survive any error; the application receives it
            self._positions.broke("finding positions and leaders", error)
            self._pause(RETRY_S)
        return True

    def _has_work(self) -> bool:
        now = time.monotonic()
        return self._positions.closed or any(self._due_at(state) <= now for state in self._positions.states.values())

    def _rest_s(self) -> float:
        """Returns the seconds until work is due that no notification announces."""
        now = time.monotonic()
        due = (self._due_at(state) - now for state in self._positions.states.values())
        return max(min([IDLE_S, *due]), 0.0)

    def _due_at(self, state: TopicPartitionState) -> float:
        """Returns when the partition needs this thread if nothing changes; `inf` if it does not."""
        if state.position is None:
            due = math.inf if state.revoking or self._finder is not None else state.retry_at
        elif state.node is None or state.check:
            due = state.retry_at
        else:
            due = math.inf if state.source in self._nodes else -math.inf
        return min(due, self._overdue_at(state))

    def _overdue_at(self, state: TopicPartitionState) -> float:
        """Returns when to look the leader up again, if the broker has not answered by then; `inf` if no Fetch is in
        flight. A partition that is not in the broker's present Fetch waits for it too, since it is in the next one."""
        since = state.asked_at
        if since is None and state.wants_records and state.has_space and state.source in self._nodes:
            since = self._nodes[state.source].busy_since
        return math.inf if since is None else max(since, state.looked_at) + self._overdue_s

    def _start_nodes(self) -> None:
        """Starts the threads of brokers from which nothing was fetched before."""
        with self._positions.lock:
            sources = {state.source for state in self._positions.states.values()}
        for node in sources - self._nodes.keys():
            if node is not None and not self._positions.closed:
                self._nodes[node] = NodeFetcher(node, self._client, self._positions, self._config)
                self._nodes[node].start()

    def _pause(self, seconds: float) -> None:
        self._positions.wait_for(lambda: self._positions.closed, seconds)

    # Positions

    def _unplaced(self) -> dict[TopicPartition, TopicPartitionState]:
        """Returns the partitions whose positions are to be found now. Call it under the lock."""
        now = time.monotonic()
        return {
            p: state
            for p, state in self._positions.states.items()
            if state.position is None and not state.revoking and state.retry_at <= now
        }

    def _find_positions(self) -> None:
        with self._positions.lock:
            unplaced = self._unplaced()
        versions = {p: state.version for p, state in unplaced.items()}
        # Read before any request about the topics: if one is replaced meanwhile, its id is later seen to differ.
        self._client.metadata({p.topic for p in unplaced})
        for absent in self._absent(unplaced):
            del unplaced[absent]
        topics = self._client.cluster.view.topics
        ids = {topic.name: topic.topic_id for topic in topics.values()}
        stored = dict(self._hooks.committed([p for p, state in unplaced.items() if not state.reset]))
        why = {p: state.reset or "is not stored" for p, state in unplaced.items() if p not in stored}
        for p, committed in list(stored.items()):
            now_id = ids.get(p.topic)
            if None not in (committed.topic_id, now_id) and committed.topic_id != now_id:
                del stored[p]
                why[p] = REPLACED
        self._start_at(
            [
                _Start(
                    unplaced[partition],
                    versions[partition],
                    replace(start, topic_id=ids.get(partition.topic)),
                    start.offset if partition in stored else None,
                )
                for partition, start in {**stored, **self._reset(why, unplaced)}.items()
            ]
        )

    def _start_at(self, starts: Iterable[_Start]) -> None:
        """Starts the partitions there, unless they were moved or revoked meanwhile."""
        with self._positions.lock:
            valid = [one for one in starts if not one.state.gone and one.state.version == one.version]
        if not valid:
            return
        reset = {one.state.partition for one in valid if one.committed is None}
        self._hooks.positioned({one.state.partition: one.offset.offset for one in valid}, reset)
        with self._positions.changing():
            for state, version, start, committed, lost_epoch in valid:
                if state.gone or state.version != version:
                    continue
                state.move(start.offset, start.leader_epoch)
                if lost_epoch is not None:
                    self._positions.note_cut(state, start.offset, lost_epoch)
                self._positions.read_in(state, start.topic_id)
                state.committed = committed
                state.leader_epoch = -1
                state.check = True

    def _reset(
        self, why: Mapping[TopicPartition, str], states: Mapping[TopicPartition, TopicPartitionState]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Returns the start offsets by `auto.offset.reset`; `why` is the reason for each partition, as the end of a
        sentence.
        """
        if not why:
            return {}
        policy = self._config.auto_offset_reset
        if policy == "none":
            self._put_off(states[p] for p in why)
            self._positions.fail(_no_offset(why, {p: states[p].divergence for p in why}))
            return {}
        side = EARLIEST if policy == "earliest" else LATEST
        found, problems = self._client.try_list_offsets(
            dict.fromkeys(why, side), isolation=self._config.isolation, timeout_s=COMPARE_S
        )
        self._failed({p: states[p] for p in problems}, problems)
        # The records before the end were written under the leader's epoch or a former one.
        return {p: CommittedOffset(one.offset, one.leader_epoch if side == LATEST else -1) for p, one in found.items()}

    def _failed(
        self, states: Mapping[TopicPartition, TopicPartitionState], problems: Mapping[TopicPartition, KlammError]
    ) -> None:
        """Schedules another attempt for partitions that could not be compared or placed; passes errors that no retry
        mends to the application."""
        now = time.monotonic()
        with self._positions.changing():
            for partition, problem in problems.items():
                state = states[partition]
                if isinstance(problem, UnknownTopicError | ConnectionFailedError) or problem.code.retriable:
                    state.failed(now, self._delays)
                    if state.failures in FAILURES_LOGGED:
                        _log.warning("%s: %s", partition, problem)
                else:
                    state.retry_at = now + 1.0
                    self._positions.fail(problem)

    def _put_off(self, states: Iterable[TopicPartitionState]) -> None:
        with self._positions.lock:
            for state in states:
                state.retry_at = time.monotonic() + 1.0

    # Leaders and histories

    def _compare(self) -> None:
        """Looks up the leaders of partitions that have none or are to be checked, and compares their positions."""
        now = time.monotonic()
        with self._positions.lock:
            for state in self._positions.states.values():
                if self._overdue_at(state) <= now:
                    self._overdue(state, now)
            due = [
                _Check(state, state.version, state.position, state.position_epoch)
                for state in self._positions.states.values()
                if (state.check or state.node is None) and state.position is not None and state.retry_at <= now
            ]
        if not due:
            return
        self._client.metadata({one.partition.topic for one in due})
        view = self._client.cluster.view
        absent = self._absent(one.partition for one in due if not one.replaced(view.topics))
        due = [one for one in due if one.partition not in absent]
        ends, problems = self._epoch_ends({one.partition: one.epoch for one in due if one.elected(view.topics)})
        for one in due:
            end = ends.get(one.partition)
            if one.replaced(view.topics):
                self._replaced(one)
            elif one.partition in problems:
                self._failed({one.partition: one.state}, {one.partition: problems[one.partition]})
            elif end is not None and one.diverged(end, view.topics):
                self._truncated(one, end)
            else:
                self._unchanged(one, view.topics.get(one.partition.topic))

    def _overdue(self, state: TopicPartitionState, now: float) -> None:
        """Schedules a comparison of a partition whose broker does not answer; call it under the lock."""
        if state.source is not None:
            self._client.avoid(state.source)
        state.looked_at = now
        state.check = True
        if state.replica is not None:
            # The leader may not know that the replica is silent, and name it again.
            state.leader_until = max(state.leader_until, now + REPLICA_REST_S)
            state.lead_again()
            state.refetch()

    def _absent(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Returns the partitions that do not exist, for which the application gets an error."""
        topics = self._client.cluster.view.topics
        missing: dict[str, list[TopicPartition]] = {}
        for partition in partitions:
            topic = topics.get(partition.topic)
            if topic is None or partition.partition not in topic.partitions:
                missing.setdefault(partition.topic, []).append(partition)
        for name, absent in missing.items():
            try:
                topic = self._client.topic(name, all_led=False)
                lacking = [p for p in absent if p.partition not in topic.partitions]
                if lacking:
                    raise UnknownTopicError(
                        f"topic {name!r} has {counted(len(topic.partitions), 'partition')}; "
                        f"there is no partition {lacking[0].partition}"
                    )
            except BrokerError as error:
                self._put_off(self._positions.states[p] for p in absent if p in self._positions.states)
                self._positions.fail(error)
        return {p for absent in missing.values() for p in absent}

    def _epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> tuple[Mapping[TopicPartition, EpochEnd], Mapping[TopicPartition, KlammError]]:
        """Returns where epochs end, and the errors of partitions whose leaders could not be asked."""
        if not epochs:
            return {}, {}
        try:
            return self._client.try_leader_epoch_ends(epochs, timeout_s=COMPARE_S)
        except BrokerError as error:
            if error.code is not ErrorCode.unsupported_version:
                raise
            return {}, {}

    def _replaced(self, one: _Check) -> None:
        _log.warning("%s: topic %r was deleted and created again", one.partition, one.partition.topic)
        with self._positions.changing():
            if one.current:
                one.state.topic_id = one.state.committed = None
                one.state.high_watermark = -1
                one.state.move(None, reset=REPLACED)

    def _truncated(self, one: _Check, end: EpochEnd) -> None:
        """Moves to the offset where the log was cut. If the leader does not know it, `auto.offset.reset` decides."""
        known = end.end_offset >= 0
        cut = f"at offset {end.end_offset}" if known else f"below offset {one.position}"
        lost = f"the records {end.end_offset} to {one.position - 1} are lost" if known else "records are lost"
        words = f"{one.position} is not in the log any more, which was cut {cut}: {lost}"
        strict = self._config.auto_offset_reset == "none"
        if known and not strict:
            _log.warning(
                "%s: the offset %s; reading continues at %d (leader epoch %d)",
                one.partition, words, end.end_offset, end.leader_epoch,
            )  # fmt: skip
            start = CommittedOffset(end.end_offset, end.leader_epoch, topic_id=one.state.topic_id)
            self._start_at([_Start(one.state, one.version, start, one.state.committed, one.epoch)])
            return
        _log.warning("%s: the offset %s", one.partition, words)
        with self._positions.changing():
            if one.current:
                one.state.move(None, reset=words)
                one.state.divergence = CommittedOffset(end.end_offset, end.leader_epoch)

    def _unchanged(self, one: _Check, topic: TopicView | None) -> None:
        """Continues to fetch from the leader, unless there is none now."""
        state = one.state
        leader = self._client.cluster.leader(one.partition)
        with self._positions.changing():
            if not one.current:
                return
            if topic is None or leader is None:
                state.failed(time.monotonic(), self._delays)
                return
            leader_epoch = _leader_epoch(topic, one.partition)
            if leader_epoch != state.leader_epoch:
                state.refetch()  # the buffers may hold records that the new leader does not have
                state.lead_again()
            elif leader != state.node:
                state.lead_again()
            self._positions.read_in(state, state.topic_id or topic.topic_id)
            state.node = leader
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
        """Returns True if the partition was neither moved nor revoked since. Call it under the lock."""
        return not self.state.gone and self.state.version == self.version

    def diverged(self, end: EpochEnd, topics: Mapping[str, TopicView]) -> bool:
        """Returns True if the log was cut below the position: the position's epoch ends before it, or is later than
        any that the leader has had."""
        if end.end_offset < 0:
            return self.epoch > _leader_epoch(topics.get(self.partition.topic), self.partition) >= 0
        return end.cut(self.position) is not None

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


def _no_offset(
    why: Mapping[TopicPartition, str], divergences: Mapping[TopicPartition, CommittedOffset | None]
) -> KlammError:
    """Returns the error of partitions without an offset while `auto.offset.reset` is none."""
    cut = {p: found for p, found in divergences.items() if found is not None}
    words = "and consumer.auto.offset.reset is none: seek, or set it to earliest or latest"
    if cut:
        return LogTruncatedError(f"{_reasons({p: why[p] for p in cut})}, {words}", divergent=cut)
    return NoOffsetError(f"{_reasons(why)}, {words}")


def _reasons(why: Mapping[TopicPartition, str]) -> str:
    """Returns each reason once, with the first of its partitions."""
    grouped: dict[str, list[TopicPartition]] = {}
    for partition, reason in why.items():
        grouped.setdefault(reason, []).append(partition)
    return "; ".join(f"{some_of(found)}: the offset {reason}" for reason, found in grouped.items())
