"""`df.write.format("klamm")` and `writeStream`: rows become records, each once (see `writing`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.errors import ConfigError, KlammError
from klamm.core.faults import fault_point
from klamm.core.interfaces.codec import Codec
from klamm.core.records.codecs import UnsupportedCodecError

from ..options import CLIENT_ID, REGISTRY_OPTIONS, Typing, bootstrap_of, count_of, known_options, names_of, typing_of
from .claims import TaskIdentity
from .cluster import connect
from .typed import RegisteredSchemas, TypedStructs
from .writing import PlainValues, Sending, TaskSink, Values

OPTIONS: Final = (
    "kafka.bootstrap.servers",
    "bootstrap.servers",
    "topic",
    "kafka.client.id",
    "kafka.compression.type",
    "kafka.delivery.timeout.ms",
    "klamm.plugins",
    "klamm.typed",
    "klamm.envelope",
    *REGISTRY_OPTIONS,
    "checkpointLocation",  # Spark's own, which it passes on
    "queryName",
)
DELIVERY_TIMEOUT_MS: Final = 120_000
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's local property with the number of the micro-batch, set for its tasks."""
RUN_ID: Final = "spark.jobGroup.id"
"""Spark's local property with the id of the query's run, which is new with each start."""
_BYTES: Final = (BinaryType, StringType, NullType)
_COLUMNS: Final[Mapping[str, tuple[str, tuple[type[DataType], ...]]]] = {
    "topic": ("text", (StringType,)),
    "key": ("bytes or text", _BYTES),
    "value": ("bytes or text", _BYTES),
    "partition": ("int", (IntegerType,)),
    "timestamp": ("timestamp", (TimestampType,)),
    "headers": ("array<struct<key: string, value: binary>>", (ArrayType,)),
}


@dataclass(frozen=True)
class SinkOptions:
    """The options of the sink. Without a `topic`, each row's column names it."""

    bootstrap: str
    topic: str | None
    client_id: str
    compression: str
    delivery_timeout_s: float
    plugins: tuple[str, ...]
    typing: Typing | None = None


@dataclass
class TaskWritten(WriterCommitMessage):
    """The numbers of rows that a task stored, and of those that it found stored by an earlier attempt."""

    written: int
    found: int


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parses the options. Raises `ConfigError` in one line."""
    values = known_options(given, OPTIONS, "sink")
    return SinkOptions(
        bootstrap=bootstrap_of(values, "sink"),
        topic=values.get("topic"),
        client_id=values.get("kafka.client.id", CLIENT_ID),
        compression=values.get("kafka.compression.type", "none").strip().lower(),
        delivery_timeout_s=(count_of(values, "kafka.delivery.timeout.ms", "sink") or DELIVERY_TIMEOUT_MS) / 1000,
        plugins=names_of(values.get("klamm.plugins", "")),
        typing=typing_of(values, "sink"),
    )


def sink_options(given: Mapping[str, str], columns: StructType) -> SinkOptions:
    """Parses the options and checks the columns. Also raises `ConfigError` for a column that the sink does not know, or
    that has another type.
    """
    options = parse_sink_options(given)
    for field in columns:
        if field.name not in _COLUMNS:
            raise ConfigError(f"klamm sink: there is no column {field.name!r} to write; it takes {', '.join(_COLUMNS)}")
        what, kinds = _COLUMNS[field.name]
        if field.name == "value" and options.typing is not None:
            what, kinds = "a struct of the topic's schema (klamm.typed)", (StructType,)
        if not isinstance(field.dataType, kinds) or (field.name == "headers" and not _is_pairs(field.dataType)):
            raise ConfigError(f"klamm sink: column {field.name} is {field.dataType.simpleString()}; it takes {what}")
    if "value" not in columns.names:
        raise ConfigError(f"klamm sink: needs a column value; there are {', '.join(columns.names)}")
    if options.topic is None and "topic" not in columns.names:
        raise ConfigError("klamm sink: needs the option topic, or a column topic")
    return options


def _is_pairs(kind: DataType) -> bool:
    """Returns True for the type of headers, as in the source."""
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(pair, StructType) or pair.names != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, StringType) and isinstance(pair["value"].dataType, BinaryType)


class KlammWriter(DataSourceArrowWriter):
    """One `df.write`. A retried task stores nothing twice; a write that is started again is a new write."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._writer = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        identity = TaskIdentity(self._writer, 0, _task().partitionId(), run=self._writer)
        return write_task(self._options, identity, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        self._forget()

    def _forget(self) -> None:
        """Deletes the register, which would expire like any group's offsets. The claims remain: an attempt that
        Spark has abandoned may still run."""
        with suppress(KlammError), connect(self._options.bootstrap, (), self._options.client_id) as client:
            client.delete_group(TaskIdentity(self._writer, 0, 0).group)


class KlammStreamWriter(DataSourceStreamArrowWriter):
    """A query's sink. Spark gives a micro-batch that it repeats the same number, and the query keeps its id with its
    checkpoint: by these an attempt finds the claims of an earlier one.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise KlammError(
                "klamm sink: Spark names no query and micro-batch for this task; start it with writeStream"
            )
        run = task.getLocalProperty(RUN_ID) or ""
        return write_task(self._options, TaskIdentity(query, int(batch), task.partitionId(), run), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 - Spark's
        """Called when all rows are stored; Spark then records the micro-batch as done."""
        fault_point("sink.commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leaves the stored rows: the next attempt of the micro-batch finds them."""


def _task() -> TaskContext:
    found = TaskContext.get()
    if found is None:
        raise KlammError("klamm sink: rows can be written only in Spark's tasks")
    return found


def write_task(options: SinkOptions, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Runs one attempt of a task."""
    with connect(options.bootstrap, options.plugins, options.client_id) as client:
        sending = Sending(_codec(client, options), time.time_ns() // 1_000_000, options.delivery_timeout_s)
        values: Values = PlainValues()
        if options.typing is not None:
            values = TypedStructs(RegisteredSchemas(client, options.typing, options.plugins))
        sink = TaskSink(client, identity, values, sending)
        written, found = sink.write(batches, options.topic)
    fault_point("sink.written")
    return TaskWritten(written, found)


def _codec(client: ClusterClient, options: SinkOptions) -> Codec | None:
    try:
        codec = client.codecs.by_name(options.compression)
    except UnsupportedCodecError as error:
        raise ConfigError(f"klamm sink: kafka.compression.type: {error}") from error
    return codec if codec.codec_id else None
