"""The outcome of a table that was sent: one future for all of its batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sized
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from .record_future import BatchOutcome


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Records [base_offset, base_offset + count) of a partition; `base_offset` is -1 if the broker did not report it
    (acks=0, or a duplicate of a stored batch).
    """

    partition: int
    base_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """The result of an acknowledged table: `records` of them, in `ranges` ordered by partition and offset."""

    topic: str
    records: int
    ranges: tuple[StoredRange, ...]


class TableFuture(Future[TableMetadata]):
    """Done once every batch is settled: returns all ranges, or raises the first `DeliveryError`; `metadata` then has
    the ranges that were stored all the same. It cannot be cancelled. Callbacks run on the producer's sender thread
    and must be quick."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._tally = threading.Lock()
        self._open = 1  # counts the table itself until all of it is passed to the sender
        self._ranges: list[StoredRange] = []
        self._error: Exception | None = None
        self.set_running_or_notify_cancel()

    @property
    def metadata(self) -> TableMetadata:
        """Returns the ranges that are known to be stored by now."""
        with self._tally:
            ranges = tuple(sorted(self._ranges, key=lambda r: (r.partition, r.base_offset)))
        return TableMetadata(self._topic, sum(r.count for r in ranges), ranges)

    @contextmanager
    def more(self, batches: Sized) -> Iterator[None]:
        """A context in which batches are passed to the sender: each will be settled, except those that are left when
        the block raises."""
        with self._tally:
            self._open += len(batches)
        try:
            yield
        except BaseException:
            self._less(len(batches))
            raise

    def settled(self, outcome: BatchOutcome) -> None:
        """Records the outcome of one expected batch."""
        with self._tally:
            for part in outcome.parts():
                if part.error is None:
                    found = StoredRange(outcome.partition.partition, part.base_offset, part.end - part.first)
                    self._ranges.append(found)
                else:
                    self._error = self._error or part.error
        self._less()

    def complete(self, error: Exception | None = None) -> None:
        """Declares that no more batches follow; `error`: why the rest of the table was not sent."""
        with self._tally:
            self._error = self._error or error
        self._less()

    def _less(self, count: int = 1) -> None:
        with self._tally:
            self._open -= count
            if self._open:
                return
        if self._error is not None:
            self.set_exception(self._error)
        else:
            self.set_result(self.metadata)
