"""From buffered batches to what the application is handed: one `Delivery` for `poll`, or one for each stream.

A partition belongs to one delivery, whose thread alone decodes it, outside of the lock; handing out is done under the
lock, and only if the partition was neither moved nor taken away meanwhile.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

from klamm.core.client.errors import ClientClosedError, UnreadableBatchError
from klamm.core.client.positions import Chunk, PartitionState, Positions, Ready
from klamm.core.errors import CorruptRecordError, KlammError
from klamm.core.records.codecs import CodecTable, UnsupportedCodecError
from klamm.core.records.decode import Columns, RecordColumns, decode_columns
from klamm.core.records.header import HEADER_SIZE, BatchHeader
from klamm.core.records.partition import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True)
class Converted(Generic[T]):
    """What became of the first `count` records of some columns; `error`: why the next one could not be converted."""

    result: T
    count: int
    error: KlammError | None = None


Convert = Callable[[TopicPartition, Columns, bool], Converted[T]]
"""Of one partition's records, and whether their timestamps are the broker's (LogAppendTime)."""
Counted = Callable[[TopicPartition, Columns], None]


@dataclass(frozen=True)
class Decoding:
    """`max_size` bounds one batch, decompressed."""

    codecs: CodecTable
    max_size: int


class Reading(NamedTuple):
    """What was read of a chunk, and where its next batch begins."""

    ready: Ready
    at: int


Read = Callable[[TopicPartition, Chunk, int], Reading]
"""The next batch, or batches, of a chunk of one partition: the records from a position on. `UnreadableBatchError` names
the one that cannot be read."""


class Delivery:
    """`mine` says which partitions it hands out; `counted` is told of each run of records handed out."""

    def __init__(
        self,
        positions: Positions,
        decoding: Decoding,
        mine: Callable[[PartitionState], bool],
        counted: Counted,
    ) -> None:
        self._positions = positions
        self._decoding = decoding
        self._mine = mine
        self._counted = counted
        self._turn = itertools.count()

    def come_back(self) -> None:
        """The application is done with what it was handed."""
        self._positions.come_back(self)

    def take(
        self,
        limit: int,
        timeout_s: float | None,
        convert: Convert[T],
        *,
        one_topic: bool = False,
        read: Read | None = None,
    ) -> list[tuple[TopicPartition, T]]:
        """At most `limit` records (with `one_topic`, of one topic), as runs of one partition; waits for the first of
        them up to `timeout_s` (None: for ever). `read`: by default batch by batch, as lists. Raises what is first in
        line instead of records: an unreadable batch or record, or an error in the background; the position stays before
        it."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            taken = self._take_now(limit, convert, one_topic, read or self.read_one)
            if taken:
                return taken
            if not self._wait(deadline):
                return []

    def _wait(self, deadline: float | None) -> bool:
        """Until there is something to look at; False at the end of the time."""
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

    def _deliverable(self) -> list[PartitionState]:
        return [s for s in self._positions.states.values() if s.deliverable and self._mine(s)]

    def _take_now(self, limit: int, convert: Convert[T], one_topic: bool, read: Read) -> list[tuple[TopicPartition, T]]:
        with self._positions.lock:
            if self._positions.closed:
                raise ClientClosedError("the consumer is closed")
            self._positions.check()
            states = self._deliverable()
        taken: list[tuple[TopicPartition, T]] = []
        start = next(self._turn)
        for i in range(len(states)):
            state = states[(start + i) % len(states)]
            if one_topic and taken and taken[0][0].topic != state.partition.topic:
                continue
            try:
                while limit > 0 and (run := self._run(state, limit, convert, read)) is not None:
                    result, count = run
                    taken.append((state.partition, result))
                    limit -= count
            except KlammError:
                if not taken:
                    raise
                break  # first what is good; the error is the first thing of the next call
            if limit <= 0:
                break
        return taken

    def _run(self, state: PartitionState, limit: int, convert: Convert[T], read: Read) -> tuple[T, int] | None:
        """The next records of one partition, from one reading; None when there are none now."""
        while True:
            with self._positions.lock:
                if not state.deliverable:
                    return None
                version, ready, position = state.version, state.ready, state.position
                chunk = state.chunks[0] if state.chunks else None
            if ready is None:
                if chunk is None or position is None:
                    return None
                ready = self._next(state, version, chunk, position, read)
                if ready is None:
                    continue
            stop = min(len(ready.columns.offsets), ready.index + limit)
            if ready.index < stop:
                part = ready.columns.part(ready.index, stop)
                converted = convert(state.partition, part, ready.log_append_time)
                if not converted.count:
                    if converted.error is not None:
                        raise converted.error
                    return None
                if not self._hand_out(state, version, ready, ready.index + converted.count):
                    return None
                self._counted(state.partition, part.part(0, converted.count) if converted.error else part)
                return converted.result, converted.count
            self._finish(state, version, ready)

    def _hand_out(self, state: PartitionState, version: int, ready: Ready, index: int) -> bool:
        offsets = ready.columns.offsets
        with self._positions.lock:
            if state.version != version or not state.deliverable:
                return False
            state.ready = None if index == len(offsets) else replace(ready, index=index)
            self._positions.hand_out(self, state, ready.end if index == len(offsets) else offsets[index])
            return True

    def _finish(self, state: PartitionState, version: int, ready: Ready) -> None:
        """A batch without records for us (compacted away, a control batch) moves the position all the same."""
        with self._positions.lock:
            if state.version == version:
                state.ready = None
                if state.confirmed == state.position:
                    state.confirmed = ready.end
                state.position = ready.end

    def _next(self, state: PartitionState, version: int, chunk: Chunk, position: int, read: Read) -> Ready | None:
        """Read on in the chunk; None when it is through."""
        if chunk.error is not None:
            raise chunk.error
        if not whole_batch_at(chunk.data, chunk.at):
            with self._positions.changing():
                if state.version == version and state.chunks and state.chunks[0] is chunk:
                    state.chunks.popleft()
            return None
        reading = read(state.partition, chunk, position)
        with self._positions.lock:
            if state.version != version:
                return None
            chunk.at = reading.at
            state.ready = reading.ready
        return reading.ready

    def read_one(self, partition: TopicPartition, chunk: Chunk, position: int) -> Reading:
        """The next batch, as lists."""
        header = BatchHeader.parse(chunk.data, chunk.at)
        at = chunk.at + header.size
        if header.is_control or header.next_offset <= position:
            return Reading(Ready(RecordColumns([], [], [], [], []), 0, max(header.next_offset, position)), at)
        decoding = self._decoding
        try:
            columns = decode_columns(chunk.data, chunk.at, header, decoding.codecs, decoding.max_size, partition)
        except (CorruptRecordError, UnsupportedCodecError) as error:
            offset = max(position, header.base_offset)
            raise UnreadableBatchError(str(error), partition, offset, header.next_offset) from error
        index = bisect_left(columns.offsets, position)
        return Reading(Ready(columns, index, header.next_offset, header.log_append_time), at)


def whole_batch_at(data: bytes, at: int) -> bool:
    """False at the end, and where a broker cut the last batch off at its limit (Kafka does, even inside the header)."""
    left = len(data) - at
    return left >= HEADER_SIZE and left >= BatchHeader.parse(data, at).size


def sizes(columns: Columns) -> Sequence[int]:
    """Key plus value of each record, in bytes."""
    pairs = zip(columns.keys, columns.values, strict=True)
    return [(0 if key is None else len(key)) + (0 if value is None else len(value)) for key, value in pairs]
