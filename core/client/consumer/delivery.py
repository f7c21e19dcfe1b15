"""Turns buffered batches into the application's records: one `Delivery` for `poll`, or one for each stream.

A partition belongs to one delivery, whose thread alone decodes it, outside of the lock.

A take has two steps. The first reads, converts and builds the result, and moves no position. The second moves, under
the lock, the positions of the partitions in the result, unless they were moved or revoked meanwhile. If the first
step raises, the next take starts with the same records. A revocation waits for a take that is between its steps.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, TypeVar

from ...errors import CorruptRecordError, KlammError
from ...records.codecs import CodecTable, UnsupportedCodecError
from ...records.decode import Columns, RecordColumns, decode_columns
from ...records.header import HEADER_SIZE, BatchHeader
from ...records.partition import TopicPartition
from ..errors import ClientClosedError, UnreadableBatchError
from .positions import Positions, ReadyRecords, TopicPartitionState

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Converted(Generic[T]):
    """The result of converting the first `count` records of some columns. `error`: why the next record could not be
    converted. With fewer records than the columns have and no error, the next record needs a result of its own."""

    result: T
    count: int
    error: KlammError | None = None


Convert = Callable[[TopicPartition, Columns, bool], Converted[T]]
"""Converts one partition's records; the flag is True if the broker set their timestamps (LogAppendTime)."""
Prepare = Callable[[TopicPartition, Columns], Callable[[], None] | None]
"""Takes a run of records and returns the function to be called when they are returned, or None."""
Run = tuple[TopicPartition, T]
"""The conversion's result for consecutive records of one partition."""


@dataclass(frozen=True)
class BuiltRecords(Generic[R]):
    """The result of a take, and the number of runs in it; the other runs are left for the next take."""

    result: R
    count: int


Build = Callable[[list[Run[T]]], BuiltRecords[R]]
"""Makes the result of runs; from no runs, the result for the case that no record arrived in time."""


@dataclass(frozen=True)
class Decoding:
    """The settings of decoding. `max_size` bounds the decompressed size of one batch."""

    codecs: CodecTable
    max_size: int


class ReadBatches(NamedTuple):
    """The records read from a chunk, and the position of its next batch."""

    ready: ReadyRecords
    at: int


Read = Callable[[TopicPartition, bytes, int, int], ReadBatches]
"""`(partition, data, at, position)`: reads the next batch, or batches, of a partition's chunk from the byte `at` on,
and returns their records from `position` on. Raises `UnreadableBatchError`, which names the batch."""


class _Place(NamedTuple):
    """A place in a partition's buffers. The first `chunks` chunks are read, and the next one up to the byte `at`;
    `ready` has the records of that part that are decoded and not yet returned. `epoch`: the leader epoch of the
    record before `position`."""

    position: int
    epoch: int
    ready: ReadyRecords | None
    chunks: int = 0
    at: int = 0


@dataclass(slots=True, eq=False)
class _Cursor:
    """The progress of a take in one partition, whose position does not move until the take is settled. `runs`: those
    made so far; `stopped`: the next record cannot be converted, or not together with the last one."""

    state: TopicPartitionState
    version: int
    place: _Place
    runs: int = 0
    stopped: bool = False

    @property
    def valid(self) -> bool:
        """Returns True if the partition was neither moved nor revoked since. Call it under the lock."""
        return self.state.version == self.version


@dataclass(slots=True, eq=False)
class _Taken(Generic[T]):
    """A run, its number of records, the function to call when it is returned, and the place after it."""

    cursor: _Cursor
    result: T
    records: int
    handed_out: Callable[[], None] | None
    place: _Place

    @property
    def run(self) -> Run[T]:
        return self.cursor.state.partition, self.result


