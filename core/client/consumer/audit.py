"""The consumer tier of the audit (design D10): counts on hand-out, events before each commit.

An auditor that raises is counted and passed over: records go on, and the missing counts show as incomplete.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...interfaces.audit import Audit, AuditIdentity, RangeAudit
from ...records import native
from ...records.decode import Columns, RecordColumns
from ...records.partition import TopicPartition
from ..cluster_client import ClusterClient
from ..event_publisher import EventPublisher
from .batches import BatchColumns

_log = logging.getLogger(__name__)


class ConsumerAudit:
    """Thread-safe; does nothing without an audit. `epoch` gives that of this consumer's ownership of a partition,
    `wall_ms` the time of events."""

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
        """Whether anything of this partition is told. The audit is asked once for each topic."""
        topic = partition.topic
        found = self._topics.get(topic)
        if found is None:
            audit = self._audit
            found = self._topics[topic] = audit is not None and topic != audit.topic and audit.audits(topic)
        return found

    def start(self, partition: TopicPartition, offset: int) -> None:
        """The offset is one of the topic that has the name now: its id is asked of the cluster."""
        if self.counts(partition):
            self._call(lambda ranges: self._start(ranges, partition, offset))

    def _start(self, ranges: RangeAudit, partition: TopicPartition, offset: int) -> None:
        topic_id = self._client.topic_ids([partition.topic]).get(partition.topic)
        ranges.start(partition, offset, topic_id=topic_id, epoch=self._epoch(partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if self.counts(partition):
            self._call(lambda ranges: ranges.seek(partition, offset))

    def prepare(self, partition: TopicPartition, columns: Columns) -> Callable[[], None] | None:
        """Reads what is counted of these records; they count when the returned function is called."""
        if not self.counts(partition):
            return None
        try:
            offsets, stamps, sizes = _counted_columns(columns)
        except Exception as error:  # a batch that is handed out whole is decoded only here
            with self._lock:
                self._passed_over(error)
            return None
        return lambda: self._call(lambda ranges: ranges.count(partition, offsets, stamps, sizes))

    def publish(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Before the commit of `offsets`."""
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
        with self._lock:
            if self._ranges is None:
                return
            try:
                do(self._ranges)
            except Exception as error:  # a plugin may raise anything
                self._passed_over(error)

    def _passed_over(self, error: Exception) -> None:
        self.errors += 1
        _log.warning("audit passed over: %s", error)


def _counted_columns(columns: Columns) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Offsets, timestamps in ms, sizes in bytes."""
    records = columns.records if isinstance(columns, BatchColumns) else columns
    if not isinstance(records, RecordColumns):
        return records.offsets, records.timestamps_ms, records.sizes
    # Without a number object for each record.
    stamps, sizes = native.int64s(records.timestamps_ms), native.sizes(records.keys, records.values)
    return records.offsets, memoryview(stamps).cast("q"), memoryview(sizes).cast("q")
