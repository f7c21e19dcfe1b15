"""The interceptor interfaces: they see, and may change, records in producer and consumer.

An interceptor that raises is counted and skipped: the record continues unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..records.partition import TopicPartition
from ..records.record import ConsumerRecord, ProducerRecord, RecordMetadata

__all__ = ["ConsumerInterceptor", "ProducerInterceptor"]


class ProducerInterceptor(Protocol):
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called before serialization and partitioning; returns the record to send."""
        ...

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """Called once per record; one of the two arguments is set."""
        ...


class ConsumerInterceptor(Protocol):
    def on_consume(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Called before records are returned; offsets advance over dropped records. Records are passed in again if they
        did not reach the application: another interceptor or a signal interrupted, or a rebalance revoked them."""
        ...

    def on_commit(self, offsets: Mapping[TopicPartition, int]) -> None: ...
