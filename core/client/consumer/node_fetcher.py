"""Fetches from one broker, on a thread of its own: one long-polling Fetch at a time for all partitions that are read
from this broker and whose buffers are not full.

An answer with records is put into the partition's buffer. After an answer that shows a change (another leader,
another history, a high watermark that fell) the position is compared with the cluster before the next fetch
(`fetcher`). An answer that names a preferred replica (KIP-392) moves the partition to that broker, until
`metadata.max.age.ms` is over or it fails. A replica that refuses the offset decides nothing: the leader is asked,
and for some time asked to name no replica.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ...config.sections.consumer import ConsumerConfig
from ...errors import BrokerError, CorruptRecordError, ErrorCode, KlammError
from ...records.chain import check_chain
from ...records.epoch_end import EpochEnd
from ...records.header import iter_headers
from ...records.isolation import IsolationLevel
from ...records.partition import TopicPartition
from ..cluster_client import ClusterClient, FetchedPartition, Lineage
from ..errors import FAIL_OVER_ERRORS, ClientClosedError, UnreadableBatchError
from .positions import FetchedBatches, Positions, TopicPartitionState

_log = logging.getLogger(__name__)

IDLE_S = 0.5
"""Seconds that a thread with nothing to do waits before it checks again."""
RETRY_S = 0.2
UNWATCHED_S = 1.0
"""Seconds without a fetch after which a partition is compared first: its topic may have been deleted and created again.
A partition that was compared during a shortened Fetch is in the next one, even if a slow broker took longer for it."""
REPLICA_REST_S = 5.0
"""Seconds without a preferred replica after one has named another broker, or has not answered: by then the leader
knows."""
HURRY_MS = 20
"""The longest wait of a broker, in ms, while some of its partitions have full buffers, or are compared: they are
fetched again soon."""
FAILURES_LOGGED = frozenset({1, 10, 100, 1000})
"""The numbers of consecutive failures of one partition at which they are logged."""
_TELL_EVERY = 50
"""Of so many consecutive failures one is logged."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A partition to fetch, as it was when the Fetch was made."""

    state: TopicPartitionState
    version: int
    offset: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class _Request:
    """A Fetch as it would be sent at the time `at`. `wait_s`: how long the broker may wait; `comparing`: it waits less
    because a partition of this broker is compared first.
    """

    wanted: Mapping[TopicPartition, _Wanted]
    at: float
    wait_s: float
    comparing: bool


