"""The result of `poll_arrow`: a table with the columns of Spark's Kafka source."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from ...errors import CorruptRecordError, KlammError, SchemaError
from ...extras import importing

with importing("poll_arrow", "klamm[arrow]"):
    import pyarrow as pa

from ...records.arrow import HEADERS, TIMESTAMP, arrow_columns, columns_to_arrow
from ...records.codecs import UnsupportedCodecError
from ...records.decode import Columns, RecordArea, read_area
from ...records.header import BatchHeader
from ...records.partition import TopicPartition
from ..typed import TypedValues
from .delivery import BuiltRecords, Converted, Decoding, Read, ReadBatches, Run, whole_batch_at
from .positions import ReadyRecords
from .values import RecordConverter, unreadable

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""Kafka's code in `timestampType` for timestamps set by the broker; 0 is for the producer's."""

EMPTY: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""The columns; `value` has the decoded type if the topic has a serde."""

MAX_ROWS: Final = 131_072
"""The most rows of one table unless the caller gives a limit."""

_MAX_READ: Final = 16 * 1024 * 1024
"""The most bytes of uncompressed records that one read joins."""


class ArrowReader:
    """Reads many batches of a chunk at once, directly into Arrow's buffers. It stops before an unreadable batch or
    another kind of timestamp; the reader `one`, which reads one batch at a time, handles these."""

    def __init__(self, decoding: Decoding, one: Read) -> None:
        self._decoding = decoding
        self._one = one

    def read(self, partition: TopicPartition, data: bytes, at: int, position: int) -> ReadBatches:
        """Reads as `Delivery.read_one` does, but all batches from `at` on."""
        areas, last, end = self._areas(partition, data, at, position)
        if last is None:
            return self._one(partition, data, at, position)
        try:
            columns = arrow_columns(areas, position)
        except CorruptRecordError:
            return self._one(partition, data, at, position)
        after = max(last.next_offset, position)
        return ReadBatches(ReadyRecords(columns, 0, after, last.leader_epoch, last.log_append_time), end)

    def _areas(
        self, partition: TopicPartition, data: bytes, at: int, position: int
    ) -> tuple[list[RecordArea], BatchHeader | None, int]:
        """Returns the batches' records, the last of the batches (None: none can be read), and the position after it.
        Either all of these batches have timestamps set by the broker, or none has."""
        decoding = self._decoding
        areas: list[RecordArea] = []
        last: BatchHeader | None = None
        size = 0
        while size < _MAX_READ and whole_batch_at(data, at):
            header = BatchHeader.parse(data, at)
            if header.is_control or (last is not None and header.log_append_time != last.log_append_time):
                break
            if header.next_offset > position:
                try:
                    area = read_area(data, at, header, decoding.codecs, decoding.max_size, partition)
                except (CorruptRecordError, UnsupportedCodecError):
                    break
                areas.append(area)
                last = header
                size += len(area.data)
            at += header.size
        return areas, last, at


class ArrowConverter:
    """Makes record batches; a serde without an Arrow decoder is called record by record."""

    def __init__(self, values: TypedValues, records: RecordConverter) -> None:
        self._values = values
        self._records = records

    def convert(self, partition: TopicPartition, columns: Columns, log_append_time: bool) -> Converted[pa.RecordBatch]:
        """Converts the records before the first one that cannot be deserialized."""
        batch = columns_to_arrow(columns)
        value, error = batch.column("value"), None
        if self._records.deserializer(partition.topic) is not None:
            value, error = self._decoded(partition, columns, value)
            batch = batch.slice(0, len(value))
        kind = LOG_APPEND_TIME if log_append_time else CREATE_TIME
        return Converted(_columns(partition, batch, value, kind), batch.num_rows, error)

    def _decoded(
        self, partition: TopicPartition, columns: Columns, payloads: pa.Array
    ) -> tuple[pa.Array, KlammError | None]:
        decoder = self._values.arrow_deserializer(partition.topic)
        outcome = None if decoder is None else decoder(payloads)
        if outcome is None:
            converted = self._records.convert(partition, columns)
            value = _inferred(partition.topic, [record.value for record in converted.result])
            return value, converted.error if len(value) == converted.count else None
        value, error = outcome
        if error is not None:  # the per-record reader reports the error and its place
            wrong = columns.part(len(value), len(value) + 1)
            error = self._records.convert(partition, wrong).error or unreadable(partition, wrong.offsets[0], error)
        return value, error

    def table(self, runs: Sequence[Run[pa.RecordBatch]]) -> BuiltRecords[pa.Table]:
        """Makes a table of runs of one topic.

        Batches written with different schemas may differ in their values' type: fields that one lacks are null; if two
        contradict each other, the table ends before the second.
        """
        batches = [batch for _, batch in runs]
        if not batches:
            return BuiltRecords(EMPTY.empty_table(), 0)
        if all(batch.schema == batches[0].schema for batch in batches):
            return BuiltRecords(pa.Table.from_batches(batches), len(batches))
        schema = batches[0].schema
        fitting = 1
        for batch in batches[1:]:
            try:
                schema = pa.unify_schemas([schema, batch.schema], promote_options="permissive")
            except pa.ArrowException:
                break
            fitting += 1
        tables = [pa.Table.from_batches([batch]) for batch in batches[:fitting]]
        return BuiltRecords(pa.concat_tables(tables, promote_options="permissive"), fitting)


def _inferred(topic: str, values: list[Any]) -> pa.Array:
    """Returns an array of the values' own types, up to the first value that has no type in common with those before it.
    Raises `SchemaError` if Arrow has no type for the first.
    """
    try:
        return pa.array(values)
    except pa.ArrowException:
        plain = [_as_arrow_input(value) for value in values]  # Arrow converts no dataclass, and no UUID in a struct
    try:
        return pa.array(plain)
    except pa.ArrowException as error:
        problem = error
    array, fits, fails = None, 0, len(plain)  # if n values form an array, so do fewer
    while fails - fits > 1:
        tried = min(2 * fits or 1, (fits + fails) // 2)
        try:
            array, fits = pa.array(plain[:tried]), tried
        except pa.ArrowException as error:
            problem, fails = error, tried
    if array is None:
        raise SchemaError(f"topic {topic}: no column can hold the value, poll can return it: {problem}") from problem
    return array


def _as_arrow_input(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _as_arrow_input(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_arrow_input(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _as_arrow_input(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _columns(partition: TopicPartition, batch: pa.RecordBatch, value: pa.Array, kind: int) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = {
        "key": batch.column("key"),
        "value": value,
        "topic": _constant(partition.topic, pa.string(), rows),
        "partition": _constant(partition.partition, pa.int32(), rows),
        "offset": batch.column("offset"),
        "timestamp": batch.column("timestamp"),
        "timestampType": _constant(kind, pa.int32(), rows),
        "headers": batch.column("headers"),
    }
    return pa.RecordBatch.from_pydict(columns)


@lru_cache(maxsize=1024)
def _repeated(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def _constant(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    """Returns an array of one repeated value; a cached array is sliced while it is long enough."""
    room = 1 << max(rows - 1, 0).bit_length()
    return _repeated(value, kind, room)[:rows]