@dataclass(slots=True, eq=False)
class _Batch(Generic[T]):
    """One take."""

    cursors: list[_Cursor] = field(default_factory=list)
    runs: list[_Taken[T]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Move:
    """The change that settling a take made in a partition."""

    state: TopicPartitionState
    version: int
    position: int | None
    epoch: int


class Delivery:
    """`mine` selects the partitions that it delivers. `prepare` is called with each run of records; the function
    that it returns is called when the run is delivered."""

    def __init__(
        self,
        positions: Positions,
        decoding: Decoding,
        mine: Callable[[TopicPartitionState], bool],
        prepare: Prepare,
    ) -> None:
        self._positions = positions
        self._decoding = decoding
        self._mine = mine
        self._prepare = prepare
        self._turn = itertools.count()
        self._moves: list[_Move] = []

    def come_back(self) -> None:
        """Marks the records returned to the application as processed."""
        self._positions.come_back(self)

    def take(
        self,
        limit: int,
        timeout_s: float | None,
        convert: Convert[T],
        build: Build[T, R],
        *,
        one_topic: bool = False,
        read: Read | None = None,
    ) -> R:
        """Returns the result that `build` makes of at most `limit` records (with `one_topic`, of one topic).

        Waits up to `timeout_s` (None: without limit) for the first record, then builds a result of none. `read`: by
        default batch by batch, as lists.

        Raises the error that comes first in order instead of records: an unreadable batch or record, or an error in
        the background. Whatever is raised, by `convert` and `build` too, positions stay before the records that were
        not returned. `build` is called again, with fewer runs, if partitions were revoked meanwhile.
        """
        self._moves = []
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            batch = _Batch[T]()
            try:
                self._read(batch, limit, convert, one_topic, read or self.read_one)
                built = self._deliver(batch, build)
            except BaseException:
                self._abandon(batch)
                raise
            if built is not None:
                return built.result
            if not self._wait(deadline):
                return build([]).result

    def take_back(self) -> None:
        """Undoes the last take, whose result did not reach the application: the next take starts with the same
        records."""
        with self._positions.changing():
            for moved in self._moves:
                state = moved.state
                if state.version == moved.version:
                    state.position, state.position_epoch = moved.position, moved.epoch
                    state.refetch()
        self._moves = []

    def _wait(self, deadline: float | None) -> bool:
        """Waits until records may be available; returns False at the deadline."""
        with self._positions.lock:
            while True:
                if self._positions.closed:
                    raise ClientClosedError("the consumer is closed")
                self._positions.check()
                if self._deliverable():
                    return True
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._positions.lock.wait(left)

    def _deliverable(self) -> list[TopicPartitionState]:
        return [s for s in self._positions.states.values() if s.deliverable and self._mine(s)]

    # The first step: nothing moves

    def _read(self, batch: _Batch[T], limit: int, convert: Convert[T], one_topic: bool, read: Read) -> None:
        with self._positions.lock:
            if self._positions.closed:
                raise ClientClosedError("the consumer is closed")
            self._positions.check()
            states = self._deliverable()
        start = next(self._turn)
        for i in range(len(states)):
            state = states[(start + i) % len(states)]
            if one_topic and batch.runs and batch.runs[0].run[0].topic != state.partition.topic:
                continue
            cursor = self._cursor(state)
            if cursor is None:
                continue
            batch.cursors.append(cursor)
            try:
                while limit > 0 and (taken := self._next_run(cursor, limit, convert, read)) is not None:
                    batch.runs.append(taken)
                    limit -= taken.records
                    if cursor.stopped:
                        return
            except KlammError as error:
                if not batch.runs:
                    self._raised(cursor, error)
                    raise
                break  # return the good records first; the error is raised by the next call
            if limit <= 0:
                break

    def _raised(self, cursor: _Cursor, error: KlammError) -> None:
        with self._positions.changing():  # another chunk may be buffered now
            if cursor.valid:
                cursor.state.raised(error)

    def _cursor(self, state: TopicPartitionState) -> _Cursor | None:
        """Returns a cursor; None if no record of the partition may be returned now."""
        with self._positions.lock:
            if not state.deliverable or state.position is None:
                return None
            at = state.chunks[0].at if state.chunks else 0
            return _Cursor(state, state.version, _Place(state.position, state.position_epoch, state.ready, at=at))

    def _next_run(self, cursor: _Cursor, limit: int, convert: Convert[T], read: Read) -> _Taken[T] | None:
        """Returns the next records of one partition, from one read; None if there are none now."""
        while (ready := cursor.place.ready or self._decode(cursor, read)) is not None:
            offsets = ready.columns.offsets
            stop = min(len(offsets), ready.index + limit)
            epoch = max(cursor.place.epoch, ready.epoch)
            if ready.index == stop:  # a batch without wanted records: compacted away, or a control batch
                cursor.place = _Place(ready.end, epoch, None, cursor.place.chunks, cursor.place.at)
                continue
            part = ready.columns.part(ready.index, stop)
            converted = convert(cursor.state.partition, part, ready.log_append_time)
            if not converted.count:
                if converted.error is not None:
                    raise converted.error
                return None
            index = ready.index + converted.count
            through = index == len(offsets)
            cursor.place = _Place(
                ready.end if through else offsets[index],
                epoch,
                None if through else replace(ready, index=index),
                cursor.place.chunks,
                cursor.place.at,
            )
            made = part if index == stop else part.part(0, converted.count)
            cursor.runs += 1
            cursor.stopped = index < stop
            # Prepared now, while the records are still in the processor's cache.
            handed_out = self._prepare(cursor.state.partition, made)
            return _Taken(cursor, converted.result, len(made.offsets), handed_out, cursor.place)
        return None

    def _decode(self, cursor: _Cursor, read: Read) -> ReadyRecords | None:
        """Decodes the next part of the chunks; returns None at their end, or if the partition was moved or revoked."""
        state = cursor.state
        while True:
            place = cursor.place
            with self._positions.lock:
                if not (cursor.valid and state.deliverable and place.chunks < len(state.chunks)):
                    return None
                chunk = state.chunks[place.chunks]
            if chunk.error is not None:
                raise chunk.error
            if whole_batch_at(chunk.data, place.at):
                reading = read(state.partition, chunk.data, place.at, place.position)
                cursor.place = _Place(place.position, place.epoch, reading.ready, place.chunks, reading.at)
                return reading.ready
            with self._positions.changing():  # another chunk may be buffered already
                if cursor.valid:
                    state.reading = place.chunks + 1
            cursor.place = place._replace(chunks=place.chunks + 1, at=0)

    # The second step

    def _deliver(self, batch: _Batch[T], build: Build[T, R]) -> BuiltRecords[R] | None:
        """Returns the built result; None if there is nothing to return."""
        self._hold(batch)
        while True:
            built = build([taken.run for taken in batch.runs]) if batch.runs else None
            handed = batch.runs[: built.count] if built is not None else []
            for taken in handed:
                if taken.handed_out is not None:
                    taken.handed_out()
                    taken.handed_out = None
            if self._settle(batch, handed):
                return built

    def _hold(self, batch: _Batch[T]) -> None:
        """Makes revocations that start from now on wait for this take; leaves out partitions whose revocation has
        started."""
        with self._positions.lock:
            batch.runs = [t for t in batch.runs if t.cursor.valid and t.cursor.state.deliverable]
            self._positions.hold(batch, {t.cursor.state.partition for t in batch.runs})

    def _settle(self, batch: _Batch[T], handed: list[_Taken[T]]) -> bool:
        """Moves the positions past the returned records. Moves nothing and returns False if any of their partitions was
        revoked or moved."""
        with self._positions.lock:
            if self._positions.closed:
                raise ClientClosedError("the consumer is closed")
            if not all(taken.cursor.valid for taken in handed):
                batch.runs = [taken for taken in batch.runs if taken.cursor.valid]
                return False
            for cursor in batch.cursors:
                own = [taken for taken in handed if taken.cursor is cursor]
                if cursor.valid and (own or not cursor.runs):
                    # The data after the last run holds no records.
                    self._move(cursor, cursor.place if len(own) == cursor.runs else own[-1].place, bool(own))
            self._positions.release(batch)
            return True

    def _move(self, cursor: _Cursor, place: _Place, records: bool) -> None:
        """Moves the position; call it under the lock."""
        state = cursor.state
        done = state.confirmed == state.position
        if records:
            self._moves.append(_Move(state, state.version, state.position, state.position_epoch))
            self._positions.hold(self, {state.partition})
        for _ in range(place.chunks):
            state.chunks.popleft()
        if state.chunks:
            state.chunks[0].at = place.at
        state.ready, state.reading = place.ready, 0
        state.position, state.position_epoch = place.position, place.epoch
        if done and not records:
            state.confirm()

    def _abandon(self, batch: _Batch[T]) -> None:
        """Marks what was read as buffered again, so that revocations need not wait for it."""
        with self._positions.changing():
            self._positions.release(batch)
            for cursor in batch.cursors:
                if cursor.valid:
                    cursor.state.reading = 0

    def read_one(self, partition: TopicPartition, data: bytes, at: int, position: int) -> ReadBatches:
        """Reads the next batch, as lists."""
        header = BatchHeader.parse(data, at)
        end = at + header.size
        if header.is_control or header.next_offset <= position:
            empty = RecordColumns([], [], [], [], [])
            return ReadBatches(ReadyRecords(empty, 0, max(header.next_offset, position)), end)
        decoding = self._decoding
        try:
            columns = decode_columns(data, at, header, decoding.codecs, decoding.max_size, partition)
        except (CorruptRecordError, UnsupportedCodecError) as error:
            offset = max(position, header.base_offset)
            raise UnreadableBatchError(str(error), partition, offset, header.next_offset) from error
        index = bisect_left(columns.offsets, position)
        ready = ReadyRecords(columns, index, header.next_offset, header.leader_epoch, header.log_append_time)
        return ReadBatches(ready, end)


def whole_batch_at(data: bytes, at: int) -> bool:
    """Returns True if a whole batch starts there; False at the end, or if a broker cut the last batch off at its
    limit (Kafka does, even inside the header)."""
    left = len(data) - at
    return left >= HEADER_SIZE and left >= BatchHeader.parse(data, at).size
