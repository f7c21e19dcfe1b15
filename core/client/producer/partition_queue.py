"""The batches of one partition in the order of their records, as a state machine without I/O.

The states of one batch are the table in `batch`. This module decides which batch is sent next, and which event a
response is.

Rules:
- Batches are sent in the order in which the application sent their records; a batch to retry returns to its old
  position.
- Without idempotence at most `max_in_flight` batches are in flight; with 1, nothing is ever reordered.
- With idempotence each batch gets a sequence number when it is first sent, and keeps it and the producer's identity
  over all attempts. While a batch waits for a retry no later one is sent (Kafka does the same): the broker would refuse
  it with OUT_OF_ORDER_SEQUENCE_NUMBER, as it refuses those in flight, which are then retried. No new batch is sent
  while a retry is in flight either: if the first attempt was stored after all, the broker recognizes the retry as a
  duplicate only while the batch is among the producer's last five. For the same reason batches that were stored while
  an earlier one is in flight count as if they were in flight: a new leader answers while the former one is silent.
- The first batch of an identity is in flight alone until it is stored, and so is the first one after a long pause. A
  broker that does not know the producer accepts any sequence: if it refused the first batch (a leader that was just
  elected and does not know it) and stored the second, the first one would stay out of order (KAFKA-14359).
- When a batch that has a sequence number fails for good, the numbers after it have a gap. The partition then *resets*:
  once nothing is in flight and no batch is in doubt, it continues with the next epoch and sequence 0 (KIP-360), and
  each waiting batch gets a new number. A batch in doubt (its response was lost, or its leader was deposed: it may be
  stored) is retried with its old number first, since the broker could not recognize a duplicate with a new one.

    response                           with earlier batches outstanding   as the earliest
    none, DUPLICATE_SEQUENCE_NUMBER    stored                             stored
    OUT_OF_ORDER_SEQUENCE_NUMBER       retry                              reset; retry if a gap was known, else failed
    UNKNOWN_PRODUCER_ID                reset; retry if retention deleted the records stored before, else failed
    INVALID_PRODUCER_EPOCH, …          reset with a new producer id; retry unless in doubt, then failed
    MESSAGE_TOO_LARGE                  split in halves with the same numbers; a single record fails. A half of a batch
                                       in doubt that is out of order fails: the whole batch may be stored
    a retriable code, no response      retry
    any other code                     failed

Not thread-safe: the accumulator's lock guards it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...errors import ErrorCode
from ...records.partition import TopicPartition
from .batch import (
    ANONYMOUS,
    BatchAudit,
    BatchEvent,
    BatchState,
    ColumnBatch,
    EncodedRows,
    ProducerBatch,
    ProducerIdentity,
    wrap_sequence,
)
from .record_future import BatchOutcome

if TYPE_CHECKING:
    from .metadata_refresher import MetadataRefresher

__all__ = ["MAX_EPOCH", "PartitionQueue"]

MAX_EPOCH = 2**15 - 1
_REMEMBERED = 5
"""The number of a producer's last batches that a broker recognizes when they are sent again."""
_FORGOTTEN_S = 600.0
"""Seconds without a batch after which the broker is assumed to have forgotten the producer. Brokers remember one for a
day by default (`producer.id.expiration.ms`)."""
_OPEN = BatchState.OPEN

_STORED = {ErrorCode.none, ErrorCode.duplicate_sequence_number}
_TOO_LARGE = {ErrorCode.message_too_large, ErrorCode.record_list_too_large}
_BAD_IDENTITY = {
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.producer_fenced,
}
_IN_DOUBT = {
    ErrorCode.request_timed_out,
    ErrorCode.not_enough_replicas_after_append,
    ErrorCode.network_exception,
    # A leader that is deposed, or whose disk fails, while it waits for the followers: they may have the batch already.
    ErrorCode.not_leader_or_follower,
    ErrorCode.kafka_storage_error,
}


