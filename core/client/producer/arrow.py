"""`Producer.send_arrow`: the rows of a table become record batches without an object for each row.

All errors in the rows are found before the first one is sent. Then batches are made of consecutive rows, as many as
`batch.size` holds, and passed to the accumulator as they are: sequence numbers, retries, memory and time limits are
those of records that are sent one by one.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...errors import DeliveryError, KlammError, SchemaError
from ...extras import importing

__all__ = ["Making", "Rows", "TableSender", "buffers", "by_partition", "check_sizes", "read_rows"]

with importing("send_arrow", "klamm[arrow]"):
    import pyarrow as pa
    import pyarrow.compute as pc

from ...interfaces.audit import Counted
from ...interfaces.serde import ArrowSerializer, Serializer
from ...records import native
from ...records.encode import MAX_RECORD_OVERHEAD, RecordTuple, encode_headers
from ...records.record import LAST_TIMESTAMP_MS, Headers
from ..typed import TypedValues
from .batch import EncodedRows
from .columns import BatchAppender, place_in_turn
from .deliveries import DeliveryListeners
from .partition_queue import PartitionQueue
from .record_accumulator import RecordAccumulator
from .table_future import TableFuture
from .topic_writer import TopicWriter

if TYPE_CHECKING:  # the twin of the compiled module, which need not be loaded
    from ...records.fallback import Binary

_KINDS: Final = "bytes or text"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one partition, or of any, in the form that `native.encode_columns` takes. `timestamps` None: all
    `now_ms`. `headers` are lists of (name, value), None if no row has any.
    """

    keys: pa.Array | None
    values: pa.Array
    timestamps: pa.Array | None
    prefix: bytes
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.values)

    def take(self, indices: pa.Array) -> Rows:
        others = (self.keys, self.timestamps, self.headers)
        keys, stamps, headers = (None if c is None else c.take(indices) for c in others)
        return Rows(keys, self.values.take(indices), stamps, self.prefix, headers)

    def records(self, now_ms: int) -> Iterator[RecordTuple]:
        """Yields the records one by one."""
        nothing = [None] * len(self)
        stamps = [now_ms] * len(self) if self.timestamps is None else self.timestamps.to_pylist()
        keys = nothing if self.keys is None else self.keys.to_pylist()
        headers = nothing if self.headers is None else self.headers.to_pylist()
        for stamp, key, value, pairs in zip(stamps, keys, self.values.to_pylist(), headers, strict=True):
            named = tuple((pair["key"], pair["value"]) for pair in pairs or ())
            yield stamp, key, None if value is None else self.prefix + value, named


def read_rows(
    topic: str,
    table: pa.Table | pa.RecordBatch,
    key: str | None,
    timestamp: str | None,
    serialize: Serializer,
    columnar: ArrowSerializer | None,
    typed: bool,
) -> list[Rows]:
    """Returns the table's rows, one `Rows` for each of its chunks. Raises `SchemaError`, which names the first row and
    column that is wrong. Without `columnar`, `serialize` is called row by row.
    """
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise SchemaError(f"topic {topic}: send_arrow takes a pyarrow Table or RecordBatch, not {type(table).__name__}")
    key, timestamp = _named(topic, table, key, "key"), _named(topic, table, timestamp, "timestamp")
    _check_columns(topic, table, key, timestamp, typed)
    found, first = [], 0
    for chunk in table.to_batches():
        if chunk.num_rows:
            prefix, values = _values(topic, chunk, first, (key, timestamp), serialize, columnar, typed)
            keys = None if key is None else _keys(topic, chunk.column(key), key)
            stamps = None if timestamp is None else _stamps(topic, chunk.column(timestamp), timestamp, first)
            found.append(Rows(keys, values, stamps, prefix))
            first += chunk.num_rows
    return found


def _named(topic: str, table: pa.Table, name: str | None, default: str) -> str | None:
    """Returns the requested column's name; by default the usual name if there is a `value` column beside it."""
    if name is None:
        return default if default in table.column_names and "value" in table.column_names else None
    if table.column_names.count(name) != 1:
        there = ", ".join(table.column_names) or "none"
        raise SchemaError(f"topic {topic}: there is no one column {name!r} for the {default}; columns: {there}")
    return name


