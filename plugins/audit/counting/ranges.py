"""The consumer, broker and hadoop tiers: the counts of an offset range [from, to) of a partition.

Rules:

- `from` is the committed offset. It advances only when an event for [from, to) is stored *and* the commit of `to`
  succeeded; until then the records are kept, and the next event begins at `from` again and replaces the one before.
- Records are kept individually until then (offset, timestamp, size: 24 bytes each) because a commit may lie anywhere
  among the returned records. Beyond `max_records` the range is `lossy`: its event marks the counts as unknown. The
  broker tier, which commits only its own position, counts whole windows instead, by source.
- An offset is summed once. Records read again below the last commit are counted in an event marked `replay`, which no
  sum includes; records read again above it are counted already.
- Events carry the topic's id, so that offsets of a re-created topic are distinct, and the owner's epoch, so that a
  suspended owner that lost the partition does not replace its successor's event.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple
from uuid import UUID

from klamm.plugin import AuditIdentity, DeliveryError, Publish, RangeCount, TopicPartition

from ..event import AuditEvent, EventSource, EventWindow
from ..windows import int64_column, tally
from .batch_counts import Cells, add_cells

MAX_RECORDS: Final = 2_000_000
"""The most records of one auditor that wait for a commit: 48 MB."""
PIECE_RECORDS: Final = 4096
"""Pieces with fewer records are copied and joined to the piece before."""


class _Rows(NamedTuple):
    """Records column by column, in the order of their offsets: sequences of one length. The buffers of `timestamps` and
    `sizes` are int64."""

    offsets: Sequence[int]
    timestamps: array[int] | memoryview[int]
    sizes: array[int] | memoryview[int]

    @classmethod
    def of(cls, offsets: Sequence[int], timestamps: Sequence[int], sizes: Sequence[int]) -> _Rows:
        """Returns the rows, without a copy of a column that is an immutable buffer, as Arrow's are."""
        dense = offsets[-1] - offsets[0] == len(offsets) - 1
        numbers = range(offsets[0], offsets[-1] + 1) if dense else int64_column(offsets)
        return cls(numbers, int64_column(timestamps), int64_column(sizes))

    def part(self, first: int, last: int) -> _Rows:
        return _Rows(self.offsets[first:last], self.timestamps[first:last], self.sizes[first:last])

    def below(self, offset: int) -> int:
        """Returns how many of the rows have smaller offsets."""
        return bisect_left(self.offsets, offset)


class _Records:
    """Records in the order of their offsets, in pieces. A large piece is the columns that were counted, not a copy of
    them: copying 24 bytes a record, into arrays that grow, was most of what the audit cost a consumer of Arrow tables.
    Small ones are joined, so that a piece for each record is never kept."""

    def __init__(self) -> None:
        self._pieces: list[_Rows] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, rows: _Rows) -> None:
        count = len(rows.offsets)
        self._count += count
        if count < PIECE_RECORDS:
            last = self._pieces[-1] if self._pieces else None
            if last is None or not isinstance(last.timestamps, array) or len(last.timestamps) >= PIECE_RECORDS:
                last = _Rows(range(rows.offsets[0], rows.offsets[0]), array("q"), array("q"))
                self._pieces.append(last)
            self._pieces[-1] = _joined(last, rows)
        else:
            self._pieces.append(rows)

    def fill(self, rows: _Rows) -> None:
        """Adds the records that it does not contain yet."""
        held = [row for piece in self._pieces for row in zip(*piece, strict=True)]
        there = {row[0] for row in held}
        new = [row for row in zip(*rows, strict=True) if row[0] not in there]
        if new:
            offsets, timestamps, sizes = (array("q", column) for column in zip(*sorted([*held, *new]), strict=True))
            self._pieces = [_Rows(offsets, timestamps, sizes)]
            self._count = len(offsets)

    def drop(self, below: int) -> None:
        gone = 0
        for piece in self._pieces:
            count = piece.below(below)
            self._count -= count
            if count < len(piece.offsets):
                self._pieces[gone] = piece.part(count, len(piece.offsets)) if count else piece
                break
            gone += 1
        del self._pieces[:gone]

    def windows(self, below: int, window_ms: int) -> tuple[EventWindow, ...]:
        found: dict[int, list[int]] = {}
        for piece in self._pieces:
            count = piece.below(below)
            with memoryview(piece.timestamps)[:count] as stamps, memoryview(piece.sizes)[:count] as sizes:
                tally(stamps, sizes, window_ms, found)
            if count < len(piece.offsets):
                break
        return tuple(EventWindow(start, count, size) for start, (count, size) in sorted(found.items()))


def _joined(last: _Rows, more: _Rows) -> _Rows:
    """Returns `last` with the rows of `more` appended; its arrays grow."""
    offsets = last.offsets
    if isinstance(offsets, range) and isinstance(more.offsets, range) and more.offsets.start == offsets.stop:
        offsets = range(offsets.start, more.offsets.stop)
    else:
        offsets = offsets if isinstance(offsets, array) else array("q", offsets)
        offsets.extend(more.offsets)
    for column, added in ((last.timestamps, more.timestamps), (last.sizes, more.sizes)):
        assert isinstance(column, array)
        column.frombytes(memoryview(added).cast("B"))
    return _Rows(offsets, last.timestamps, last.sizes)


