"""Keeps a table in memory up to date with a topic: reads it from the first offset, then what is appended since.

Rules:

- `catch_up` reads each partition at least up to the high watermark that its leader reported after the call began. So
  the contents include every record that was acknowledged before the call, whoever wrote it and whoever leads the
  partition.
- A record is applied once, in the order of its partition. What was applied before an error is not applied again.
- The contents are cleared and all partitions are read again from their first offsets when the topic was deleted and
  created again, when a log was cut below the position, or when the position was deleted. The cluster is asked for the
  topic's id and leader epochs if the table has not asked for `UNWATCHED_S`; before that a change shows as an error, as
  another leader or as a high watermark below the position.
- A table that was not caught up for `max_gap_s` is read again: compaction may have removed tombstones that it missed.

Not thread-safe.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from ...errors import BrokerError, ErrorCode
from ...records.codecs import CodecTable
from ...records.epoch_end import EpochEnd
from ...records.isolation import IsolationLevel
from ...records.offset_and_epoch import OffsetAndEpoch
from ...records.partition import TopicPartition
from ..cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition
from ..errors import DataLossError
from ..network.backoff import RETRY, Backoff
from ..network.metadata import ClusterMetadata, ClusterView
from .partition_reader import MAX_WAIT_MS, FetchClient, PartitionReader

__all__ = ["FETCH_BYTES", "MAX_BOOTSTRAPS", "UNWATCHED_S", "TableContents", "TopicTable"]

FETCH_BYTES: Final = 4 * 1024 * 1024
_COMMITTED: Final = IsolationLevel.READ_COMMITTED
"""A table has no records of open or aborted transactions, which a foreign producer may write."""
UNWATCHED_S: Final = 1.0
MAX_BOOTSTRAPS: Final = 6
"""The most attempts of one `catch_up` to read the topic from its beginning: brokers learn of a new topic one after
another.
"""

_log = logging.getLogger(__name__)


class _BoundedClient(FetchClient):
    """A client whose requests, retries included, end at `deadline_s`; if it is None, each after the client's own
    time-out. The time that a broker holds back a Fetch on purpose is added."""

    def __init__(self, client: ClusterClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self.deadline_s: float | None = None

    @property
    def codecs(self) -> CodecTable:
        return self._client.codecs

    @property
    def cluster(self) -> ClusterMetadata:
        return self._client.cluster

    def metadata(self, topics: Iterable[str]) -> ClusterView:
        return self._client.metadata(topics, timeout_s=self._left_s())

    def by_leader(self, partitions: Iterable[TopicPartition]) -> Mapping[int, Sequence[TopicPartition]]:
        return self._client.by_leader(partitions, timeout_s=self._left_s())

    def fetch(
        self, node_id: int, offsets: Mapping[TopicPartition, int], *, max_wait_ms: int, **options: Any
    ) -> Mapping[TopicPartition, FetchedPartition]:
        left_s = self._left_s()
        limit_s = None if left_s is None else left_s + max_wait_ms / 1000
        return self._client.fetch(node_id, offsets, max_wait_ms=max_wait_ms, timeout_s=limit_s, **options)

    def leader_epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, EpochEnd]:
        return self._client.leader_epoch_ends(epochs, timeout_s=self._left_s())

    def list_offsets(self, timestamps: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, tuple[int, int]]:
        return self._client.list_offsets(timestamps, isolation=_COMMITTED, timeout_s=self._left_s())

    def _left_s(self) -> float | None:
        return None if self.deadline_s is None else self.deadline_s - self._clock()


class TableContents(Protocol):
    """The table that the topic's records form."""

    def clear(self) -> None:
        """Removes everything: the topic is read again."""
        ...

    def apply(
        self, partition: TopicPartition, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None
    ) -> None:
        """Applies the next record of a partition; a `value` of None deletes the key. An error ends `catch_up`, and
        the next one starts with this record."""
        ...


