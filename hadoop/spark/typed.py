"""`klamm.typed`: values are structs of their topic's schema, in reads and writes; schemas are those registered as
TOPIC-value.

A DataFrame's value has the type of the newest version when the DataFrame is made. Its tasks read with the newest
version that has this type, so that a stream survives a version that is registered while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructType

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.producer.arrow import Rows, read_rows
from klamm.core.errors import ConfigError, SchemaError
from klamm.core.interfaces.coordination import Coordination
from klamm.core.interfaces.envelope import Envelope, HeaderEnvelope, RegisteredSchema
from klamm.core.interfaces.serde import ArrowSerializer, Serializer
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klamm.schemas.avro.model import AvroType
from klamm.schemas.avro.parsing import parse, parse_type
from klamm.schemas.columns.arrowtype import arrow_type
from klamm.schemas.columns.reader import ColumnReader
from klamm.schemas.columns.writer import ColumnWriter
from klamm.schemas.registry.registry import open_registry
from klamm.schemas.registry.subject_schemas import describe
from klamm.schemas.serdes.avro import row_writer

from ..options import SourceOptions, Typing
from .cluster import connect_source, find_partitions


class RegisteredSchemas:
    """The schemas of a cluster, in its topic of schemas or at a registry. Raises `ConfigError` for an envelope in
    record headers, which values do not have."""

    def __init__(self, client: ClusterClient, typing: Typing, plugins: tuple[str, ...]) -> None:
        self.envelope: Envelope = plugin_host(plugins).envelopes.create(typing.envelope)
        if isinstance(self.envelope, HeaderEnvelope):
            raise ConfigError(
                f"klamm.envelope: {typing.envelope} has the schema's id in the header {self.envelope.header}, and "
                "klamm.typed reads and writes ids in values (confluent)"
            )
        self._registry = open_registry(typing.access, lambda: client, _no_coordination)

    def versions(self, topic: str) -> Iterator[RegisteredSchema]:
        """Yields the schemas of the topic's values that can be read, newest first. Raises `SchemaError` if there is
        none, or the newest cannot be read.
        """
        first = True
        for version in self._registry.newest_first(f"{topic}-value"):
            try:
                yield self._registry.read(version)
            except SchemaError as error:
                if first:
                    raise SchemaError(f"topic {topic}: {error}") from error
            first = False
        if first:
            raise SchemaError(f"topic {topic}: no schema is registered as {topic}-value; klamm.typed needs one")

    def writer_of(self, topic: str, prefix: bytes) -> str:
        """Returns the text of the schema that a payload was written with."""
        key = self.envelope.parse(prefix)
        found = self._registry.find(key, f"{topic}-value")
        if found is None:
            raise SchemaError(f"no schema is registered as {describe(key)}")
        return found.text


def _no_coordination() -> Coordination:
    raise AssertionError("Spark registers no schema")


def spark_type(topic: str, avro: AvroType) -> DataType:
    try:
        return from_arrow_type(arrow_type(avro))
    except PySparkException as error:
        raise SchemaError(f"topic {topic}: Spark has no type for its schema: {error}") from error


def value_type(options: SourceOptions, typing: Typing) -> DataType:
    """Returns the type of the values of all topics that are read; raises `SchemaError` if their types differ."""
    with connect_source(options) as client:
        schemas = RegisteredSchemas(client, typing, options.plugins)
        topics = sorted({tp.topic for tp in find_partitions(client, options).partitions})
        kinds = {topic: spark_type(topic, parse_type(next(schemas.versions(topic)).text)) for topic in topics}
    return _one_type(kinds)


def _one_type(kinds: dict[str, DataType]) -> DataType:
    if not kinds:
        raise SchemaError("klamm.typed: no topic is read, so that there is no schema")
    first, *others = kinds.items()
    for topic, kind in others:
        if kind != first[1]:
            raise SchemaError(
                f"topics {first[0]} and {topic} have different schemas; read them separately with klamm.typed"
            )
    return first[1]


class ValueReader:
    """Decodes a topic's payloads to `wanted`, the type of the DataFrame's values."""

    def __init__(self, schemas: RegisteredSchemas, partition: TopicPartition, columns: StructType) -> None:
        self._partition = partition
        self._reader = ColumnReader(
            schemas.envelope.prefix_size,
            partial(schemas.writer_of, partition.topic),
            _reader(schemas, partition.topic, columns["value"].dataType),
        )

    def __call__(self, batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
        """Decodes a batch with the columns `value` and `offset`. Raises `SchemaError`, which names the record that
        cannot be read.
        """
        outcome = self._reader(batch.column("value"))
        if outcome is None:
            raise SchemaError(
                f"topic {self._partition.topic}: its schemas cannot be read into columns; read it without klamm.typed"
            )
        values, error = outcome
        if len(values) < batch.num_rows:
            offset = batch.column("offset")[len(values)].as_py()
            raise SchemaError(f"{self._partition} offset {offset}: {error or 'the value is of another type'}")
        return values if values.type == kind else values.cast(kind)


def _reader(schemas: RegisteredSchemas, topic: str, wanted: DataType) -> AvroType:
    for version in schemas.versions(topic):
        avro = parse_type(version.text)
        if spark_type(topic, avro) == wanted:
            return avro
    raise SchemaError(
        f"topic {topic}: no version of its schema has the type of the DataFrame; make the DataFrame again"
    )


class TypedStructs:
    """Encodes structs by the newest version of each topic's schema; a `klamm.hadoop.spark.writing.Values`."""

    def __init__(self, schemas: RegisteredSchemas) -> None:
        self._schemas = schemas
        self._writers: dict[str, tuple[Serializer, ArrowSerializer | None]] = {}

    def rows(self, topic: str, table: pa.RecordBatch) -> Rows:
        """Returns the encoded rows. Raises `SchemaError`, which names the first row that does not match the schema."""
        if topic not in self._writers:
            newest = next(self._schemas.versions(topic))
            prefix = self._schemas.envelope.prefix(newest)
            serialize = row_writer(topic, parse(newest.text), prefix)
            self._writers[topic] = serialize, _columnar(newest.text, prefix)
        serialize, arrow = self._writers[topic]
        (found,) = read_rows(topic, table, None, None, serialize, arrow, typed=True)
        return found


def _columnar(text: str, prefix: bytes) -> ColumnWriter | None:
    try:
        return ColumnWriter(parse_type(text), prefix)
    except SchemaError:  # a type that contains itself
        return None