def _windows(cells: Cells) -> tuple[EventWindow, ...]:
    return tuple(
        EventWindow(start, records, size, source=source) for (start, source), (records, size) in sorted(cells.items())
    )


class _Lost(NamedTuple):
    """The counts of the records that a mirror has lost, up to offset `to`; `lossy`: not of all of them."""

    to: int
    windows: tuple[EventWindow, ...]
    lossy: bool


class _Partition:
    """The counts of one partition. `begin` is the last committed offset, `counted` one past the last record counted,
    `published` the end of the event stored last, `replay` the offset from which records are read again (None: none);
    records below `lossy` were not all counted. `tells`: an event must report `begin`, even if nothing follows: the
    log was cut there, or the owner starts there. `before`: what it had committed before it was moved there (None: it
    was not); `reset`: no commit is there. `origin`: of a mirror, the id of its topic at the source; `lost`: what was
    counted beyond `begin`, and the mirror has lost since, which is not published yet."""

    def __init__(
        self, committed: int, topic_id: UUID | None, epoch: int, before: int | None, reset: bool, origin: UUID | None
    ) -> None:
        self.topic_id = "" if topic_id is None else str(topic_id)
        self.epoch = epoch
        self.origin = "" if origin is None else str(origin)
        self.begin = self.counted = self.published = committed
        self.records = _Records()
        self.bulk: Cells = {}
        """Records that are counted in bulk; all of them are published together, or none."""
        self.replay: int | None = None
        self.replayed = _Records()
        self.lossy = committed
        self.tells = False
        self.before = before
        self.reset = reset
        self.lost: _Lost | None = None

    def add(self, rows: _Rows) -> None:
        offsets = rows.offsets
        if offsets[0] >= self.counted:  # nearly always: nothing is read again
            self.records.extend(rows)
            self.counted = offsets[-1] + 1
            return
        old, again = bisect_left(offsets, self.begin), bisect_left(offsets, self.counted)
        if old and self.replay is not None:
            self.replayed.extend(rows.part(0, old))
        if old < again:  # after a seek back above the commit: records that a seek forward had skipped are new
            self.records.fill(rows.part(old, again))
        if again < len(offsets):
            self.records.extend(rows.part(again, len(offsets)))
            self.counted = offsets[-1] + 1

    def advance(self, to: int) -> None:
        self.records.drop(to)
        self.bulk.clear()
        self.begin = to
        self.counted = max(self.counted, to)

    def end_replay(self, to: int) -> None:
        self.replayed.drop(to)
        self.replay = to if to < self.begin else None


