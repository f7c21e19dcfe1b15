"""The records that wait to be sent: batches by partition, bounded in bytes.

`append` is the producer's hot path: one lock, one tuple, one list append. Records are encoded later, a batch at a time,
on the sender's thread. A batch is ready when it is full, has waited `linger_s`, is to be retried, or when a thread
waits for it: a flush, a close, or a sender of records that found the buffer full.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import KlammError
from ...records.record import Headers
from .batch import EncodedRows, ProducerBatch
from .partition_queue import PartitionQueue
from .record_future import BatchOutcome, RecordFuture

__all__ = [
    "RECORD_OVERHEAD",
    "BufferFullError",
    "Buffering",
    "ProducerClosedError",
    "ReadyCheckResult",
    "RecordAccumulator",
]

RECORD_OVERHEAD = 12
"""Estimated bytes that a record without headers adds to its key and value; a batch's size is an estimate."""


class BufferFullError(KlammError):
    """`buffer.memory` was full for `max.block.ms`: records arrive faster than brokers accept them."""


class ProducerClosedError(KlammError):
    """The producer was closed before the call, or an unexpected error had ended it."""


@dataclass(frozen=True, slots=True)
class Buffering:
    """Times in seconds, sizes in bytes."""

    linger_s: float
    memory: int
    max_block_s: float


@dataclass(frozen=True, slots=True)
class ReadyCheckResult:
    """Partitions with a batch that may be sent now, and the time of the next one (monotonic seconds)."""

    queues: list[PartitionQueue]
    next_s: float


