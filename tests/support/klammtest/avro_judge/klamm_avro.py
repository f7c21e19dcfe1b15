"""Klamm's ways to read and write Avro, for one pair of schemas: records, columns, Spark, lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, cast

import pyarrow as pa

from klamm.core.client.producer.arrow import read_rows
from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema, SchemaKey
from klamm.core.interfaces.serde import SerdeContext, TopicFormat
from klamm.core.plugins import plugin_host
from klamm.core.records.partition import TopicPartition
from klamm.hadoop.load.rows import RowFormat, RowMaker
from klamm.hadoop.spark.typed import RegisteredSchemas, TypedStructs, ValueReader, spark_type
from klamm.schemas.avro.parsing import parse_type
from klamm.schemas.options import AvroOptions
from klamm.schemas.registry.registry import SchemaRegistry
from klamm.schemas.registry.subject_schemas import registered
from klamm.schemas.serdes.avro import AvroSerde

PREFIX: Final = b"\0\0\0\0\1"
"""Confluent's envelope with the id 1."""
_WRITER: Final = SchemaKey(schema_id=1)
_ENVELOPE: Final = plugin_host().envelopes.create("confluent")
_STAMP: Final = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class Refused:
    """A payload or value that Klamm refuses. `expected`: by `SchemaError`, as it should."""

    why: str
    expected: bool = True


Outcome = Any
"""A value, or `Refused`."""


def attempt(call: Callable[[], Any]) -> Outcome:
    try:
        return call()
    except SchemaError as error:
        return Refused(str(error))
    except Exception as error:
        return Refused(f"{type(error).__name__}: {error}", expected=False)


class _OneWriter:
    """A registry in which the writer's schema has the id 1."""

    def __init__(self, writer: str) -> None:
        self._writer = registered(1, writer)

    def lookup(self, key: SchemaKey, subject: str) -> RegisteredSchema:
        assert key == _WRITER
        return self._writer

    def register(self, subject: str, text: str, rule: object, **more: object) -> RegisteredSchema:
        return self._writer


class _Versions:
    """`RegisteredSchemas` of one topic: payloads are the writer's, `text` is the newest version."""

    def __init__(self, writer: str, text: str) -> None:
        self._writer, self._text = writer, text
        self.envelope = _ENVELOPE

    def versions(self, topic: str) -> Iterator[RegisteredSchema]:
        return iter([registered(1, self._text)])

    def writer_of(self, topic: str, prefix: bytes) -> str:
        assert prefix == PREFIX
        return self._writer


class KlammAvro:
    """One pair of schemas, given by text."""

    def __init__(self, writer: str, reader: str) -> None:
        self._writer, self._reader = writer, reader
        formats = {"written": writer, "read": reader}

        def topic_format(topic: str) -> TopicFormat:
            return TopicFormat(_ENVELOPE, formats[topic], {})

        def unused() -> Any:
            raise AssertionError("the registry is given")

        context = SerdeContext("127.0.0.1:1", unused, topic_format)
        self._serde = AvroSerde(AvroOptions(), context, cast(SchemaRegistry, _OneWriter(writer)))

    @cached_property
    def _serialize(self) -> Callable[[Any], bytes | None]:
        return self._serde.serializer("written")

    def write_record(self, value: Any) -> Outcome:
        """Returns the payload without its envelope, as `Producer.send` writes it."""
        return attempt(lambda: (self._serialize(value) or b"")[len(PREFIX) :])

    def read_records(self, payloads: Sequence[bytes]) -> list[Outcome]:
        """Returns the values, as `Consumer.poll` has them."""
        return self._read(self._serde.deserializer("read"), payloads)

    def read_back(self, payloads: Sequence[bytes]) -> list[Outcome]:
        """Returns the values as a consumer with the writer's schema has them."""
        return self._read(self._serde.deserializer("written"), payloads)

    def _read(self, deserialize: Callable[[bytes], Any], payloads: Sequence[bytes]) -> list[Outcome]:
        return [attempt(partial(deserialize, PREFIX + raw)) for raw in payloads]

    def read_columns(self, payloads: Sequence[bytes], topic: str = "read") -> list[Outcome] | None:
        """Returns a scalar for each payload, as `poll_arrow` has it; None if it reads record by record."""
        decode = self._serde.arrow_deserializer(topic)
        return None if decode is None else _one_after_another(decode, payloads)

    def write_columns(self, rows: pa.Array) -> Outcome:
        """Returns the payloads of the rows of a table with the column `value`, as `send_arrow` writes them."""
        columnar = self._serde.arrow_serializer("written")

        def write() -> list[bytes]:
            table = pa.table({"value": rows})
            return _payloads(read_rows("written", table, None, None, self._serialize, columnar, typed=True))

        return attempt(write)

    def spark(self) -> SparkTask | Refused:
        return cast(SparkTask | Refused, attempt(partial(SparkTask, self._writer, self._reader)))

    def read_lake(self, payloads: Sequence[bytes]) -> list[Outcome]:
        """Returns a struct for each payload: the columns of its row in a lake."""
        texts = {_WRITER: self._writer}
        made = RowFormat("read", ("dt",), self._reader, texts, "confluent", (), 0, 2 * _STAMP, quarantine=True)
        rows = attempt(lambda: RowMaker(made).rows(_source_batch(payloads)))
        if isinstance(rows, Refused):
            return [rows] * len(payloads)
        fields = made.fields()
        structs = pa.StructArray.from_arrays([rows.column(f.name) for f in fields], fields=list(fields))
        errors = rows.column("_error").to_pylist()
        return [Refused(why) if why else structs[i] for i, why in enumerate(errors)]