def _check_columns(topic: str, table: pa.Table, key: str | None, timestamp: str | None, typed: bool) -> None:
    names = table.column_names
    if len(set(names)) < len(names):
        raise SchemaError(f"topic {topic}: the table has two columns of one name: {', '.join(names)}")
    if "value" in names:
        others = sorted(set(names) - {"value", key, timestamp} - {None})
        if others and not typed:
            raise SchemaError(f"topic {topic}: records are made of value, key and timestamp; what is {others[0]!r}?")
    elif not typed:
        raise SchemaError(f"topic {topic}: the table needs a column 'value' of {_KINDS}; it has {', '.join(names)}")


def _values(
    topic: str,
    chunk: pa.RecordBatch,
    first: int,
    apart: tuple[str | None, str | None],
    serialize: Serializer,
    columnar: ArrowSerializer | None,
    typed: bool,
) -> tuple[bytes, pa.Array]:
    if not typed:
        return b"", _binary(topic, chunk.column("value"), "value")
    wrapped = "value" in chunk.schema.names and set(chunk.schema.names) <= {"value", *apart}
    if wrapped and not pa.types.is_struct(chunk.column("value").type):
        wrapped = False
    rows = chunk.column("value") if wrapped else chunk.to_struct_array()
    if columnar is not None:
        payloads = columnar.payloads(rows)
        if payloads is not None:
            return columnar.prefix, payloads
    values = _python_values(topic, rows, first, columnar)
    return b"", pa.array([_one(topic, value, first + i, serialize) for i, value in enumerate(values)], pa.binary())


def _python_values(topic: str, rows: pa.Array, first: int, columnar: ArrowSerializer | None) -> Iterable[Any]:
    if columnar is None:
        return (row.as_py(maps_as_pydicts="strict") for row in rows)
    try:
        return columnar.values(rows)
    except SchemaError as error:
        for number in range(len(rows)):
            try:
                columnar.values(rows[number : number + 1])
            except SchemaError as reason:
                raise SchemaError(f"row {first + number}: topic {topic}: {reason}") from error
        raise


def _one(topic: str, value: Any, number: int, serialize: Serializer) -> bytes | None:
    try:
        return serialize(value)
    except SchemaError as error:
        raise SchemaError(f"row {number}: {error}") from error
    except Exception as error:  # a serde is a plugin and may raise anything
        raise SchemaError(f"row {number}: topic {topic}: the value cannot be serialized: {error!r}") from error


def _binary(topic: str, column: pa.Array, name: str) -> pa.Array:
    """Returns the column as (large) binary, without a copy if it is binary or text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _binary(topic, column.dictionary_decode(), name)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.view(pa.binary() if pa.types.is_string(kind) else pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind) or kind in (pa.binary_view(), pa.string_view()):
        return column.cast(pa.binary())
    raise SchemaError(f"topic {topic}: column {name} is {kind}; it takes {_KINDS}")


def _keys(topic: str, column: pa.Array, name: str) -> pa.Array:
    """Returns the keys as `Producer.send` takes them: bytes, text, or whole numbers in decimal digits."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    try:
        return _binary(topic, column, name)
    except SchemaError as error:
        raise SchemaError(f"topic {topic}: column {name} is {column.type}; a key is bytes, text or a number") from error


def _stamps(topic: str, column: pa.Array, name: str, first: int) -> pa.Array:
    """Returns the column in milliseconds since 1970."""
    if pa.types.is_timestamp(column.type):
        column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise SchemaError(f"topic {topic}: column {name} is {column.type}; it takes timestamps, or milliseconds")
    stamps = column.cast(pa.int64())
    wrong = pc.fill_null(pc.or_(pc.less(stamps, -1), pc.greater(stamps, LAST_TIMESTAMP_MS)), True)
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        raise SchemaError(
            f"topic {topic}: row {first + row} of column {name}: {column[row].as_py()!r} is no time of a record (up to "
            "the year 9999, or -1 for none)"
        )
    return stamps


def check_sizes(stretches: Sequence[Rows], largest: int) -> tuple[int, int] | None:
    """Returns the first row (and its bytes) that is larger than `largest`; None if all fit."""
    first = 0
    for rows in stretches:
        sizes = _sizes(rows.keys, rows.values, len(rows.prefix))
        if pc.max(sizes).as_py() > largest:
            row = pc.index(pc.greater(sizes, largest), True).as_py()
            return first + row, sizes[row].as_py()
        first += len(rows)
    return None