class RecordAccumulator:
    """Thread-safe. `lock` also guards the queues; the sender holds it while it changes them."""

    def __init__(
        self,
        buffering: Buffering,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.Lock()
        self._room = threading.Condition(self.lock)
        self._buffering = buffering
        self._wake = wake
        self._clock = clock
        self._used = 0
        self._waiters = 0
        self._flushes = 0
        self._closed = ""
        """The reason why no record is accepted; empty while records are accepted."""
        self._active: dict[PartitionQueue, None] = {}
        self._incomplete: dict[BatchOutcome, None] = {}

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of records that wait or are in flight."""
        return self._used

    @property
    def idle(self) -> bool:
        """True if everything that was appended is settled."""
        return not self._incomplete

    def append(
        self,
        queue: PartitionQueue,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
        *,
        bounded: bool = True,
    ) -> RecordFuture:
        """Adds a record; `size` is its estimated bytes.

        Waits up to `max_block_s` for free memory, then raises `BufferFullError`. Does not wait if `bounded` is
        False, as for an audit event that must be sent before the records that fill the buffer can be; no flush waits
        for it.
        """
        news = False
        with self.lock:
            if bounded and self._used + size > self._buffering.memory:
                self._wait_for_room(size)
            if self._closed:
                raise ProducerClosedError(f"{self._closed}; nothing can be sent any more")
            batch = queue.open_batch
            if batch is None or batch.size + size > queue.batch_size:
                batch = queue.add_batch(self._clock())
                self._incomplete[batch.outcome] = None
                self._active[queue] = None
                news = True
            records = batch.records
            index = len(records)
            records.append((timestamp_ms, key, value, headers))
            outcome = batch.outcome
            outcome.count = index + 1
            if bounded:
                outcome.awaited = True
            batch.size += size
            self._used += size
            if batch.size >= queue.batch_size:
                batch.close()
                news = True
        if news:
            self._wake()
        return RecordFuture(outcome, index, timestamp_ms)

    def append_rows(
        self, batches: deque[tuple[PartitionQueue, EncodedRows]], finished: Callable[[BatchOutcome], None]
    ) -> None:
        """Adds rows of a table as separate batches; accepted ones are removed from `batches`. Waits for free memory
        as `append` does. `finished` is called once all rows of a batch are settled, on the sender's thread."""
        with self.lock:
            while batches:
                queue, encoded = batches[0]
                size = len(encoded.batch) - encoded.room
                if self._used + size > self._buffering.memory:
                    self._wait_for_room(size)
                if self._closed:
                    raise ProducerClosedError(f"{self._closed}; nothing can be sent any more")
                outcome = queue.add_rows(self._clock(), encoded).outcome
                batches.popleft()
                outcome.finished = finished
                outcome.awaited = True
                self._incomplete[outcome] = None
                self._active[queue] = None
                self._used += size
        self._wake()

    def ready(self, now_s: float) -> ReadyCheckResult:
        queues, next_s = [], float("inf")
        with self.lock:
            hurry = self._hurry()
            for queue in list(self._active):
                if not queue.waiting:
                    if not queue.in_flight:
                        del self._active[queue]
                    continue
                at = self._ready_at(queue.waiting[0], hurry)
                if at <= now_s:
                    queues.append(queue)
                else:
                    next_s = min(next_s, at)
        return ReadyCheckResult(queues, next_s)

    def take(self, queue: PartitionQueue, now_s: float, room: int) -> ProducerBatch | None:
        """Returns the next batch of about `room` bytes or less, which is then in flight; None if none may be sent
        now."""
        with self.lock:
            if not queue.waiting:
                return None
            head = queue.waiting[0]
            if head.size > room or self._ready_at(head, self._hurry()) > now_s:
                return None
            return queue.take(now_s)

    def expired(self, created_before_s: float) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Returns the batches, waiting or in flight, that are older than the given time."""
        with self.lock:
            return [
                (queue, batch)
                for queue in self._active
                if (queue.in_flight and queue.in_flight[0].created_s < created_before_s)
                or (queue.waiting and queue.waiting[0].created_s < created_before_s)
                for batch in (*queue.in_flight, *queue.waiting)
                if batch.created_s < created_before_s
            ]

    def oldest_s(self) -> float:
        """Returns the creation time of the oldest batch; infinite if there is none."""
        with self.lock:
            return min(
                (side[0].created_s for queue in self._active for side in (queue.in_flight, queue.waiting) if side),
                default=float("inf"),
            )

    def release(self, size: int, outcome: BatchOutcome) -> None:
        """Frees the bytes of settled records for others."""
        with self.lock:
            self._used -= size
            if outcome.complete:
                self._incomplete.pop(outcome, None)
            if self._waiters:
                self._room.notify_all()

    def flush(self, timeout_s: float | None) -> int:
        """Sends all waiting records, and waits until they are settled; returns the number of those that are not when
        the time is over. Audit events are sent too, but not waited for."""
        with self.lock:
            pending = [outcome for outcome in self._incomplete if outcome.awaited]
            self._flushes += 1
        try:
            self._wake()
            deadline = None if timeout_s is None else self._clock() + timeout_s
            for outcome in pending:
                outcome.wait(None if deadline is None else max(deadline - self._clock(), 0.0))
            return sum(outcome.count - outcome.settled for outcome in pending)
        finally:
            with self.lock:
                self._flushes -= 1

    def close(self, why: str = "the producer is closed") -> None:
        """Accepts no more records; threads that wait for free memory get an error. `why` is the beginning of its
        message; that of a later call has no effect."""
        with self.lock:
            self._closed = self._closed or why
            self._room.notify_all()
        self._wake()

    def mark_in_doubt(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Marks an abandoned batch: if it is in flight, it may be stored all the same."""
        with self.lock:
            batch.in_doubt = batch.in_doubt or batch in queue.in_flight

    def close_batches(self) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Closes the open batches, and returns all batches that are not settled: their records are final."""
        unsettled = []
        with self.lock:
            for queue in self._active:
                if queue.open_batch is not None:
                    queue.open_batch.close()
                unsettled += [(queue, batch) for batch in (*queue.in_flight, *queue.waiting)]
        return unsettled

    def unsettled(self) -> list[tuple[PartitionQueue, ProducerBatch]]:
        with self.lock:
            return [(queue, batch) for queue in self._active for batch in (*queue.in_flight, *queue.waiting)]

    def _hurry(self) -> bool:
        return bool(self._flushes or self._waiters or self._closed)

    def _ready_at(self, head: ProducerBatch, hurry: bool) -> float:
        if head.attempts:
            return head.retry_at_s
        return 0.0 if hurry or head.closed else head.created_s + self._buffering.linger_s

    def _wait_for_room(self, size: int) -> None:
        """Waits for free memory; call it with the lock held."""
        deadline = self._clock() + self._buffering.max_block_s
        self._waiters += 1
        try:
            while self._used + size > self._buffering.memory and not self._closed:
                left = deadline - self._clock()
                if left <= 0:
                    raise BufferFullError(
                        f"buffer.memory ({self._buffering.memory} bytes) was full for max.block.ms "
                        f"({round(self._buffering.max_block_s * 1000)} ms): records come faster than brokers take them"
                    )
                self._wake()
                self._room.wait(left)
        finally:
            self._waiters -= 1