class SparkTask:
    """What a task of Spark calls for `klamm.typed`, without Spark."""

    def __init__(self, writer: str, reader: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructField, StructType

        self._writer, self._reader = writer, reader
        columns = StructType([StructField("value", spark_type("read", parse_type(reader)))])
        self._kind = to_arrow_type(columns["value"].dataType, timezone="UTC")
        schemas = cast(RegisteredSchemas, _Versions(writer, reader))
        self._read = ValueReader(schemas, TopicPartition("read", 0), columns)

    def read(self, payloads: Sequence[bytes]) -> list[Outcome]:
        """Returns a scalar for each payload."""
        whole = attempt(lambda: list(self._decode(payloads)))
        if not isinstance(whole, Refused):
            return cast(list[Outcome], whole)
        return [attempt(partial(self._one, raw)) for raw in payloads]

    def _one(self, payload: bytes) -> pa.Scalar:
        return self._decode([payload])[0]

    def _decode(self, payloads: Sequence[bytes]) -> pa.Array:
        values = pa.array([PREFIX + raw for raw in payloads], pa.binary())
        offsets = pa.array(range(len(values)), pa.int64())
        return self._read(pa.RecordBatch.from_arrays([values, offsets], names=["value", "offset"]), self._kind)

    @staticmethod
    def write(writer: str, rows: pa.Array) -> Outcome:
        """Returns the payloads of rows that have the type of `rows` in Spark."""
        structs = TypedStructs(cast(RegisteredSchemas, _Versions(writer, writer)))
        return attempt(
            lambda: _payloads([structs.rows("written", pa.RecordBatch.from_arrays([rows], names=["value"]))])
        )


def _payloads(found: Sequence[Any]) -> list[bytes]:
    return [(rows.prefix + raw)[len(PREFIX) :] for rows in found for raw in rows.values.to_pylist()]


def _one_after_another(
    decode: Callable[[pa.Array], tuple[pa.Array, Any] | None], payloads: Sequence[bytes]
) -> list[Outcome] | None:
    """Decodes all payloads; after a bad one the rest."""
    found: list[Outcome] = []
    while len(found) < len(payloads):
        rest = pa.array([PREFIX + raw for raw in payloads[len(found) :]], pa.binary())
        outcome = attempt(partial(decode, rest))
        if isinstance(outcome, Refused):
            found.append(outcome)
        elif outcome is None:
            return None
        else:
            values, error = outcome
            found += list(values)
            if error is not None:
                found.append(Refused(str(error)))
    return found


def _source_batch(payloads: Sequence[bytes]) -> pa.RecordBatch:
    rows = len(payloads)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(rows, pa.binary()),
            "value": pa.array([PREFIX + raw for raw in payloads], pa.binary()),
            "partition": pa.array([0] * rows, pa.int32()),
            "offset": pa.array(range(rows), pa.int64()),
            "timestamp": pa.array([_STAMP] * rows, pa.timestamp("us", tz="UTC")),
            "error": pa.nulls(rows, pa.string()),
            "endOffset": pa.nulls(rows, pa.int64()),
        }
    )
