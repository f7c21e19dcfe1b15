"""The batches of one partition on their way to the broker, as a state machine without I/O.

A batch: open → waiting → in flight → settled (stored or failed), or back to waiting for another try.

Rules:
- Batches leave in the order in which their records were sent, and go back to their old place for another try.
- Without idempotence at most `max_in_flight` are in flight; with 1, nothing is ever reordered.
- With idempotence each batch gets a sequence number when it is first taken, and keeps it and the producer's identity
  over all tries. While a batch waits for another try no later one is sent before it (Kafka does the same): the broker
  would refuse it with OUT_OF_ORDER_SEQUENCE_NUMBER, as it does those that are in flight, which then come back. Nor is
  a new one sent beside another try: if the first try was stored after all, the broker knows it again only as long as
  it is among its producer's last five.
- When a batch fails for good after it got a number, the numbers behind it have a gap. The partition then *resets*: once
  nothing is in flight and no batch is in doubt, it goes on with the next epoch and sequence 0 (KIP-360), each waiting
  batch with a new number. A batch in doubt (its answer was lost: it may be stored) is first tried again under its old
  number, since under a new one the broker could not know a copy.

    answer to a batch                  with earlier batches outstanding   as the earliest
    none, DUPLICATE_SEQUENCE_NUMBER    stored                             stored
    OUT_OF_ORDER_SEQUENCE_NUMBER       again                              reset; again if a gap was known, else failed
    UNKNOWN_PRODUCER_ID                reset; again if retention took what was stored before, else failed
    INVALID_PRODUCER_EPOCH, …          reset with a new producer id; again unless in doubt, then failed
    MESSAGE_TOO_LARGE                  split in halves with the same numbers; a single record fails. A half of a batch
                                       in doubt that is out of order fails: the whole may be stored
    a retriable code, no answer        again
    any other code                     failed

Not thread-safe: the accumulator's lock guards it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Protocol

from ...errors import ErrorCode
from ...records.partition import TopicPartition
from .batch import (
    ANONYMOUS,
    BatchAudit,
    ColumnBatch,
    EncodedRows,
    ProducerBatch,
    ProducerIdentity,
    wrap_sequence,
)
from .record_future import BatchOutcome

MAX_EPOCH = 2**15 - 1

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
}


class Verdict(Enum):
    STORED = "stored"
    AGAIN = "again"
    SPLIT = "split"
    FAILED = "failed"


class Identities(Protocol):
    """Where producer ids come from; None where the producer is not idempotent."""

    def current(self) -> ProducerIdentity | None:
        """None while it is being asked for."""
        ...

    def renew(self, refused: ProducerIdentity) -> None:
        """The broker refuses this one, or its epochs are used up: get another id."""
        ...


class PartitionQueue:
    def __init__(
        self,
        partition: TopicPartition,
        batch_size: int,
        max_in_flight: int,
        identities: Identities | None,
        audit: BatchAudit | None = None,
    ) -> None:
        self.partition = partition
        self.batch_size = batch_size
        """Estimated bytes at which a batch is full; halved when the broker finds one too large."""
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self._max_in_flight = max_in_flight
        self._identities = identities
        self.audit = audit
        self._identity = ANONYMOUS
        self._next_sequence = 0
        self._reset_needed = False
        self._last_acked_offset = -1
        self._made = 0

    @property
    def open_batch(self) -> ProducerBatch | None:
        """The one that takes more records."""
        return self.waiting[-1] if self.waiting and not self.waiting[-1].closed else None

    def add_batch(self, now_s: float) -> ProducerBatch:
        """A new open batch at the end; the one before takes no more."""
        if self.waiting:
            self.waiting[-1].closed = True
        self._made += 1
        batch = ProducerBatch(BatchOutcome(self.partition), now_s, self._made, audit=self.audit)
        self.waiting.append(batch)
        return batch

    def add_rows(self, now_s: float, encoded: EncodedRows) -> ProducerBatch:
        """A closed batch at the end, of a table's rows; the one before takes no more."""
        if self.waiting:
            self.waiting[-1].closed = True
        self._made += 1
        batch = ColumnBatch(BatchOutcome(self.partition), now_s, self._made, encoded, self.audit)
        self.waiting.append(batch)
        return batch

    def take(self, now_s: float) -> ProducerBatch | None:
        """The next batch to send, now in flight; None when none may be sent now."""
        if not self.waiting or len(self.in_flight) >= self._max_in_flight or self.waiting[0].retry_at_s > now_s:
            return None
        head = self.waiting[0]
        if self._identities is not None and not self._number(head):
            return None
        self.waiting.popleft()
        head.closed = True
        head.attempts += 1
        head.tries += 1
        self.in_flight.append(head)
        self.in_flight.sort(key=_order)
        return head

    def judge(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int = -1) -> Verdict:
        """What an answer means for a batch in flight; the caller then calls `stored`, `again`, `split` or `failed`."""
        if code in _STORED:
            return Verdict.STORED
        if code in _TOO_LARGE:
            return Verdict.SPLIT if batch.count > 1 else Verdict.FAILED
        if batch.sequence is not None:
            if code == ErrorCode.out_of_order_sequence_number:
                return self._out_of_order(batch)
            if code == ErrorCode.unknown_producer_id:
                self._surely_not_stored(batch)
                self._reset_needed = True
                return Verdict.AGAIN if log_start_offset > self._last_acked_offset else Verdict.FAILED
            if code in _BAD_IDENTITY and self._identities is not None:
                self._identities.renew(batch.identity)
                self._reset_needed = True
                return Verdict.FAILED if batch.in_doubt else Verdict.AGAIN
        if code in _IN_DOUBT:
            batch.in_doubt = True
        return Verdict.AGAIN if code.retriable else Verdict.FAILED

    def stored(self, batch: ProducerBatch, base_offset: int) -> None:
        self._leave(batch)
        if base_offset >= 0:
            self._last_acked_offset = max(self._last_acked_offset, base_offset + batch.count - 1)

    def again(self, batch: ProducerBatch, at_s: float) -> None:
        """Back to its old place, not to be sent before `at_s`."""
        self._leave(batch)
        batch.retry_at_s = at_s
        self._put_back([batch])

    def split(self, batch: ProducerBatch) -> None:
        """Back as two halves."""
        self._leave(batch)
        self.batch_size = max(batch.size // 2, 1)
        self._put_back(list(batch.split()))

    def failed(self, batch: ProducerBatch) -> None:
        """Given up, in flight or waiting."""
        self._leave(batch)
        if batch.sequence is not None:
            self._reset_needed = True

    def _number(self, head: ProducerBatch) -> bool:
        """The head has a sequence number that may be sent now."""
        in_doubt = any(batch.in_doubt and batch.sequence is not None for batch in self.waiting)
        if self._reset_needed and (self.in_flight or (not in_doubt and not self._reset())):
            return False
        if head.sequence is not None:
            return not self.in_flight or head.order < self.in_flight[0].order
        if any(batch.tries > 1 for batch in self.in_flight):
            return False
        if self._identity is ANONYMOUS:
            given = self._identities.current() if self._identities else None
            if given is None:
                return False
            self._identity = given
        head.assign(self._identity, self._next_sequence)
        self._next_sequence = wrap_sequence(self._next_sequence + head.count)
        return True

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
        self._last_acked_offset = -1
        self._reset_needed = False
        for batch in self.waiting:
            batch.assign(ANONYMOUS, None)
        return True

    def _out_of_order(self, batch: ProducerBatch) -> Verdict:
        earliest = min([*self.in_flight, *list(self.waiting)[:1]], key=_order)
        if earliest is not batch:
            batch.in_doubt = batch.in_doubt and batch.halved
            return Verdict.AGAIN
        if batch.halved and batch.in_doubt:
            self._reset_needed = True
            return Verdict.FAILED
        self._surely_not_stored(batch)
        if self._reset_needed:
            return Verdict.AGAIN
        self._reset_needed = True
        return Verdict.FAILED

    def _surely_not_stored(self, batch: ProducerBatch) -> None:
        """The broker lacks what comes before: neither the batch nor any after it is stored under these numbers."""
        for other in (batch, *self.waiting):
            other.in_doubt = other.in_doubt and other.order < batch.order

    def _leave(self, batch: ProducerBatch) -> None:
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
