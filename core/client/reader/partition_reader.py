"""Reads one partition in offset order: finds its leader, fetches, checks the history of the log, decodes.

Rules:

- `fetch` retries within its time-out while the leader has moved or is unavailable. It does not move the position,
  which moves as the caller takes the batches.
- An offset is valid in one topic and in one history of its log. Whenever the client has fresh metadata of the topic,
  the reader compares the topic id (KIP-516) and, under another leader epoch, where the epoch of the last batch read
  ends (KIP-320). It compares them again when the broker reports that the position is out of range, or a high watermark
  below it.
- A Fetch carries the topic id (Fetch 13), the leader epoch of the last comparison (Fetch 9) and the epoch of the last
  batch (Fetch 12), so that a broker of another topic or history refuses it or returns where the histories part. Before
  Fetch 13 it names a topic by its name alone: a caller that must know that everything it read is of one topic calls
  `verify` afterwards.

Not thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar
from uuid import UUID

from ...errors import BrokerError, CorruptRecordError, ErrorCode
from ...records.codecs import CodecTable
from ...records.epoch_end import EpochEnd
from ...records.header import iter_headers
from ...records.isolation import IsolationLevel
from ...records.partition import TopicPartition
from ..cluster_client import FetchedPartition, Lineage
from ..errors import (
    STALE_LEADER_ERRORS,
    ConnectionFailedError,
    LogTruncatedError,
    OffsetsDeletedError,
    TopicReplacedError,
)
from ..network.backoff import FAIL_OVER, Delays, Retries
from ..network.metadata import ClusterMetadata, ClusterView, TopicView
from .batch_decoder import NO_END, BatchDecoder, Cursor, RawBatch, ReadBatch

__all__ = ["FETCH_BYTES", "MAX_WAIT_MS", "FetchClient", "PartitionReader"]

FETCH_BYTES: Final = 8 * 1024 * 1024
MAX_WAIT_MS: Final = 500
"""Milliseconds that a broker may hold back a Fetch without records."""

Batch = TypeVar("Batch")


class FetchClient(Protocol):
    """The part of `ClusterClient` that a reader needs."""

    @property
    def codecs(self) -> CodecTable: ...

    @property
    def cluster(self) -> ClusterMetadata: ...

    def metadata(self, topics: Iterable[str]) -> ClusterView: ...

    def by_leader(self, partitions: Iterable[TopicPartition]) -> Mapping[int, Sequence[TopicPartition]]: ...

    def fetch(
        self,
        node_id: int,
        offsets: Mapping[TopicPartition, int],
        *,
        lineages: Mapping[TopicPartition, Lineage],
        max_wait_ms: int,
        max_bytes: int,
        partition_max_bytes: int,
        isolation: IsolationLevel,
    ) -> Mapping[TopicPartition, FetchedPartition]: ...

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]: ...


class _NotYetError(BrokerError):
    """To be retried: the leader has moved or is unavailable, or has no records yet."""


class PartitionReader:
    """Reads from `offset` on. `topic_id`: the topic of the offset; None: the topic that exists at the first fetch.
    `quarantine` and `hint` as in `BatchDecoder`. `retry`: the delays between the attempts of a fetch.
    """

    def __init__(
        self,
        client: FetchClient,
        partition: TopicPartition,
        offset: int,
        *,
        topic_id: UUID | None = None,
        fetch_bytes: int = FETCH_BYTES,
        quarantine: bool = False,
        hint: str = "",
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        retry: Delays = FAIL_OVER,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.partition = partition
        self.cursor = Cursor(offset)
        self.high_watermark = -1
        """As of the last fetch."""
        self.last_stable_offset = -1
        """As of the last fetch."""
        self._client = client
        self._fetch_bytes = fetch_bytes
        self._isolation = isolation
        self._decoder = BatchDecoder(partition, client.codecs, quarantine=quarantine, hint=hint)
        self._retry = retry
        self._clock = clock
        self._sleep = sleep
        self._topic_id = topic_id
        self._leader_epoch = -1
        self._checked: TopicView | None = None

    @property
    def position(self) -> int:
        """The next offset to read."""
        return self.cursor.offset

    @property
    def leader_epoch(self) -> int:
        """The epoch of the leader that answered the last fetch; -1 if the brokers return none."""
        return self._leader_epoch

    def fetch(self, timeout_s: float, *, max_wait_ms: int = MAX_WAIT_MS, until: int | None = None) -> bytes:
        """Returns whole batches from the position on; they may begin before it, and end with a partial one.

        Returns nothing if the isolation shows no record yet. With `until`, an offset below which there must be records,
        an empty answer is retried. After `timeout_s` the last error is raised: `BrokerError` or
        `ConnectionFailedError`. `OffsetsDeletedError`, `LogTruncatedError` and `TopicReplacedError` (all
        `DataLossError`) are raised at once, as are errors that are not retriable.
        """
        retries = Retries(self._clock() + timeout_s, self._retry, self._clock, self._sleep)
        while True:
            try:
                return self._fetch(max_wait_ms, until)
            except (_NotYetError, ConnectionFailedError) as problem:
                retries.wait(problem)

    def batches(self, data: bytes, end: int = NO_END) -> Iterator[ReadBatch]:
        """Yields the batches of data that `fetch` returned, as lists; see `BatchDecoder`."""
        return self._moving(data, end, self._decoder.batches)

    def arrow_batches(self, data: bytes, end: int = NO_END) -> Iterator[ReadBatch]:
        """Yields the batches as Arrow columns."""
        return self._moving(data, end, self._decoder.arrow_batches)

    def raw_batches(self, data: bytes, end: int = NO_END) -> Iterator[RawBatch]:
        """Yields the batches unopened."""
        return self._moving(data, end, self._decoder.raw_batches)

    def seek(self, offset: int) -> None:
        """Moves the position; the leader epoch before it is then unknown."""
        self.cursor = Cursor(offset)

    def verify(self) -> None:
        """Asks the cluster whether the position is still valid in this topic and in this history of its log. Raises
        `TopicReplacedError` or `LogTruncatedError` if not.
        """
        self._client.metadata([self.partition.topic])
        self.check(suspect=True)

    def check(self, *, suspect: bool = False) -> None:
        """Checks the position as `verify` does, by the metadata that the client has. The epoch's end is requested only
        under another leader epoch than before, or if the position is `suspect`.
        """
        topic = self._client.cluster.view.topics.get(self.partition.topic)
        if topic is None or (topic is self._checked and not suspect):
            return
        if None not in (self._topic_id, topic.topic_id) and self._topic_id != topic.topic_id:
            raise TopicReplacedError(
                f"{self.partition}: the topic was deleted and created again; offset {self.position} is of the old one"
            )
        found = topic.partitions.get(self.partition.partition)
        leader_epoch = -1 if found is None else found.leader_epoch
        end = self._epoch_end(self.cursor.leader_epoch) if suspect or leader_epoch != self._leader_epoch else None
        self._topic_id = self._topic_id or topic.topic_id
        self._leader_epoch = leader_epoch
        self._checked = topic
        if end is not None and end.cut(self.position) is not None:
            self.cursor.leader_epoch = -1
            raise LogTruncatedError(
                f"{self.partition}: read up to offset {self.position}, but the log was cut at offset {end.end_offset}"
            )

    def log_end(self) -> int | None:
        """Asks for the log's end, which may be above the high watermark; returns None if that is not known. Verifies
        the position first.
        """
        self.verify()
        end = self._epoch_end(self._leader_epoch)
        return end.end_offset if end is not None and end.end_offset >= 0 else None

    def _epoch_end(self, epoch: int) -> EpochEnd | None:
        """Returns the end of a leader epoch; None if it is not known. The leader's own epoch ends at the log's end."""
        if epoch < 0:
            return None
        try:
            return self._client.leader_epoch_ends({self.partition: epoch}).get(self.partition)
        except BrokerError as error:
            if error.code is not ErrorCode.unsupported_version:
                raise
            return None

    def _moving(
        self, data: bytes, end: int, decode: Callable[[bytes, Cursor, int], Iterator[Batch]]
    ) -> Iterator[Batch]:
        before = self.position
        yield from decode(data, self.cursor, end)
        if data and self.position <= before and next(iter_headers(data), None) is not None:
            raise CorruptRecordError(f"{self.partition}: asked for offset {before}, only earlier batches came")

    def _fetch(self, max_wait_ms: int, until: int | None) -> bytes:
        position = self.position
        node_id = next(iter(self._client.by_leader([self.partition])), None)
        if node_id is None:
            raise _NotYetError(ErrorCode.leader_not_available, f"{self.partition} has no leader")
        self.check()
        try:
            answer = self._client.fetch(
                node_id,
                {self.partition: position},
                lineages={self.partition: Lineage(self._topic_id, self._leader_epoch, self.cursor.leader_epoch)},
                max_wait_ms=max_wait_ms,
                max_bytes=self._fetch_bytes,
                partition_max_bytes=self._fetch_bytes,
                isolation=self._isolation,
            )[self.partition]
        except ConnectionFailedError:
            self._client.cluster.forget_leaders([self.partition], node_id)
            raise
        if answer.error is not ErrorCode.none:
            self._refused(answer, node_id)
        if answer.diverging is not None:
            self._diverged(answer.diverging)
        self.high_watermark, self.last_stable_offset = answer.high_watermark, answer.last_stable_offset
        if answer.high_watermark < position:  # this may be so for a moment after an election
            self.verify()
        if until is not None and next(iter_headers(answer.records), None) is None:
            raise _NotYetError(
                ErrorCode.request_timed_out,
                f"{self.partition}: no records at offset {position}, though the range goes to {until} "
                f"(high watermark {answer.high_watermark})",
            )
        return answer.records

    def _diverged(self, end: EpochEnd) -> None:
        """Raises `LogTruncatedError` if the log was cut below the position, since the leader has another epoch
        before it. If the histories part at the position, the epoch before it is one without records, and is
        corrected."""
        if end.end_offset < self.position:
            self.verify()
        self.cursor.leader_epoch = end.leader_epoch
        raise _NotYetError(ErrorCode.offset_not_available, f"{self.partition}: another epoch before {self.position}")

    def _refused(self, answer: FetchedPartition, node_id: int) -> None:
        """Raises the error for a Fetch's error code."""
        error, position = answer.error, self.position
        if error is ErrorCode.offset_out_of_range:
            self.verify()  # a replaced topic or a cut log is the more precise error
            if self.cursor.leader_epoch >= 0 and answer.log_start_offset <= position:
                self.cursor.leader_epoch = -1  # this may be for an epoch that the broker does not know
                raise _NotYetError(error, f"{self.partition}: offset {position} is out of range")
            raise OffsetsDeletedError(
                f"{self.partition}: offset {position} is out of range (the log starts at {answer.log_start_offset})",
                position,
                answer.log_start_offset,
            )
        what = f"fetch of {self.partition} at offset {position}"
        if error in STALE_LEADER_ERRORS:
            self._client.cluster.forget_leaders([self.partition], node_id)
            self._client.metadata([self.partition.topic])
        elif not error.retriable:
            raise BrokerError(error, what)
        raise _NotYetError(error, what)
