"""Counts of batches that are taken as the broker appends them, when their bytes were just checked and are in the cache
of the processor. Without it the broker tier reads each batch again a second later, which costs several times as much.

Rules:

- A count is a *span*: what consecutive appends [begin, end) of one partition and leader epoch hold. Within a leader
  epoch the leader's log is not truncated, so that a span stays true as long as its epoch is the partition's.
- A batch that is not counted here (compressed, appended by a worker thread, invalid, a retry) ends a span. The tier
  reads from the log what lies between two spans, and everything if there are none: the log is the truth, spans are a
  cache of its counts.
- `take` ends the span that grows, so that one whose records are not committed yet is taken later, whole.
- A partition has at most `MAX_SPANS` spans, each of at most `MAX_CELLS` counts; beyond that they are dropped. All
  partitions have about `MAX_HELD` counts together; beyond that batches are not counted here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from klamm.core.records.decode import RecordArea
from klamm.core.records.header import CODEC_MASK, CONTROL, HEADER, HEADER_SIZE, TRANSACTIONAL
from klamm.plugin import CorruptRecordError, TopicPartition

from . import batch_counts
from .batch_counts import BatchCounter, Cells, add_cells

MAX_SPANS: Final = 8
MAX_HELD: Final = 200_000
"""The most counts of all spans together: some 60 MB. A batch of 200 KB may hold 20,000, and the tier may be unable
to publish for a while."""
NOT_COUNTED: Final = CODEC_MASK | CONTROL | TRANSACTIONAL
"""Attributes of batches that the tier counts from the log."""


@dataclass(slots=True)
class CountedSpan:
    """The counts of offsets [begin, end). `growing`: the next batch is added to it."""

    leader_epoch: int
    begin: int
    end: int
    cells: Cells = field(default_factory=dict)
    growing: bool = True


class AppendCounts:
    """The spans of each partition that is followed. `appended` is called on the event loop, the rest from the tier's
    thread.
    """

    def __init__(self, window_ms: int) -> None:
        self._counter = BatchCounter(window_ms)
        self._lock = threading.Lock()
        self._spans: dict[TopicPartition, deque[CountedSpan]] = {}
        self._held = 0
        """The number of counts in all spans."""

    def follow(self, partitions: Iterable[TopicPartition]) -> None:
        """Starts again: earlier counts may be of a deleted topic of this name."""
        with self._lock:
            for partition in partitions:
                self._drop(self._spans.pop(partition, ()))
                self._spans[partition] = deque()

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for partition in partitions:
                self._drop(self._spans.pop(partition, ()))

    def appended(
        self,
        partition: TopicPartition,
        batch: memoryview,
        base_offset: int,
        leader_epoch: int,
        log_append_time_ms: int,
        /,
    ) -> None:
        """See `klamm.core.interfaces.service.AppendListener`."""
        spans = self._spans.get(partition)
        if spans is None:
            return
        fields = HEADER.unpack_from(batch)
        attributes, last_delta, base_timestamp, max_timestamp, records = *fields[5:9], fields[12]
        cells: Cells | None = None
        if not attributes & NOT_COUNTED and self._held < MAX_HELD:
            fixed = log_append_time_ms >= 0
            stamp = log_append_time_ms if fixed else base_timestamp
            area = RecordArea(batch[HEADER_SIZE:], records, base_offset, last_delta, stamp, fixed)
            try:
                cells = self._counter.count(partition, area, max_timestamp, base_offset, stored=True)
            except CorruptRecordError:  # the tier reports it when it reads the records
                cells = None
        with self._lock:
            if cells is None:
                if spans:
                    spans[-1].growing = False
                return
            span = self._growing(spans, leader_epoch, base_offset, len(cells))
            span.end = base_offset + last_delta + 1
            self._held -= len(span.cells)
            add_cells(span.cells, cells)
            self._held += len(span.cells)

    def _drop(self, spans: Iterable[CountedSpan]) -> None:
        self._held -= sum(len(span.cells) for span in spans)

    def _growing(self, spans: deque[CountedSpan], leader_epoch: int, base_offset: int, cells: int) -> CountedSpan:
        """Returns the span to which a batch at `base_offset` is added; a new one if the last span does not end
        there."""
        last = spans[-1] if spans else None
        if (
            last is not None
            and last.growing
            and last.end == base_offset
            and last.leader_epoch == leader_epoch
            and len(last.cells) + cells <= batch_counts.MAX_CELLS
        ):
            return last
        if len(spans) >= MAX_SPANS:
            self._drop(spans)
            spans.clear()
        span = CountedSpan(leader_epoch, base_offset, base_offset)
        spans.append(span)
        return span

    def take(self, partition: TopicPartition, leader_epoch: int, position: int, end: int) -> CountedSpan | None:
        """Returns the span that begins at `position`, if all of it is committed."""
        with self._lock:
            spans = self._spans.get(partition)
            if not spans:
                return None
            spans[-1].growing = False
            while spans and (spans[0].leader_epoch < leader_epoch or spans[0].begin < position):
                self._drop((spans.popleft(),))
            found = spans[0] if spans else None
            if found is None or (found.leader_epoch, found.begin) != (leader_epoch, position):
                return None
            if found.end > end:
                return None
            self._drop((spans.popleft(),))
            return found

    def give_back(self, partition: TopicPartition, span: CountedSpan) -> None:
        with self._lock:
            if partition in self._spans:
                self._spans[partition].appendleft(span)
                self._held += len(span.cells)

    def next_begin(self, partition: TopicPartition) -> int | None:
        """Returns the start of the first span; None if there is none. Up to that offset the tier reads the log."""
        with self._lock:
            spans = self._spans.get(partition)
            return spans[0].begin if spans else None