def by_partition(rows: Rows, partition_of: Sequence[int] | bytes) -> Iterator[tuple[int, Rows]]:
    """Yields (partition, its rows in their order), given each row's partition."""
    raw = partition_of if isinstance(partition_of, bytes) else pa.array(partition_of, pa.int32()).buffers()[1]
    chosen = pa.Array.from_buffers(pa.int32(), len(rows), [None, pa.py_buffer(raw)])
    order = pc.array_sort_indices(chosen)  # stable
    first = 0
    for found in sorted(pc.value_counts(chosen).to_pylist(), key=lambda one: one["values"]):
        count = found["counts"]
        yield found["values"], rows.take(order.slice(first, count))
        first += count


@dataclass(frozen=True, slots=True)
class Making:
    """The settings by which rows become batches: `now_ms` for rows without a time, `window_ms` if the audit counts
    them, and `room`, the bytes reserved in front for its headers (`BatchAudit.room`). `headers` are those of every
    row; rows that have headers of their own have only these."""

    now_ms: int
    window_ms: int | None
    room: int = 0
    headers: Headers = ()

    def batches(self, rows: Rows, batch_size: int) -> Iterator[EncodedRows]:
        """Yields all rows in batches of up to `batch_size` bytes."""
        if rows.headers is not None:
            yield from self._one_by_one(rows, batch_size)
            return
        keys, values = None if rows.keys is None else buffers(rows.keys), buffers(rows.values)
        stamps = None if rows.timestamps is None else _numbers(rows.timestamps)
        counting = self._counting(rows)
        headers = encode_headers(self.headers)
        first = 0
        while first < len(rows):
            batch, end, base, latest = native.encode_columns(
                keys, values, stamps, self.now_ms, rows.prefix, headers, first, len(rows), batch_size, self.room,
            )  # fmt: skip
            yield EncodedRows(batch, end - first, base, latest, counting(first, end), self.room)
            first = end

    def _one_by_one(self, rows: Rows, batch_size: int) -> Iterator[EncodedRows]:
        """Yields batches of rows that have headers of their own."""
        counting = self._counting(rows)
        taken: list[RecordTuple] = []
        size = first = 0
        for record in rows.records(self.now_ms):
            _, key, value, headers = record
            more = len(encode_headers(headers)) + len(key or b"") + len(value or b"") + MAX_RECORD_OVERHEAD
            if taken and size + more > batch_size:
                yield self._encoded(taken, counting(first, first + len(taken)))
                first, taken, size = first + len(taken), [], 0
            taken.append(record)
            size += more
        if taken:
            yield self._encoded(taken, counting(first, first + len(taken)))

    def _encoded(self, records: list[RecordTuple], counted: Counted) -> EncodedRows:
        batch, base, latest, _ = native.encode_records(records, self.room)
        return EncodedRows(batch, len(records), base, latest, counted, self.room)

    def _counting(self, rows: Rows) -> Callable[[int, int], Counted]:
        """Returns a function that counts rows [first, end) as the audit counts records. Values that can be computed for
        all rows at once are computed here, since a table makes many batches.
        """
        window_ms, now_ms = self.window_ms, self.now_ms
        if window_ms is None:
            return lambda *_: ()
        if rows.timestamps is None:
            totals = [_totals(rows.values, len(rows.prefix))]
            if rows.keys is not None:
                totals.append(_totals(rows.keys, 0))
            start = now_ms - now_ms % window_ms  # the same for all tables of a window, so that marks can be cached
            return lambda first, end: ((start, end - first, sum(total(first, end) for total in totals)),)
        stamps, sizes = _numbers(rows.timestamps), _numbers(_sizes(rows.keys, rows.values, len(rows.prefix)))

        def counted(first: int, end: int) -> Counted:
            found: dict[int, tuple[int, int]] = {}
            for start, count, size in native.tally(stamps[8 * first : 8 * end], sizes[8 * first : 8 * end], window_ms):
                records, before = found.get(start, (0, 0))
                found[start] = records + count, before + size
            return tuple((start, records, size) for start, (records, size) in found.items())

        return counted


def _totals(column: pa.Array, prefix: int) -> Callable[[int, int], int]:
    """Returns a function for the bytes of rows [first, end), where each value that is not null has `prefix` more
    bytes.
    """
    if column.null_count:
        sizes = _sizes(None, column, prefix)
        return lambda first, end: int(pc.sum(sizes[first:end]).as_py())
    at, width = column.offset, 8 if pa.types.is_large_binary(column.type) else 4
    raw = memoryview(column.buffers()[1])[: width * (at + len(column) + 1)]
    ends = raw.cast("B").cast("q" if width == 8 else "i")
    return lambda first, end: ends[at + end] - ends[at + first] + prefix * (end - first)