class TopicTable:
    """Applies the records of a topic to `contents`. `timeout_s` bounds the wait for a batch, retries included. `retry`:
    the delays between the attempts to read the topic from its beginning.
    """

    def __init__(
        self,
        client: ClusterClient,
        contents: TableContents,
        *,
        timeout_s: float,
        max_gap_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        retry: Backoff = RETRY,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = _BoundedClient(client, clock)
        self._contents = contents
        self._timeout_s = timeout_s
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._retry = retry
        self._sleep = sleep
        self._readers: dict[TopicPartition, PartitionReader] = {}
        self._known_ends: dict[TopicPartition, int] = {}
        """By partition: the leader epoch in which its leader is known to know its high watermark."""
        self._caught_up_at = self._asked_at = clock()

    def catch_up(
        self,
        partitions: Iterable[TopicPartition],
        at_least: Mapping[TopicPartition, int] | None = None,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Reads these partitions, all of one topic, up to their high watermarks and up to the offsets `at_least`, the
        ends of the caller's own appends; offsets that the log has lost since are not awaited.

        `deadline_s`, on the table's clock, bounds the whole call with all its requests, except for the time that a
        broker holds back a Fetch. At the deadline the last error is raised, or `BrokerError` (REQUEST_TIMED_OUT), and
        the next call continues. `CorruptRecordError` names a batch that cannot be read; the position stays before it.
        """
        wanted = list(partitions)
        self._client.deadline_s = deadline_s
        now = self._clock()
        if self._max_gap_s is not None and now - self._caught_up_at > self._max_gap_s:
            self.start_over()
        elif now - self._asked_at > UNWATCHED_S and self._readers:
            self._client.metadata({partition.topic for partition in wanted})
            self._asked_at = now
        for failures in range(1, MAX_BOOTSTRAPS + 1):
            try:
                self._read_to_ends(wanted, at_least or {}, deadline_s)
                break
            except DataLossError:
                delay_s = self._retry.delay(failures)
                late = deadline_s is not None and self._clock() + delay_s >= deadline_s
                if failures == MAX_BOOTSTRAPS or late:
                    raise
            self._sleep(delay_s)
        self._caught_up_at = self._clock()

    def start_over(self) -> None:
        """Clears the contents; the next `catch_up` reads every partition from its first offset."""
        self._readers.clear()
        self._known_ends.clear()
        self._contents.clear()

    def end(self, partition: TopicPartition) -> OffsetAndEpoch | None:
        """Returns the position in a partition, with the leader epoch of the record before it: what a conditional append
        compares. The epoch is -1 if it is not known. None if the partition was not read since the table was empty."""
        reader = self._readers.get(partition)
        return None if reader is None else OffsetAndEpoch(reader.cursor.offset, reader.cursor.leader_epoch)

    def _read_to_ends(
        self, partitions: list[TopicPartition], at_least: Mapping[TopicPartition, int], deadline_s: float | None
    ) -> None:
        try:
            self._open([partition for partition in partitions if partition not in self._readers])
            for reader in self._behind(partitions, at_least):
                self._read(reader, at_least.get(reader.partition, 0), deadline_s)
        except DataLossError as error:
            _log.warning("%s; the topic is read again from its beginning", error)
            self.start_over()
            raise

    def _open(self, partitions: list[TopicPartition]) -> None:
        if partitions:
            starts = self._client.list_offsets(dict.fromkeys(partitions, EARLIEST))
            for partition, (offset, _) in starts.items():
                reader = PartitionReader(self._client, partition, offset, fetch_bytes=FETCH_BYTES, isolation=_COMMITTED)
                self._readers[partition] = reader

    def _behind(
        self, partitions: list[TopicPartition], at_least: Mapping[TopicPartition, int]
    ) -> Iterable[PartitionReader]:
        """Yields the readers that may have records to read. For one partition its Fetch shows that; for several their
        high watermarks are requested, with one request to each broker.
        """
        readers = [self._readers[partition] for partition in partitions]
        if len(readers) < 2:
            return readers
        ends = self._client.list_offsets(dict.fromkeys(partitions, LATEST))
        for reader in readers:
            reader.check()
            if ends[reader.partition][0] < reader.position:
                reader.verify()
        goals = {partition: max(ends[partition][0], at_least.get(partition, 0)) for partition in partitions}
        return [reader for reader in readers if reader.position < goals[reader.partition]]

    def _read(self, reader: PartitionReader, at_least: int, deadline_s: float | None) -> None:
        goal: int | None = None
        moved_at = self._clock()
        wait_ms = MAX_WAIT_MS if reader.position < at_least else 0
        while goal is None or reader.position < goal:
            data = reader.fetch(self._left_s(reader, moved_at, deadline_s, goal), max_wait_ms=wait_ms)
            if goal is None:
                goal = max(self._committed_end(reader), self._still_there(reader, at_least))
            before = reader.position
            self._apply(reader, data)
            if reader.position > before:
                moved_at = self._clock()
            else:
                wait_ms = MAX_WAIT_MS

    def _committed_end(self, reader: PartitionReader) -> int:
        """Returns the last stable offset that the fetch returned, or a higher one: a new leader's is too low until it
        has committed its first records, and ListOffsets waits for that (KIP-207)."""
        epoch = reader.leader_epoch
        if self._known_ends.get(reader.partition) == epoch:
            return reader.last_stable_offset
        end = self._client.list_offsets({reader.partition: LATEST})[reader.partition][0]
        self._known_ends[reader.partition] = epoch
        return max(reader.last_stable_offset, end)

    def _still_there(self, reader: PartitionReader, at_least: int) -> int:
        """Returns `at_least`, or the end of the log if that is lower, since the topic was created again, or the log
        lost its end."""
        if at_least <= reader.high_watermark:
            return at_least
        end = reader.log_end()
        return at_least if end is None else min(at_least, end)

    def _left_s(self, reader: PartitionReader, moved_at: float, deadline_s: float | None, goal: int | None) -> float:
        """Returns the seconds that the next fetch may take."""
        until = moved_at + self._timeout_s
        left_s = (until if deadline_s is None else min(until, deadline_s)) - self._clock()
        if goal is not None and left_s <= 0:
            raise BrokerError(
                ErrorCode.request_timed_out,
                f"{reader.partition} was read to offset {reader.position} in time, and not to its end at {goal}",
            )
        return left_s

    def _apply(self, reader: PartitionReader, data: bytes) -> None:
        apply, cursor, partition = self._contents.apply, reader.cursor, reader.partition
        for batch in reader.batches(data):
            columns = batch.columns
            rows = zip(columns.offsets, columns.timestamps_ms, columns.keys, columns.values, strict=True)
            for offset, timestamp_ms, key, value in rows:
                apply(partition, offset, timestamp_ms, key, value)
                cursor.offset = offset + 1