class NodeFetcher(threading.Thread):
    """The thread of one broker; runs until the positions are closed."""

    def __init__(self, node: int, client: ClusterClient, positions: Positions, config: ConsumerConfig) -> None:
        super().__init__(name=f"klamm-fetch-{node}", daemon=True)
        self._node = node
        self._client = client
        self._positions = positions
        self._config = config
        self._failures = 0
        self.busy_since: float | None = None
        """When the Fetch in flight was sent; None if there is none."""
        self._compared_since = math.inf
        """Partitions that were compared after this time are fetched, even if that is more than `UNWATCHED_S` ago."""
        self._isolation = config.isolation

    def run(self) -> None:
        while not self._positions.closed:
            request = self._request()
            wanted = request.wanted
            self._compared_since = request.at if wanted and request.comparing else math.inf
            if not wanted:
                self._positions.wait_until(lambda: self._positions.closed or bool(self._request().wanted), self._rest_s)
                continue
            try:
                self._fetch(request)
                self._failures = 0
            except ClientClosedError:
                return
            except KlammError as error:
                if self._failures % _TELL_EVERY == 0:
                    _log.warning("fetch from broker %d: %s", self._node, error)
                self._leave(wanted)
            except Exception as error:  # the thread must survive any error; the application receives it
                self._positions.broke(f"fetch from broker {self._node}", error)
                self._leave(wanted)
            finally:
                self.busy_since = None

    def _request(self) -> _Request:
        """Returns a Fetch of the partitions whose buffers are not full. The one that was served longest ago comes
        first, since the first ones get most of an answer's bytes.

        The broker waits less if another partition may be fetched soon: one whose buffer is full, one that is
        compared, or one that waits for its next attempt. It would be left out until the broker has answered.
        """
        now = time.monotonic()
        wanted = {}
        comparing = False
        wait_s = self._config.fetch_max_wait_ms / 1000
        with self._positions.lock:
            for partition, state in self._positions.states.items():
                if state.source != self._node or not state.wants_records:
                    continue
                if state.retry_at > now:
                    wait_s = min(wait_s, max(state.retry_at - now, HURRY_MS / 1000))
                    continue
                if state.check:
                    comparing = True
                elif state.replica is not None and state.replica_until <= now:
                    state.lead_again()
                    self._positions.lock.notify_all()
                elif not state.has_space:
                    wait_s = min(wait_s, HURRY_MS / 1000)
                elif now - state.watched_at > UNWATCHED_S and state.watched_at < self._compared_since:
                    state.check = comparing = True
                    self._positions.lock.notify_all()
                elif state.fetch_from is not None:
                    lineage = Lineage(state.topic_id, state.leader_epoch, -1 if state.suspect else state.fetch_epoch)
                    wanted[partition] = _Wanted(state, state.version, state.fetch_from, lineage)
        order = sorted(wanted, key=lambda p: len(wanted[p].state.chunks))
        if comparing:
            wait_s = min(wait_s, HURRY_MS / 1000)
        return _Request({p: wanted[p] for p in order}, now, wait_s, comparing)

    def _rest_s(self) -> float:
        """Returns the seconds until a partition may be fetched again, at most `IDLE_S`."""
        now = time.monotonic()
        retries = [s.retry_at - now for s in self._positions.states.values() if s.source == self._node]
        return min([IDLE_S, *(left for left in retries if left > 0)])

    def _fetch(self, request: _Request) -> None:
        config = self._config
        wanted = request.wanted
        with self._positions.lock:
            self.busy_since = now = time.monotonic()
            for one in wanted.values():
                if one.state.version == one.version:
                    one.state.asked_at = now
            # The rack is one of the whole request: none may be moved while one of them must stay.
            stays = any(one.state.leader_until > now for one in wanted.values())
        answers = self._client.fetch(
            self._node,
            {p: one.offset for p, one in wanted.items()},
            lineages={p: one.lineage for p, one in wanted.items()},
            max_wait_ms=round(request.wait_s * 1000),
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            partition_max_bytes=config.max_partition_fetch_bytes,
            isolation=self._isolation,
            rack="" if stays else config.client_rack,
        )
        chunks = {p: chunk_of(p, wanted[p].offset, answer.records) for p, answer in answers.items() if p in wanted}
        with self._positions.changing():  # changed once for all of them, so that waiting threads are woken once
            for partition, one in wanted.items():
                state = one.state
                if state.gone or state.version != one.version or state.fetch_from != one.offset:
                    continue  # moved or revoked while the fetch was in flight
                state.asked_at = None
                if partition in answers:
                    self._take(state, one.offset, answers[partition], chunks[partition])
                else:
                    state.retry_at = time.monotonic() + RETRY_S

    def _take(
        self, state: TopicPartitionState, offset: int, answer: FetchedPartition, chunk: FetchedBatches | None
    ) -> None:
        """Applies one partition's answer; call it under the lock."""
        if answer.error is not ErrorCode.none:
            self._refused(state, offset, answer.error)
            return
        if answer.diverging is not None:
            self._diverged(state, offset, answer.diverging)
            return
        state.suspect = False
        state.failures = 0
        state.watched_at = time.monotonic()
        fell = answer.high_watermark < state.high_watermark
        state.high_watermark = answer.high_watermark
        committed = self._isolation is IsolationLevel.READ_COMMITTED
        state.end = answer.last_stable_offset if committed else answer.high_watermark
        if fell:
            state.check = True  # the records that came with it may be another topic's
            state.leader_epoch = -1
        elif chunk is not None:
            state.chunks.append(chunk)
            state.fetch_from = chunk.end
            state.fetch_epoch = max(state.fetch_epoch, chunk.epoch)
            if chunk.error is not None:
                state.retry_at = math.inf  # until a seek: no record after it can be reached
        if answer.preferred_read_replica not in (-1, self._node):
            state.replica = answer.preferred_read_replica
            state.replica_until = time.monotonic() + self._config.metadata_max_age_ms / 1000
            state.high_watermark = -1

    def _diverged(self, state: TopicPartitionState, offset: int, end: EpochEnd) -> None:
        """Schedules a comparison of the position, since the leader's log has another epoch before the offset. If the
        histories part at the offset, the position's epoch is one without records, and is corrected."""
        if end.end_offset < offset:
            state.check = True
            state.leader_epoch = -1
            state.failures += 1
            state.retry_at = time.monotonic() + self._client.network.fail_over.delay(state.failures)
        else:
            state.fetch_epoch = end.leader_epoch

    def _refused(self, state: TopicPartitionState, offset: int, error: ErrorCode) -> None:
        now = time.monotonic()
        if error is ErrorCode.offset_out_of_range and state.replica is not None:
            # A follower may lag, or keep records for a shorter time; the leader may not know that, and name it again.
            state.leader_until = now + self._config.metadata_max_age_ms / 1000
            state.lead_again()
            return
        if error is ErrorCode.offset_out_of_range:
            self._out_of_range(state, offset)
            return
        if state.replica is not None:
            state.leader_until = max(state.leader_until, now + REPLICA_REST_S)
        if error in FAIL_OVER_ERRORS:
            if state.node == self._node:
                self._client.cluster.forget_leaders([state.partition], self._node)
            state.failed(now, self._client.network.fail_over)
        else:
            self._retry(state, offset, BrokerError(error, f"fetch {state.partition} at {offset}"), now)

    def _retry(self, state: TopicPartitionState, offset: int, refusal: BrokerError, now: float) -> None:
        """Schedules another fetch of the partition after `retry.backoff.ms`, from its leader as the metadata then
        name it. Errors that Kafka's consumer raises are passed to the application; the others are logged."""
        state.failures += 1
        state.lead_again()
        state.check = True
        state.retry_at = now + self._client.network.retry.delay(state.failures)
        if not _retried_silently(refusal.code):
            state.refuse(offset, refusal)
        elif state.failures in FAILURES_LOGGED:
            _log.warning("%s", refusal)

    @staticmethod
    def _out_of_range(state: TopicPartitionState, offset: int) -> None:
        """Schedules a comparison of the position, which is determined again if it is out of range a second time. The
        second Fetch leaves out the epoch that was read last: the broker may not know that one."""
        if state.has_data:
            state.retry_at = time.monotonic() + RETRY_S
        elif state.suspect:
            _log.warning("%s: offset %d is out of range", state.partition, offset)
            state.move(None, reset="is out of range")
        else:
            state.suspect = state.check = True
            state.leader_epoch = -1

    def _leave(self, wanted: Mapping[TopicPartition, _Wanted]) -> None:
        """Schedules a new look-up of the leaders of these partitions."""
        self._failures += 1
        now = time.monotonic()
        self._client.cluster.forget_leaders(
            [p for p, one in wanted.items() if one.state.node == self._node], self._node
        )
        with self._positions.changing():
            for one in wanted.values():
                if not one.state.gone and one.state.source == self._node:
                    one.state.failed(now, self._client.network.fail_over)


def _retried_silently(code: ErrorCode) -> bool:
    """Returns True if the application need not know: the next Fetch, or another leader, may have no such error."""
    return code is ErrorCode.unknown_server_error or (code.retriable and code is not ErrorCode.corrupt_message)


def chunk_of(partition: TopicPartition, offset: int, data: bytes) -> FetchedBatches | None:
    """Returns the whole batches in an answer; None if there is none. Raises if the data cannot be divided into
    batches.
    """
    try:
        chain = check_chain(data)
        epoch = chain.epochs[-1][0] if chain.epochs else -1
        return FetchedBatches(data, max(chain.next_offset, offset), epoch=epoch) if chain.batches else None
    except CorruptRecordError:
        pass  # the walk by batch lengths finds how far the data is good
    end, size, epoch = offset, 0, -1
    try:
        for at, header in iter_headers(data):
            end, size, epoch = header.next_offset, at + header.size, header.leader_epoch
    except CorruptRecordError as error:
        if size == 0:
            problem = UnreadableBatchError(f"{partition} offset {offset}: {error}", partition, offset, None)
            return FetchedBatches(b"", offset, error=problem)
    return FetchedBatches(data, max(end, offset), epoch=epoch) if size else None