def range_events(source: EventSource, ranges: Iterable[RangeCount]) -> list[AuditEvent]:
    """Returns the events of counts that were made by another component."""
    events = []
    for held in ranges:
        windows = (EventWindow(w.start_ms, w.count, w.bytes) for w in held.windows)
        span = (held.from_offset, held.to_offset)
        topic_id = "" if held.topic_id is None else str(held.topic_id)
        events.append(source.event(held.partition, span, windows, topic_id=topic_id, load=held.load))
    return events


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
        self._kept_at_most = 0
        """Upper bound of the number of kept records; computed again only when it reaches the limit."""

    def start(
        self,
        partition: TopicPartition,
        committed: int,
        *,
        topic_id: UUID | None = None,
        epoch: int = -1,
        reset: bool = False,
        origin: UUID | None = None,
    ) -> None:
        """As in `RangeAudit`. `origin`: of a mirror, the id of its topic at the source; its events are of tier
        `mirror`."""
        known = self._partitions.get(partition)
        same = known is not None and known.topic_id == ("" if topic_id is None else str(topic_id))
        before = known.begin if known is not None and same else None
        self._partitions[partition] = _Partition(committed, topic_id, epoch, before, reset, origin)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        state = self._partitions.get(partition)
        if state is not None and offset < state.begin:
            state.replay, state.replayed = offset, _Records()

    def count(
        self,
        partition: TopicPartition,
        offsets: Sequence[int],
        timestamps_ms: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        state = self._partitions.get(partition)
        if state is None or not offsets:
            return
        state.add(_Rows.of(offsets, timestamps_ms, sizes))
        self._kept_at_most += len(offsets)
        if self._kept_at_most > self._max_records:
            if self._kept() > self._max_records:
                self._give_up(state)
            self._kept_at_most = self._kept()

    def _kept(self) -> int:
        return sum(len(p.records) + len(p.replayed) for p in self._partitions.values())

    @property
    def window_ms(self) -> int:
        return self._source.window_ms

    def count_windows(self, partition: TopicPartition, to: int, cells: Cells) -> None:
        """Adds records that are counted already, from the last one counted up to `to`. For a tier that commits only the
        offset up to which it has counted.
        """
        state = self._partitions.get(partition)
        if state is None:
            return
        add_cells(state.bulk, cells)
        state.counted = to

    def cells(self, partition: TopicPartition) -> int:
        """Returns how many counts the range has so far, by window and source."""
        state = self._partitions.get(partition)
        return 0 if state is None else len(state.bulk)

    def uncountable(self, partition: TopicPartition, to: int) -> None:
        """Marks the offsets between the last counted record and `to` as unreadable (a corrupt batch); the event reports
        it.
        """
        state = self._partitions[partition]
        state.counted = state.lossy = to

    def cut(self, partition: TopicPartition, *, below: bool = False) -> None:
        """Records that the log was cut at the start of the range. The next event reports it, an empty one if nothing
        follows. `below`: the cut may be below the start, and what was written there instead was deleted; the range is
        then lossy."""
        state = self._partitions[partition]
        state.tells = True
        if below:
            state.lossy = state.begin + 1

    def lost(self, partition: TopicPartition, to: int, cells: Cells, *, lossy: bool) -> None:
        """Records that a mirror's log was cut at the start of the range, and had been counted up to `to`; the next
        event reports it. `cells`: of the records that were cut; `lossy`: not all of them could
        be counted. The caller counts nothing more until that event is published and the start of the range is
        committed, so that no other range of these offsets is published before it, or between two events that report it.
        """
        self._partitions[partition].lost = _Lost(to, _windows(cells), lossy)

    def publish(self, to: Mapping[TopicPartition, int]) -> None:
        """Publishes the counts up to these offsets. Raises `DeliveryError` if an event could not be stored; the counts
        are kept for the next attempt.
        """
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
                state.tells = False
                state.lost = None

    def committed(self, to: Mapping[TopicPartition, int]) -> None:
        for partition, end in to.items():
            state = self._partitions.get(partition)
            if state is None or state.published != end:
                continue  # its event is not stored: the next one must cover this range too
            if state.replay is not None:
                state.end_replay(end)
            if end > state.begin:
                state.advance(end)

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._partitions.pop(partition, None)

    def publish_ranges(self, ranges: Iterable[RangeCount]) -> None:
        """Publishes these ranges. Raises `DeliveryError` if an event could not be stored: call it again with the same
        ranges.
        """
        self._store(range_events(self._source, ranges))

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Publishes, as events without offsets, where the owner starts in these partitions; if it was moved there,
        first what it had committed before. If that is not stored, the next `publish` of a partition reports it."""
        states = {partition: self._partitions[partition] for partition in partitions}
        events = []
        for partition, state in states.items():
            state.tells = True
            if state.before is not None:
                events.append(self._event(partition, state, (state.before, state.before)))
            events.append(self._event(partition, state, (state.begin, state.begin)))
        self._store(events)
        for state in states.values():
            state.tells = False

    def end(self, topics: Iterable[str], why: str, lake: str = "") -> None:
        """Publishes that the owner's, or its lake's, counts of these topics have ended."""
        events = [self._source.event((topic, None), (0, 1), (), final=True, note=why, lake=lake) for topic in topics]
        self._store(events)

    def close(self) -> None:
        self._partitions.clear()

    def _give_up(self, state: _Partition) -> None:
        state.records, state.replayed, state.lossy = _Records(), _Records(), state.counted

    def _events(self, partition: TopicPartition, state: _Partition, to: int) -> list[AuditEvent]:
        """Returns at most one event for records read again (below the last commit) and one for new records, or for
        the start of the range. Or the one of those that a mirror has lost, alone: an event of the range could be stored
        although it is refused, and would count instead of what was counted there."""
        if state.lost is not None:
            to, windows, lossy = state.lost
            return [
                self._source.event(
                    partition, (state.begin, to), windows, topic_id=state.topic_id, epoch=state.epoch, lossy=lossy,
                    origin=state.origin, cut=True,
                )
            ]  # fmt: skip
        events = []
        if state.replay is not None and min(to, state.begin) > state.replay:
            end = min(to, state.begin)
            events.append(self._event(partition, state, (state.replay, end), replay=True))
        if to > state.begin or state.tells:
            events.append(self._event(partition, state, (state.begin, max(to, state.begin))))
        return events

    def _event(
        self, partition: TopicPartition, state: _Partition, span: tuple[int, int], *, replay: bool = False
    ) -> AuditEvent:
        records = state.replayed if replay else state.records
        windows = _windows(state.bulk) or records.windows(span[1], self._source.window_ms)
        lossy = not replay and state.begin < state.lossy
        reset = state.reset and state.tells and span[0] == state.begin
        return self._source.event(
            partition, span, windows, topic_id=state.topic_id, epoch=state.epoch, replay=replay, reset=reset,
            lossy=lossy, origin=state.origin,
        )  # fmt: skip

    def _store(self, events: Sequence[AuditEvent]) -> None:
        stored: list[Future[None]] = []
        try:
            stored += [self._publish(*event.encode()) for event in events]
            for future in stored:
                future.result(self._store_timeout_s)
        except Exception as error:  # after any error of the publisher: the counts are kept
            raise DeliveryError(f"audit events of {self._source.who.owner} were not stored: {error}") from error
