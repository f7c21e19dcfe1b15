"""`Producer.send_raw`: records given as lists of bytes become record batches without an object for each record.

As for a table (`arrow`), all records are checked before the first one is sent, and batches are made of consecutive
records, as many as `batch.size` holds. Needs no pyarrow.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from ...errors import DeliveryError, KlammError
from ...interfaces.audit import Counted
from ...records import native
from ...records.encode import encode_headers
from ...records.record import Headers
from .batch import EncodedRows, by_window
from .partition_queue import PartitionQueue
from .record_accumulator import RecordAccumulator
from .table_future import TableFuture
from .topic_writer import TopicWriter

if TYPE_CHECKING:  # the twin of the compiled module, which need not be loaded
    from ...records.fallback import Binary

_OVERHEAD: Final = 8
"""The estimated bytes of a record without key and headers, beside its value."""
_APPENDED: Final = 512 * 1024
"""Bytes of batches that are passed to the sender together: it is woken less often, and its requests are larger."""


class OversizedRecordError(DeliveryError):
    """The record at `index` of the given ones is larger than `max.request.size` allows; none was sent."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


def place_in_turn(writer: TopicWriter, chosen: list[int], sizes: Iterable[int]) -> None:
    """Replaces each -1 (a record without a key) by a partition: runs of about one batch go to the partitions in turn,
    and keep their order among the records with keys. `sizes`: the records' bytes."""
    in_turn, left = -1, 0
    for row, size in enumerate(sizes):
        if chosen[row] < 0:
            if left <= 0:
                queue = writer.in_turn()
                in_turn, left = queue.partition.partition, queue.batch_size
            left -= size + _OVERHEAD
            chosen[row] = in_turn


class BatchAppender:
    """Passes encoded batches to the accumulator, several at a time; `future` counts them."""

    def __init__(self, accumulator: RecordAccumulator, future: TableFuture) -> None:
        self._accumulator = accumulator
        self._future = future
        self._made: deque[tuple[PartitionQueue, EncodedRows]] = deque()
        self._bytes = 0

    def add(self, queue: PartitionQueue, encoded: EncodedRows) -> None:
        """Waits while the accumulator is full. Raises `BufferFullError` or `ProducerClosedError`."""
        self._made.append((queue, encoded))
        self._bytes += len(encoded.batch) - encoded.room
        if self._bytes >= _APPENDED:
            self.flush()

    def flush(self) -> None:
        self._bytes = 0
        with self._future.more(self._made):
            self._accumulator.append_rows(self._made, self._future.settled)


