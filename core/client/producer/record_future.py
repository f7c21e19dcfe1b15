"""Futures of records at the cost of one future per batch.

A `concurrent.futures.Future` takes about 5 µs to make (a lock and a condition each). Here the lock and the condition
belong to the batch (`BatchOutcome`), and each record has a light view of it (`RecordFuture`), a true `Future`:
`result`, `exception`, `done`, `add_done_callback`, `concurrent.futures.wait` and `asyncio.wrap_future` work. It
cannot be cancelled. Callbacks run on the producer's sender thread and must be quick.

Rules: every index of a batch is settled exactly once, by `acknowledge` or `fail`, each of which takes a range of
indexes (a batch that was too large is settled in parts). A settled index never changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ...records.partition import TopicPartition
from ...records.record import RecordMetadata

__all__ = ["BatchOutcome", "RecordFuture", "failed_future"]

_log = logging.getLogger(__name__)
_RUNNING, _FINISHED = "RUNNING", "FINISHED"  # the names that concurrent.futures.wait compares with


@dataclass(frozen=True, slots=True)
class _Part:
    """Records [first, end) of the batch: the offset of `first` and the time that the broker set (-1: none), or the
    error."""

    first: int
    end: int
    base_offset: int
    log_append_time_ms: int
    error: Exception | None


class BatchOutcome:
    """The outcome of the records of one batch."""

    __slots__ = ("_parts", "_watched", "awaited", "condition", "count", "finished", "partition", "settled")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.condition = threading.Condition()
        self.count = 0
        """Records in the batch; grows until it is sent."""
        self.awaited = False
        """True if a flush waits for it. A batch that has only audit events is not waited for."""
        self.settled = 0
        self.finished: Callable[[BatchOutcome], None] | None = None
        """Called once all records are settled."""
        self._parts: list[_Part] = []
        self._watched: list[RecordFuture] = []

    @property
    def complete(self) -> bool:
        return self.settled == self.count

    def acknowledge(self, first: int, end: int, base_offset: int, log_append_time_ms: int = -1) -> None:
        """Records [first, end) are stored; `base_offset` is -1 if their position is not known."""
        self._settle(_Part(first, end, base_offset, log_append_time_ms, None))

    def fail(self, first: int, end: int, error: Exception) -> None:
        self._settle(_Part(first, end, -1, -1, error))

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until all records are settled; returns False when the time is over."""
        with self.condition:
            return self.condition.wait_for(lambda: self.complete, timeout_s)

    def parts(self) -> Sequence[_Part]:
        """Returns the settled parts, in the order of the records."""
        return sorted(self._parts, key=lambda part: part.first)

    def part(self, index: int) -> _Part | None:
        for part in self._parts:
            if part.first <= index < part.end:
                return part
        return None

    def watch(self, future: RecordFuture) -> None:
        """Registers a future with a callback or a waiter; call it with the condition held."""
        self._watched.append(future)

    def _settle(self, part: _Part) -> None:
        with self.condition:
            self._parts.append(part)
            self.settled += part.end - part.first
            due = [future for future in self._watched if part.first <= future.index < part.end]
            self.condition.notify_all()
            complete = self.complete
        for future in due:
            future.notify()
        if complete and self.finished is not None:
            self.finished(self)


class RecordFuture(Future[RecordMetadata]):
    """The view of one record. `Future.__init__` is not called: the batch has the objects that it would create."""

    def __init__(self, outcome: BatchOutcome, index: int, timestamp_ms: int) -> None:
        self._outcome = outcome
        self.index = index
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        return self._outcome.part(self.index) is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Returns the record's position; raises its error, or `TimeoutError` after `timeout` seconds."""
        part = self._wait(timeout)
        if part.error is not None:
            raise part.error
        offset = part.base_offset + self.index - part.first if part.base_offset >= 0 else -1
        stamp = part.log_append_time_ms if part.log_append_time_ms >= 0 else self._timestamp_ms
        partition = self._outcome.partition
        return RecordMetadata(partition.topic, partition.partition, offset, stamp)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._wait(timeout).error

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        with self._outcome.condition:
            if not self.done():
                self._callbacks().append(fn)
                return
        self._run(fn)

    def notify(self) -> None:
        """Wakes `wait` and `as_completed` and runs the callbacks, because the record is settled."""
        with self._outcome.condition:
            waiters = list(self.__dict__.get("_klamm_waiters", ()))
            callbacks = list(self.__dict__.get("_klamm_callbacks", ()))
            self.__dict__.pop("_klamm_callbacks", None)
        failed = self.exception(0) is not None
        for waiter in waiters:
            (waiter.add_exception if failed else waiter.add_result)(self)
        for fn in callbacks:
            self._run(fn)

    def __repr__(self) -> str:
        return f"<RecordFuture {self._outcome.partition} #{self.index} {self._state.lower()}>"

    def _run(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        try:
            fn(self)
        except Exception:
            _log.exception("a callback of %r raised", self)

    def _wait(self, timeout: float | None) -> _Part:
        part = self._outcome.part(self.index)
        if part is not None:
            return part
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._outcome.condition:
            while (part := self._outcome.part(self.index)) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._outcome.condition.wait(left)
        return part

    def _watched(self, name: str) -> list[Any]:
        kept = self.__dict__.get(name)
        if kept is None:
            if not {"_klamm_waiters", "_klamm_callbacks"} & self.__dict__.keys():
                self._outcome.watch(self)
            kept = self.__dict__[name] = []
        return kept

    def _callbacks(self) -> list[Callable[[Future[RecordMetadata]], object]]:
        return self._watched("_klamm_callbacks")

    # What concurrent.futures' own functions (wait, as_completed, Future.cancel) read.

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # an attribute of Future
        return self._outcome.condition

    @property
    def _state(self) -> str:  # type: ignore[override]  # an attribute of Future
        return _FINISHED if self.done() else _RUNNING

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]  # an attribute of Future
        return self._watched("_klamm_waiters")


def failed_future(partition: TopicPartition, error: Exception) -> RecordFuture:
    """Returns the future of a record that was never added to a batch."""
    outcome = BatchOutcome(partition)
    outcome.count = 1
    outcome.fail(0, 1, error)
    return RecordFuture(outcome, 0, -1)
