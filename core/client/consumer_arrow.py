"""What `poll_arrow` hands out: a table with the columns of Spark's Kafka source."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from klamm.core.errors import ConfigError, KlammError, SchemaError

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    raise ConfigError("poll_arrow needs pyarrow, which is not installed: `pip install 'klamm[arrow]'`") from error

from klamm.core.client.consumer_delivery import Converted
from klamm.core.client.consumer_values import RecordConverter
from klamm.core.client.typed import TypedValues
from klamm.core.records.arrow import HEADERS, TIMESTAMP, columns_to_arrow
from klamm.core.records.decode import RecordColumns
from klamm.core.records.partition import TopicPartition

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
"""`timestampType`, by Kafka's codes: the timestamp is the producer's, or the broker's."""

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
"""The columns; `value` is of the decoded type where the topic has a serde."""

ArrowDecoder = Callable[[pa.Array], pa.Array]
"""Payloads (binary) to values; what a serde may offer as `arrow_deserializer(topic)`."""


class ArrowConverter:
    """Makes record batches; a serde without an Arrow decoder of its own is asked record by record."""

    def __init__(self, values: TypedValues, records: RecordConverter) -> None:
        self._values = values
        self._records = records

    def convert(
        self, partition: TopicPartition, columns: RecordColumns, log_append_time: bool
    ) -> Converted[pa.RecordBatch]:
        """Those before the first one that cannot be deserialized."""
        batch = columns_to_arrow(columns)
        value, error = batch.column("value"), None
        decoder = self._decoder(partition.topic)
        if decoder is not None:
            try:
                value = decoder(value)
            except KlammError:
                decoder = None  # which record it is, the other way finds out
        if decoder is None and self._records.deserializer(partition.topic) is not None:
            converted = self._records.convert(partition, columns)
            error = converted.error
            value = _inferred(partition.topic, [record.value for record in converted.result])
            batch = batch.slice(0, converted.count)
        kind = LOG_APPEND_TIME if log_append_time else CREATE_TIME
        return Converted(_columns(partition, batch, value, kind), batch.num_rows, error)

    def _decoder(self, topic: str) -> ArrowDecoder | None:
        serde: Any = self._values.serde(topic)
        make = getattr(serde, "arrow_deserializer", None)
        return None if make is None else make(topic)

    def table(self, runs: Iterable[tuple[TopicPartition, pa.RecordBatch]]) -> pa.Table:
        """Of runs of one topic. Batches written with different schemas may differ in their value's type: fields that
        one lacks are null; `SchemaError` where they contradict each other."""
        tables = [pa.Table.from_batches([batch]) for _, batch in runs]
        try:
            return pa.concat_tables(tables, promote_options="permissive") if tables else EMPTY.empty_table()
        except pa.ArrowException as error:
            raise SchemaError(f"values of different types cannot be one table: {error}") from error


def _inferred(topic: str, values: list[Any]) -> pa.Array:
    """An array of the values' own types; `SchemaError` where they have none in common."""
    try:
        return pa.array(values)
    except pa.ArrowException:
        pass  # Arrow knows no dataclass, and no UUID in a struct
    try:
        return pa.array([_plain(value) for value in values])
    except pa.ArrowException as error:
        raise SchemaError(f"topic {topic}: the values cannot be one column, poll can hand them out: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _columns(partition: TopicPartition, batch: pa.RecordBatch, value: pa.Array, kind: int) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = {
        "key": batch.column("key"),
        "value": value,
        "topic": pa.repeat(pa.scalar(partition.topic), rows),
        "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), rows),
        "offset": batch.column("offset"),
        "timestamp": batch.column("timestamp"),
        "timestampType": pa.repeat(pa.scalar(kind, pa.int32()), rows),
        "headers": batch.column("headers"),
    }
    return pa.RecordBatch.from_pydict(columns)