@dataclass(frozen=True, slots=True)
class RawRecords:
    """Columns of equal length. `keys` None: none has a key; `timestamps_ms` None: all have the time of sending;
    `headers` are those of every record."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    timestamps_ms: Sequence[int] | None = None
    headers: Headers = ()

    def part(self, first: int, end: int) -> RawRecords:
        """Returns records [first, end)."""
        if (first, end) == (0, len(self.values)):
            return self
        keys, stamps = self.keys, self.timestamps_ms
        return RawRecords(
            self.values[first:end],
            None if keys is None else keys[first:end],
            None if stamps is None else stamps[first:end],
            self.headers,
        )

    def take(self, rows: Sequence[int]) -> RawRecords:
        keys, stamps = self.keys, self.timestamps_ms
        return RawRecords(
            [self.values[row] for row in rows],
            None if keys is None else [keys[row] for row in rows],
            None if stamps is None else [stamps[row] for row in rows],
            self.headers,
        )


class ColumnSender:
    """Sends the lists of one producer. Thread-safe, as its parts are. `largest` is the most bytes of one record;
    `window_ms` the audit's window, if there is an audit.
    """

    def __init__(self, accumulator: RecordAccumulator, largest: int, window_ms: int | None) -> None:
        self._accumulator = accumulator
        self._largest = largest
        self._window_ms = window_ms

    def send(self, writer: TopicWriter, records: RawRecords, partition: int | None) -> TableFuture:
        """Sends the records; see `Producer.send_raw`."""
        self._check_sizes(writer, records)
        shares = list(self._shares(writer, records, partition))
        future = TableFuture(writer.topic)
        try:
            for queue, share in shares:
                self._send(writer, queue, share, future)
        except KlammError as error:  # the buffer stayed full, or the producer was closed
            future.complete(error)
        else:
            future.complete()
        return future

    def _check_sizes(self, writer: TopicWriter, records: RawRecords) -> None:
        around = len(encode_headers(records.headers))
        largest = self._largest - writer.mark_size - around
        if _longest(records.values) + _longest(records.keys or ()) <= largest:
            return
        keys = records.keys or [None] * len(records.values)
        for index, (key, value) in enumerate(zip(keys, records.values, strict=True)):
            size = len(key or b"") + len(value or b"")
            if size > largest:
                raise OversizedRecordError(
                    index,
                    f"topic {writer.topic!r}: a record of about {size + around} bytes is larger than max.request.size "
                    "allows; raise it, and max.message.bytes of the topic",
                )

    @staticmethod
    def _shares(
        writer: TopicWriter, records: RawRecords, partition: int | None
    ) -> Iterator[tuple[PartitionQueue | None, RawRecords]]:
        """Yields the records by partition; partition None means any."""
        keys = records.keys
        if partition is not None:
            yield writer.queue(None, None, partition, 0), records
            return
        if writer.chooses:
            given = keys or [None] * len(records.values)
            chosen = [
                writer.queue(k, v, None, 0).partition.partition for k, v in zip(given, records.values, strict=True)
            ]
        elif keys is None:
            yield None, records
            return
        else:
            chosen = array("i", native.partitions(_binary(keys), len(keys), writer.partitions)).tolist()
            if -1 in chosen:
                place_in_turn(writer, chosen, (len(value or b"") for value in records.values))
        rows_of: dict[int, list[int]] = {}
        for row, number in enumerate(chosen):
            rows_of.setdefault(number, []).append(row)
        for number, rows in sorted(rows_of.items()):
            yield writer.queue(None, None, number, 0), records.take(rows)

    def _send(
        self, writer: TopicWriter, queue: PartitionQueue | None, records: RawRecords, future: TableFuture
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        keys = None if records.keys is None else _binary(records.keys)
        values = _binary(records.values)
        stamps = None if records.timestamps_ms is None else array("q", records.timestamps_ms).tobytes()
        headers = encode_headers(records.headers)
        count, room = len(records.values), writer.mark_size
        appender = BatchAppender(self._accumulator, future)
        first = 0
        while first < count:
            target = queue or writer.in_turn()
            batch, end, base, latest = native.encode_columns(
                keys, values, stamps, now_ms, b"", headers, first, count, target.batch_size, room
            )
            counted = self._counted(records, first, end, now_ms) if writer.audited else ()
            appender.add(target, EncodedRows(batch, end - first, base, latest, counted, room))
            first = end
        appender.flush()

    def _counted(self, records: RawRecords, first: int, end: int, now_ms: int) -> Counted:
        """Returns the audit's counts of records [first, end)."""
        if self._window_ms is None:
            return ()
        values = list(records.values[first:end])
        keys: list[bytes | None] = [None] * len(values) if records.keys is None else list(records.keys[first:end])
        stamps = [now_ms] * len(values) if records.timestamps_ms is None else records.timestamps_ms[first:end]
        runs = native.tally(array("q", stamps).tobytes(), native.sizes(keys, values), self._window_ms)
        return by_window(runs)


def _binary(items: Sequence[bytes | None]) -> Binary:
    """Returns a binary column as `native.encode_columns` takes it."""
    bitmap = None
    if None in items:
        bits = "".join(["0" if item is None else "1" for item in reversed(items)])
        bitmap = int(bits, 2).to_bytes((len(items) + 7) // 8, "little")
    filled = items if bitmap is None else [item or b"" for item in items]
    offsets = array("q", accumulate(map(len, filled), initial=0))  # type: ignore[arg-type]  # no None is left
    return bitmap, offsets, b"".join(filled), 0, 8  # type: ignore[arg-type]


def _longest(items: Sequence[bytes | None]) -> int:
    return max(map(len, filter(None, items)), default=0)
