"""The consumer tier of the audit (design D10): counts records when they are returned, and publishes events before each
commit.

An auditor that raises is counted and skipped: records are still returned, and the missing counts show as incomplete.
"""

from __future__ import annotations

import logging
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Final, NamedTuple

from ...interfaces.audit import Audit, AuditIdentity, RangeAudit
from ...records import native
from ...records.decode import Columns, RecordColumns
from ...records.header import Buffer
from ...records.partition import TopicPartition
from ..cluster_client import ClusterClient
from ..event_publisher import EventPublisher
from .batches import BatchColumns

__all__ = ["ConsumerAudit", "counted_run", "joined_runs"]

_log = logging.getLogger(__name__)

_MOST_RUNS: Final = 64
"""The most runs that are collected before they are counted together."""
_LARGE_RUN: Final = 4096
"""The number of records from which a run is counted at once."""


class ConsumerAudit:
    """Thread-safe; does nothing without an audit. `epoch` returns the epoch of this consumer's ownership of a
    partition, `wall_ms` the time of events."""

    def __init__(
        self,
        audit: Audit | None,
        client: ClusterClient,
        group: str,
        application: str,
        epoch: Callable[[TopicPartition], int],
        wall_ms: Callable[[], int],
    ) -> None:
        self.errors = 0
        self._audit = audit
        self._topics: dict[str, bool] = {}
        self._runs: deque[_Run] = deque()
        self._client = client
        self._epoch = epoch
        self._lock = threading.Lock()
        self._ranges: RangeAudit | None = None
        if audit is not None:
            identity = AuditIdentity("consumer", group, socket.gethostname(), application)
            self._ranges = audit.ranges(identity, EventPublisher(client, audit.topic, wall_ms))

    def _audited(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        return [partition for partition in partitions if self.counts(partition)]

    def counts(self, partition: TopicPartition) -> bool:
        """Returns True if this partition's records are counted. The audit is asked once for each topic."""
        topic = partition.topic
        found = self._topics.get(topic)
        if found is None:
            audit = self._audit
            found = self._topics[topic] = audit is not None and topic != audit.topic and audit.audits(topic)
        return found

    def start(self, offsets: Mapping[TopicPartition, int], reset: Collection[TopicPartition] = ()) -> None:
        """Starts counting at these offsets, and stores the group's start. The ids of the topics that have these names
        now are requested from the cluster. `reset`: the partitions whose offset here is not a committed one."""
        audited = {p: offsets[p] for p in self._audited(offsets)}
        if audited:
            self._call(lambda ranges: self._start(ranges, audited, reset))

    def _start(
        self, ranges: RangeAudit, offsets: Mapping[TopicPartition, int], reset: Collection[TopicPartition]
    ) -> None:
        topic_ids = self._client.topic_ids(sorted({partition.topic for partition in offsets}))
        for partition, offset in offsets.items():
            topic_id, epoch = topic_ids.get(partition.topic), self._epoch(partition)
            ranges.start(partition, offset, topic_id=topic_id, epoch=epoch, reset=partition in reset)
        ranges.begin(offsets)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if self.counts(partition):
            self._call(lambda ranges: ranges.seek(partition, offset))

    def prepare(self, partition: TopicPartition, columns: Columns) -> Callable[[], None] | None:
        """Prepares the counts of these records; they count when the returned function is called."""
        if not self.counts(partition):
            return None
        try:
            run = counted_run(partition, columns)
        except Exception as error:  # a batch that is returned undecoded is decoded only here
            with self._lock:
                self._passed_over(error)
            return None
        return partial(self._returned, run) if run.offsets else None

    def _returned(self, run: _Run) -> None:
        self._runs.append(run)
        if len(self._runs) >= _MOST_RUNS or len(run.offsets) >= _LARGE_RUN:
            self._call(lambda _: None)

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Publishes events; called before the commit of `offsets`."""
        self._around_commit(offsets, lambda ranges, audited: ranges.publish(audited))

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._around_commit(offsets, lambda ranges, audited: ranges.committed(audited))

    def _around_commit(
        self, offsets: Mapping[TopicPartition, int], do: Callable[[RangeAudit, dict[TopicPartition, int]], None]
    ) -> None:
        audited = {p: offsets[p] for p in self._audited(offsets)}
        if audited:
            self._call(lambda ranges: do(ranges, audited))

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        audited = self._audited(partitions)
        if audited:
            self._call(lambda ranges: ranges.stop(audited))

    def close(self) -> None:
        self._call(lambda ranges: ranges.close())

    def _call(self, do: Callable[[RangeAudit], None]) -> None:
        """Calls `do` after counting the records that were returned before."""
        with self._lock:
            if self._ranges is None:
                return
            try:
                self._count(self._ranges)
                do(self._ranges)
            except Exception as error:  # a plugin may raise anything
                self._passed_over(error)

    def _count(self, ranges: RangeAudit) -> None:
        """Counts the waiting runs, those of a partition together. A run is counted once, whatever the plugin raises."""
        growing: dict[TopicPartition, list[_Run]] = {}
        while self._runs:
            run = self._runs.popleft()
            runs = growing.setdefault(run.partition, [])
            if runs and run.offsets[0] <= runs[-1].offsets[-1]:  # returned again, as after `Delivery.take_back`
                self._count_runs(ranges, runs)
                runs.clear()
            runs.append(run)
        for runs in growing.values():
            self._count_runs(ranges, runs)

    def _count_runs(self, ranges: RangeAudit, runs: Sequence[_Run]) -> None:
        """Counts runs of one partition, whose offsets grow."""
        try:
            ranges.count(runs[0].partition, *joined_runs(runs))
        except Exception as error:  # a plugin may raise anything
            self._passed_over(error)

    def _passed_over(self, error: Exception) -> None:
        self.errors += 1
        _log.warning("the audit failed and was skipped: %s", error)


class _Run(NamedTuple):
    """Consecutive records of one delivery. `timestamps_ms` and `sizes` (key plus value, bytes) are columns of int64."""

    partition: TopicPartition
    offsets: Sequence[int]
    timestamps_ms: Buffer
    sizes: Buffer


def counted_run(partition: TopicPartition, columns: Columns) -> _Run:
    """Returns the fields of these records that are counted."""
    records = columns.records if isinstance(columns, BatchColumns) else columns
    offsets = records.offsets
    if offsets and offsets[-1] - offsets[0] == len(offsets) - 1:  # no offset is missing: no object for each is needed
        offsets = range(offsets[0], offsets[-1] + 1)
    if isinstance(records, RecordColumns):
        stamps, sizes = native.int64s(records.timestamps_ms), native.sizes(records.keys, records.values)
        return _Run(partition, offsets, stamps, sizes)
    return _Run(partition, offsets, _int64s(records.timestamps_ms), _int64s(records.sizes))


def _int64s(numbers: Sequence[int]) -> Buffer:
    """Returns the column as int64s; Arrow's columns are passed unchanged."""
    return numbers if isinstance(numbers, memoryview) else native.int64s(list(numbers))


def joined_runs(runs: Sequence[_Run]) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Returns offsets, timestamps in ms and sizes in bytes of a partition's runs."""
    if len(runs) == 1:
        _, offsets, stamps, sizes = runs[0]
    else:
        offsets = _joined_offsets([run.offsets for run in runs])
        stamps, sizes = b"".join(run.timestamps_ms for run in runs), b"".join(run.sizes for run in runs)
    return offsets, memoryview(stamps).cast("B").cast("q"), memoryview(sizes).cast("B").cast("q")


def _joined_offsets(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    first, last = parts[0], parts[-1]
    if all(isinstance(part, range) for part in parts) and all(a[-1] + 1 == b[0] for a, b in pairwise(parts)):
        return range(first[0], last[-1] + 1)
    return array("q", chain.from_iterable(parts))