def _sizes(keys: pa.Array | None, values: pa.Array, prefix: int) -> pa.Array:
    """Returns the bytes of key and value of each row."""
    sizes = pc.fill_null(pc.add(pc.binary_length(values).cast(pa.int64()), prefix), 0)
    return sizes if keys is None else pc.add(sizes, pc.fill_null(pc.binary_length(keys).cast(pa.int64()), 0))


def buffers(column: pa.Array) -> Binary:
    """Returns a binary array's own buffers."""
    bitmap, offsets, data = column.buffers()
    width = 8 if pa.types.is_large_binary(column.type) else 4
    return bitmap, offsets, b"" if data is None else data, column.offset, width


def _numbers(stamps: pa.Array) -> memoryview:
    return memoryview(stamps.buffers()[1])[8 * stamps.offset : 8 * (stamps.offset + len(stamps))]


class TableSender:
    """Sends the tables of one producer. Thread-safe, as its parts are."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        listeners: DeliveryListeners,
        values: TypedValues,
        largest: int,
        window_ms: int | None,
    ) -> None:
        """`largest` is the most bytes of one record; `window_ms` the audit's window, if there is an audit."""
        self._accumulator = accumulator
        self._listeners = listeners
        self._values = values
        self._largest = largest
        self._window_ms = window_ms

    def send(
        self,
        writer: TopicWriter,
        table: pa.Table | pa.RecordBatch,
        key: str | None,
        partition: int | None,
        timestamp: str | None,
    ) -> TableFuture:
        """Sends the table; see `Producer.send_arrow`."""
        topic = writer.topic
        typed = self._values.serde(topic) is not None
        columnar = self._values.arrow_serializer(topic) if typed else None
        stretches = read_rows(topic, table, key, timestamp, writer.serialize, columnar, typed)
        too_large = check_sizes(stretches, self._largest - writer.mark_size - len(encode_headers(writer.headers)))
        if too_large is not None:
            row, size = too_large
            raise DeliveryError(
                f"topic {topic!r}: row {row} makes a record of about {size} bytes, which max.request.size does not "
                "allow; raise it, and max.message.bytes of the topic"
            )
        shares = [share for rows in stretches for share in self._shares(writer, rows, partition)]
        future = TableFuture(topic)
        window_ms = self._window_ms if writer.audited else None
        making = Making(time.time_ns() // 1_000_000, window_ms, writer.mark_size, writer.headers)
        try:
            for queue, rows in shares:
                self._send_rows(writer, queue, rows, making, future)
        except KlammError as error:  # the buffer stayed full, or the producer was closed
            future.complete(error)
        else:
            future.complete()
        return future

    def _shares(
        self, writer: TopicWriter, rows: Rows, partition: int | None
    ) -> Iterator[tuple[PartitionQueue | None, Rows]]:
        """Yields the rows by partition; partition None means any."""
        if partition is not None:
            yield writer.queue(None, None, partition, 0), rows
        elif writer.chooses:
            keys = [None] * len(rows) if rows.keys is None else rows.keys.to_pylist()
            values = [None if value is None else rows.prefix + value for value in rows.values.to_pylist()]
            chosen = [writer.queue(k, v, None, 0).partition.partition for k, v in zip(keys, values, strict=True)]
            for number, share in by_partition(rows, chosen):
                yield writer.queue(None, None, number, 0), share
        elif rows.keys is None or rows.keys.null_count == len(rows):
            yield None, rows
        else:
            by_key = native.partitions(buffers(rows.keys), len(rows), writer.partitions)
            if rows.keys.null_count:
                chosen = array("i", by_key).tolist()
                place_in_turn(writer, chosen, _sizes(None, rows.values, len(rows.prefix)).to_pylist())
            for number, share in by_partition(rows, chosen if rows.keys.null_count else by_key):
                yield writer.queue(None, None, number, 0), share

    def _send_rows(
        self, writer: TopicWriter, queue: PartitionQueue | None, rows: Rows, making: Making, future: TableFuture
    ) -> None:
        target = queue or writer.in_turn()
        appender = BatchAppender(self._accumulator, future)
        for encoded in making.batches(rows, target.batch_size):
            appender.add(target, encoded)
            if queue is None:
                target = writer.in_turn()
        appender.flush()
