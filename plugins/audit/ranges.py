"""The consumer, broker and hadoop tiers: what an offset range [from, to) of a partition held.

Rules:

- `from` is the committed offset. It advances only when an event for [from, to) is stored *and* the commit of `to`
  succeeded; until then the records are kept, and the next event begins at `from` again and replaces the one before.
- Records are kept apart until then (offset, timestamp, size: 24 bytes each) because a commit may lie anywhere in what
  was handed out. Past `max_records` of them the range is `lossy`: its counts are unknown, and the event says so.
- An offset is summed once. What is read again below the last commit makes an event marked `replay`, which no sum
  includes; what is read again above it was counted already.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

from klamm.core.errors import DeliveryError
from klamm.core.records.partition import TopicPartition
from klamm.core.seams.audit import AuditIdentity, Publish, RangeCount
from klamm.plugins.audit.event import AuditEvent, EventSource, EventWindow
from klamm.plugins.audit.windows import tally

MAX_RECORDS: Final = 2_000_000
"""Records of one auditor that wait for a commit: 48 MB."""


class _Records:
    """Records in the order of their offsets."""

    def __init__(self) -> None:
        self.offsets = array("q")
        self.timestamps = array("q")
        self.sizes = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, offsets: Sequence[int], timestamps: Sequence[int], sizes: Sequence[int]) -> None:
        self.offsets.extend(offsets)
        self.timestamps.extend(timestamps)
        self.sizes.extend(sizes)

    def fill(self, offsets: Sequence[int], timestamps: Sequence[int], sizes: Sequence[int]) -> None:
        """Those of them that are not there yet."""
        there = set(self.offsets)
        new = [row for row in zip(offsets, timestamps, sizes, strict=True) if row[0] not in there]
        if new:
            rows = sorted([*zip(self.offsets, self.timestamps, self.sizes, strict=True), *new])
            self.offsets, self.timestamps, self.sizes = (array("q", column) for column in zip(*rows, strict=True))

    def drop(self, below: int) -> None:
        end = bisect_left(self.offsets, below)
        del self.offsets[:end], self.timestamps[:end], self.sizes[:end]

    def windows(self, below: int, window_ms: int) -> tuple[EventWindow, ...]:
        end = bisect_left(self.offsets, below)
        found = tally(self.timestamps[:end], self.sizes[:end], window_ms)
        return tuple(EventWindow(start, *cell) for start, cell in sorted(found.items()))


class _Partition:
    """`begin` is the last committed offset, `counted` one past the last record counted, `published` the end of the
    event stored last, `replay` where records are read again from (None: nowhere); records below `lossy` were not all
    counted."""

    def __init__(self, committed: int) -> None:
        self.begin = self.counted = self.published = committed
        self.records = _Records()
        self.replay: int | None = None
        self.replayed = _Records()
        self.lossy = committed

    def add(self, offsets: Sequence[int], timestamps: Sequence[int], sizes: Sequence[int]) -> None:
        if not offsets:
            return
        old, again = bisect_left(offsets, self.begin), bisect_left(offsets, self.counted)
        if old and self.replay is not None:
            self.replayed.extend(offsets[:old], timestamps[:old], sizes[:old])
        if old < again:  # after a seek back above the commit: what a seek forward had skipped is new
            self.records.fill(offsets[old:again], timestamps[old:again], sizes[old:again])
        if again < len(offsets):
            self.records.extend(offsets[again:], timestamps[again:], sizes[again:])
            self.counted = offsets[-1] + 1

    def advance(self, to: int) -> None:
        self.records.drop(to)
        self.begin = to
        self.counted = max(self.counted, to)

    def end_replay(self, to: int) -> None:
        self.replayed.drop(to)
        self.replay = to if to < self.begin else None


class KlammRangeAudit:
    """See the module's rules. `clock_ms` gives the time of events; `store_timeout_s` bounds the wait for the broker."""

    def __init__(
        self,
        identity: AuditIdentity,
        publish: Publish,
        *,
        window_ms: int,
        clock_ms: Callable[[], int],
        store_timeout_s: float = 30.0,
        max_records: int = MAX_RECORDS,
    ) -> None:
        self._source = EventSource(identity, window_ms, clock_ms)
        self._publish = publish
        self._store_timeout_s = store_timeout_s
        self._max_records = max_records
        self._partitions: dict[TopicPartition, _Partition] = {}

    def start(self, partition: TopicPartition, committed: int) -> None:
        self._partitions[partition] = _Partition(committed)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        state = self._partitions.get(partition)
        if state is not None and offset < state.begin:
            state.replay, state.replayed = offset, _Records()

    def count(
        self, partition: TopicPartition, offsets: Sequence[int], timestamps_ms: Sequence[int], sizes: Sequence[int]
    ) -> None:
        state = self._partitions.get(partition)
        if state is None:
            return
        state.add(offsets, timestamps_ms, sizes)
        if sum(len(p.records) + len(p.replayed) for p in self._partitions.values()) > self._max_records:
            self._give_up(state)

    def uncountable(self, partition: TopicPartition, to: int) -> None:
        """What lies between the last record counted and `to` cannot be read (a corrupt batch): the event says so."""
        state = self._partitions[partition]
        state.counted = state.lossy = to

    def publish(self, to: Mapping[TopicPartition, int]) -> None:
        """`DeliveryError` when an event could not be stored; what was counted is kept for the next try."""
        events: list[AuditEvent] = []
        for partition, end in to.items():
            state = self._partitions.get(partition)
            if state is not None:
                events += self._events(partition, state, end)
        self._store(events)
        for partition, end in to.items():
            state = self._partitions.get(partition)
            if state is not None:
                state.published = end

    def committed(self, to: Mapping[TopicPartition, int]) -> None:
        for partition, end in to.items():
            state = self._partitions.get(partition)
            if state is None or state.published != end:
                continue  # its event is not stored: the next one has to cover this range too
            if state.replay is not None:
                state.end_replay(end)
            if end > state.begin:
                state.advance(end)

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._partitions.pop(partition, None)

    def publish_ranges(self, ranges: Iterable[RangeCount]) -> None:
        """`DeliveryError` when an event could not be stored: call again with the same ranges."""
        events = []
        for held in ranges:
            if held.from_offset == held.to_offset:
                continue  # its key is that of the next range, whose counts it must not replace
            windows = (EventWindow(w.start_ms, w.count, w.bytes) for w in held.windows)
            events.append(self._source.event(held.partition, (held.from_offset, held.to_offset), windows))
        self._store(events)

    def close(self) -> None:
        self._partitions.clear()

    def _give_up(self, state: _Partition) -> None:
        state.records, state.replayed, state.lossy = _Records(), _Records(), state.counted

    def _events(self, partition: TopicPartition, state: _Partition, to: int) -> list[AuditEvent]:
        """At most one for what is read again (below the last commit) and one for what is new."""
        events, window_ms = [], self._source.window_ms
        if state.replay is not None and min(to, state.begin) > state.replay:
            end = min(to, state.begin)
            windows = state.replayed.windows(end, window_ms)
            events.append(self._source.event(partition, (state.replay, end), windows, replay=True))
        if to > state.begin:
            windows, lossy = state.records.windows(to, window_ms), state.begin < state.lossy
            events.append(self._source.event(partition, (state.begin, to), windows, lossy=lossy))
        return events

    def _store(self, events: Sequence[AuditEvent]) -> None:
        stored: list[Future[None]] = []
        try:
            stored += [self._publish(*event.encode()) for event in events]
            for future in stored:
                future.result(self._store_timeout_s)
        except Exception as error:  # whatever the publisher meets: the counts are kept
            raise DeliveryError(f"audit events of {self._source.who.owner} were not stored: {error}") from error