class PartitionQueue:
    """`identities` is None if the producer is not idempotent."""

    def __init__(
        self,
        partition: TopicPartition,
        batch_size: int,
        max_in_flight: int,
        identities: MetadataRefresher | None,
        audit: BatchAudit | None = None,
    ) -> None:
        self.partition = partition
        self.batch_size = batch_size
        """Estimated bytes at which a batch is full; halved when the broker finds a batch too large."""
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self._overtaking: list[tuple[int, int]] = []
        """The positions of batches that were stored while an earlier one was in flight."""
        self._max_in_flight = max_in_flight
        self._identities = identities
        self.audit = audit
        self._identity = ANONYMOUS
        self._next_sequence = 0
        self._remembered = False
        """True if the broker knows the identity: it has stored a batch of it, not long ago."""
        self._taken_s = 0.0
        self._reset_needed = False
        self._last_acked_offset = -1
        self._made = 0

    @property
    def open_batch(self) -> ProducerBatch | None:
        """The batch that takes more records."""
        return self.waiting[-1] if self.waiting and self.waiting[-1].state is _OPEN else None

    def add_batch(self, now_s: float) -> ProducerBatch:
        """Adds an open batch at the end and closes the one before it."""
        if self.waiting:
            self.waiting[-1].close()
        self._made += 1
        batch = ProducerBatch(BatchOutcome(self.partition), now_s, self._made, audit=self.audit)
        self.waiting.append(batch)
        return batch

    def add_rows(self, now_s: float, encoded: EncodedRows) -> ProducerBatch:
        """Adds a batch of a table's rows at the end and closes the one before it."""
        if self.waiting:
            self.waiting[-1].close()
        self._made += 1
        batch = ColumnBatch(BatchOutcome(self.partition), now_s, self._made, encoded, self.audit)
        self.waiting.append(batch)
        return batch

    def take(self, now_s: float) -> ProducerBatch | None:
        """Returns the next batch to send, which is in flight from now on; None if none may be sent now."""
        if not self.waiting or len(self.in_flight) >= self._max_in_flight or self.waiting[0].retry_at_s > now_s:
            return None
        head = self.waiting[0]
        if not self.in_flight and now_s - self._taken_s > _FORGOTTEN_S:
            self._remembered = False
        if self._identities is not None and not self._number(head):
            return None
        self.waiting.popleft()
        self._taken_s = now_s
        head.move(BatchEvent.SEND)
        head.attempts += 1
        head.tries += 1
        self.in_flight.append(head)
        self.in_flight.sort(key=_order)
        return head

    def event_of(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int = -1) -> BatchEvent:
        """Returns the event that a response is to a batch in flight; the caller then calls `stored`, `retry`, `split`
        or `failed`."""
        if code in _STORED:
            return BatchEvent.STORE
        if code in _TOO_LARGE:
            return BatchEvent.SPLIT if batch.count > 1 else BatchEvent.FAIL
        if batch.sequence is not None:
            if code == ErrorCode.out_of_order_sequence_number:
                return self._out_of_order(batch)
            if code == ErrorCode.unknown_producer_id:
                self._clear_doubt_from(batch)
                self._reset_needed = True
                return BatchEvent.RETRY if log_start_offset > self._last_acked_offset else BatchEvent.FAIL
            if code in _BAD_IDENTITY and self._identities is not None:
                self._identities.renew(batch.identity)
                self._reset_needed = True
                return BatchEvent.FAIL if batch.in_doubt else BatchEvent.RETRY
        if code in _IN_DOUBT:
            batch.in_doubt = True
        return BatchEvent.RETRY if code.retriable else BatchEvent.FAIL

    def stored(self, batch: ProducerBatch, base_offset: int) -> None:
        self._remove(batch)
        batch.move(BatchEvent.STORE)
        if batch.identity == self._identity:
            self._remembered = True
        if batch.sequence is not None and self.in_flight and self.in_flight[0].order < batch.order:
            self._overtaking.append(batch.order)
        if base_offset >= 0:
            self._last_acked_offset = max(self._last_acked_offset, base_offset + batch.count - 1)

    def retry(self, batch: ProducerBatch, at_s: float) -> None:
        """Puts the batch back at its old position, to be sent again at `at_s` or later."""
        self._remove(batch)
        batch.move(BatchEvent.RETRY)
        batch.retry_at_s = at_s
        self._put_back([batch])

    def split(self, batch: ProducerBatch) -> None:
        """Replaces the batch by its two halves, at its old position."""
        self._remove(batch)
        batch.move(BatchEvent.SPLIT)
        self.batch_size = max(batch.size // 2, 1)
        self._put_back(list(batch.split()))

    def failed(self, batch: ProducerBatch) -> None:
        """Removes a batch that is in flight or waiting and is not retried."""
        self._remove(batch)
        batch.move(BatchEvent.FAIL)
        if batch.sequence is not None:
            self._reset_needed = True

    def _number(self, head: ProducerBatch) -> bool:
        """Assigns a sequence number to the first waiting batch if it has none; returns whether the batch may be sent
        now."""
        in_doubt = any(batch.in_doubt and batch.sequence is not None for batch in self.waiting)
        if self._reset_needed and (self.in_flight or (not in_doubt and not self._reset())):
            return False
        if head.sequence is not None:
            return not self.in_flight or head.order < self.in_flight[0].order
        if any(batch.tries > 1 for batch in self.in_flight) or len(self.in_flight) + self._overtook() >= _REMEMBERED:
            return False
        if self.in_flight and not self._remembered:
            return False
        if self._identity is ANONYMOUS:
            given = self._identities.current() if self._identities else None
            if given is None:
                return False
            self._identity = given
        head.assign(self._identity, self._next_sequence)
        self._next_sequence = wrap_sequence(self._next_sequence + head.count)
        return True

    def _overtook(self) -> int:
        """Returns how many batches are stored behind the earliest one in flight."""
        if self._overtaking:
            earliest = self.in_flight[0].order if self.in_flight else None
            self._overtaking = [order for order in self._overtaking if earliest is not None and order > earliest]
        return len(self._overtaking)

    def _reset(self) -> bool:
        given = self._identities.current() if self._identities else None
        if given is None:
            return False
        if given.producer_id == self._identity.producer_id:
            if self._identity.epoch >= MAX_EPOCH:
                assert self._identities is not None
                self._identities.renew(self._identity)
                return False
            given = ProducerIdentity(given.producer_id, self._identity.epoch + 1)
        self._identity = given
        self._next_sequence = 0
        self._remembered = False
        self._last_acked_offset = -1
        self._reset_needed = False
        for batch in self.waiting:
            batch.assign(ANONYMOUS, None)
        return True

    def _out_of_order(self, batch: ProducerBatch) -> BatchEvent:
        earliest = min([*self.in_flight, *list(self.waiting)[:1]], key=_order)
        if earliest is not batch:
            batch.in_doubt = batch.in_doubt and batch.halved
            return BatchEvent.RETRY
        if batch.halved and batch.in_doubt:
            self._reset_needed = True
            return BatchEvent.FAIL
        self._clear_doubt_from(batch)
        if self._reset_needed:
            return BatchEvent.RETRY
        self._reset_needed = True
        return BatchEvent.FAIL

    def _clear_doubt_from(self, batch: ProducerBatch) -> None:
        """Called when the broker lacks the records before `batch`: neither it nor any later batch is then stored
        with its present number."""
        for other in (batch, *self.waiting):
            other.in_doubt = other.in_doubt and other.order < batch.order

    def _remove(self, batch: ProducerBatch) -> None:
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def _put_back(self, batches: list[ProducerBatch]) -> None:
        later: list[ProducerBatch] = []
        while self.waiting and self.waiting[0].order < batches[0].order:
            later.append(self.waiting.popleft())
        self.waiting.extendleft(reversed([*later, *batches]))


def _order(batch: ProducerBatch) -> tuple[int, int]:
    return batch.order
