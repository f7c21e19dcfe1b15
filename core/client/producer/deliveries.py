"""Reports the outcome of batches to counters, interceptors, the audit and the log.

An interceptor or auditor that raises is counted and skipped: the record is sent unchanged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ...errors import DeliveryError
from ...interfaces.audit import Counted, ProducerAudit
from ...interfaces.interceptor import ProducerInterceptor
from ...records.record import Headers, ProducerRecord, RecordMetadata
from ..cluster_client import ProducedBatch
from .batch import ProducerBatch
from .partition_queue import PartitionQueue

log = logging.getLogger("klamm.producer")


@dataclass(slots=True)
class ProducerCounts:
    """Counts since the producer was made. `acknowledged` plus `failed` is the number of sent records that are
    settled.
    """

    acknowledged: int = 0
    failed: int = 0
    batches: int = 0
    retried_batches: int = 0
    interceptor_errors: int = 0
    audit_errors: int = 0


class DeliveryListeners:
    """`intercept` and `refused` are called on the threads that send, the others on the sender's thread; `attempted`
    also on the thread that closes the producer.
    """

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._interceptors = interceptors
        self._counts = ProducerCounts()
        self._lock = threading.Lock()
        self.audit: ProducerAudit | None = None
        self.audit_topic: str | None = None
        """Its records are the audit's own: neither counted nor shown to interceptors."""

    def counts(self) -> dict[str, int]:
        with self._lock:
            return asdict(self._counts)

    def intercept(self, record: ProducerRecord) -> ProducerRecord:
        for interceptor in self._interceptors:
            try:
                record = interceptor.on_send(record)
            except Exception:  # a plugin may raise anything
                self._passed_over("interceptor_errors", "on_send", interceptor)
        return record

    @property
    def intercepts(self) -> bool:
        return bool(self._interceptors)

    def mark(self, mark_of: Callable[[Counted], Headers], counted: Counted) -> Headers:
        """Returns the headers that the audit adds to the first record of a batch: `mark_of` is
        `klamm.core.interfaces.audit.Audit.mark` for this producer and a partition. If `mark_of` caches its results, a
        call that raises leaves none in the cache.
        """
        try:
            return mark_of(counted)
        except Exception:  # a plugin may raise anything
            self._passed_over("audit_errors", "mark", self.audit)
            return ()

    def begin(self, queues: Iterable[PartitionQueue]) -> dict[str, bool]:
        """Returns, for each audited topic of the queues, whether the audit lets its batches be sent now. `end` must
        follow with the same topics once they are sent. (A call for each batch would take 2 % of the time of sending
        it.)"""
        audit = self.audit
        if audit is None:
            return {}
        topics = {queue.partition.topic: True for queue in queues if queue.audit is not None}
        for topic in topics:
            try:
                topics[topic] = audit.begin(topic)
            except Exception:  # a plugin may raise anything
                self._passed_over("audit_errors", "begin", audit)
        return topics

    def end(self, begun: Mapping[str, bool]) -> None:
        """Ends what `begin` has returned."""
        for topic, sent in begun.items():
            try:
                if sent and self.audit is not None:
                    self.audit.end(topic)
            except Exception:  # a plugin may raise anything
                self._passed_over("audit_errors", "end", self.audit)

    def attempted(self, batch: ProducerBatch) -> None:
        """Reports to the audit, once, that a closed batch is being sent, or was abandoned without having been sent."""
        if batch.audit is None or self.audit is None:
            return
        with self._lock:  # the thread that closes the producer and the sender may both have the batch
            if batch.attempt_reported:
                return
            batch.attempt_reported = True
        topic = batch.outcome.partition.topic
        try:
            for timestamp_ms, count, size in batch.counted():
                self.audit.attempted(topic, timestamp_ms, size, count)
        except Exception:  # a plugin may raise anything
            self._passed_over("audit_errors", "attempted", self.audit)

    def refused(self, error: Exception) -> None:
        """Reports a record that was never added to a batch."""
        with self._lock:
            self._counts.failed += 1
        self._tell(None, error)

    def stored(self, batch: ProducerBatch, produced: ProducedBatch) -> None:
        if batch.outcome.partition.topic == self.audit_topic:
            return
        with self._lock:
            self._counts.acknowledged += batch.count
            self._counts.batches += 1
            self._counts.retried_batches += batch.attempts > 1
        partition = batch.outcome.partition
        if self.audit is not None and batch.audit is not None:
            stamped = produced.log_append_time_ms  # if the broker sets timestamps, its time is the record's (design D9)
            try:
                for created_ms, count, size in batch.counted():
                    timestamp_ms = stamped if stamped >= 0 else created_ms
                    self.audit.acknowledged(partition.topic, timestamp_ms, size, count)
            except Exception:  # a plugin may raise anything
                self._passed_over("audit_errors", "acknowledged", self.audit)
        if self._interceptors:
            for index, record in enumerate(batch.records):
                offset = produced.base_offset + index if produced.base_offset >= 0 else -1
                stamp = produced.log_append_time_ms if produced.log_append_time_ms >= 0 else record[0]
                self._tell(RecordMetadata(partition.topic, partition.partition, offset, stamp), None)

    def failed(self, batch: ProducerBatch, error: DeliveryError) -> None:
        log.error("%s", error)
        if batch.outcome.partition.topic == self.audit_topic:
            return
        with self._lock:
            self._counts.failed += batch.count
            self._counts.batches += 1
            self._counts.retried_batches += batch.attempts > 1
        self._given_up(batch)
        if self._interceptors:
            for _ in range(batch.count):
                self._tell(None, error)

    def _given_up(self, batch: ProducerBatch) -> None:
        if self.audit is not None and batch.audit is not None:
            self.attempted(batch)
            try:
                self.audit.failed(batch.outcome.partition.topic, batch.count)
            except Exception:  # a plugin may raise anything
                self._passed_over("audit_errors", "failed", self.audit)

    def _tell(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        for interceptor in self._interceptors:
            try:
                interceptor.on_acknowledgement(metadata, error)
            except Exception:  # a plugin may raise anything
                self._passed_over("interceptor_errors", "on_acknowledgement", interceptor)

    def _passed_over(self, counter: str, method: str, plugin: object) -> None:
        with self._lock:
            count = getattr(self._counts, counter) + 1
            setattr(self._counts, counter, count)
        if count == 1:  # after the first error only the count grows
            log.exception("%s.%s raised; records are still sent", type(plugin).__name__, method)
