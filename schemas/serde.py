"""The `avro` serde: dicts or dataclasses in, envelope + Avro bytes on the wire, dicts or dataclasses out."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from klamm.core.client.factory import ClusterAccess, open_client
from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import Envelope, RegisteredSchema
from klamm.core.interfaces.serde import Deserializer, SerdeContext, Serializer, TopicFormat
from klamm.core.plugins import plugin_host

from .dataclass import field_names, from_plain
from .json_values import cell_reader, fractions, json_reader, json_text
from .log import TopicSchemaLog
from .logical import Convert
from .model import AvroType
from .options import AvroOptions
from .parsing import ParsedSchema, check_new, parse
from .reading import value_reader
from .registry import SchemaRegistry
from .writing import value_writer

if TYPE_CHECKING:  # pyarrow comes with an extra
    from .columns.reader import ColumnReader
    from .columns.writer import ColumnWriter

_MISFITS = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, ArithmeticError)
_BROKEN = (*_MISFITS, EOFError, StopIteration, RecursionError, MemoryError, SchemaError)
Decode = Callable[[io.BytesIO], Any]


def open_registry(bootstrap_servers: str, context: SerdeContext, topic: str) -> SchemaRegistry:
    """Returns the registry of a cluster, with a client of its own."""
    client = open_client(ClusterAccess(bootstrap_servers, plugin_host().codec_table()), "schemas")
    return SchemaRegistry(TopicSchemaLog(client, topic), context.coordination)


class AvroSerde:
    """One per client; thread-safe. `registry` may be given, else it is opened on first use."""

    def __init__(self, options: AvroOptions, context: SerdeContext, registry: SchemaRegistry | None = None) -> None:
        self._options = options
        self._context = context
        self._registry = registry
        self._lock = threading.Lock()

    @property
    def registry(self) -> SchemaRegistry:
        with self._lock:
            if self._registry is None:
                topic = self._options.schemas_topic
                self._registry = open_registry(self._context.bootstrap_servers, self._context, topic)
            return self._registry

    def close(self) -> None:
        with self._lock:
            if self._registry is not None:
                self._registry.close()

    def check(self, topic: str) -> None:
        """Raises `SchemaError` when the file's schema is not a schema. Connects to nothing: for `klamm config
        check`."""
        said = self._context.formats(topic)
        if said.schema is not None:
            check_new(said.schema)

    def serializer(self, topic: str) -> Serializer:
        """Registers the topic's schema and returns its serializer; raises `SchemaError` if the topic has none, or the
        registry refuses it.
        """
        registered, envelope = self._registered(topic)
        return row_writer(topic, parse(registered.text), envelope.prefix(registered))

    def json_serializer(self, topic: str) -> tuple[Serializer, type[float] | type[Decimal]]:
        """Returns the serializer of JSON documents (`json_values`), and the class of their fractions."""
        registered, envelope = self._registered(topic)
        schema = parse(registered.text)
        return row_writer(topic, schema, envelope.prefix(registered), json_reader(schema.root)), fractions(schema.root)

    def row_serializer(self, topic: str, columns: Sequence[str]) -> Serializer:
        """Returns the serializer of rows of CSV. Raises `SchemaError` if the columns are not those of the schema."""
        registered, envelope = self._registered(topic)
        schema = parse(registered.text)
        return row_writer(topic, schema, envelope.prefix(registered), cell_reader(schema.root, columns))

    def arrow_serializer(self, topic: str) -> ColumnWriter | None:
        """Returns the serializer for the columns of a table; None if columns cannot have the schema's types. Needs
        pyarrow.
        """
        from .columns.avrotype import parse_type
        from .columns.writer import ColumnWriter

        registered, envelope = self._registered(topic)
        try:
            return ColumnWriter(parse_type(registered.text), envelope.prefix(registered))
        except SchemaError:  # a type that contains itself
            return None

    def arrow_deserializer(self, topic: str) -> ColumnReader | None:
        """Returns the deserializer to columns; `record.class` is ignored. Needs pyarrow."""
        from .columns.avrotype import parse_type
        from .columns.reader import ColumnReader

        said = self._context.formats(topic)

        subject = _options(said).subject_of(topic)

        def schema_text(prefix: bytes) -> str:
            try:
                return self.registry.lookup(said.envelope.parse(prefix), subject).text
            except SchemaError as error:
                raise SchemaError(f"topic {topic}: {error}") from error

        try:
            reader = None if said.schema is None else parse_type(said.schema)
        except SchemaError:  # as above
            return None
        return ColumnReader(said.envelope.prefix_size, schema_text, reader)

    def _registered(self, topic: str) -> tuple[RegisteredSchema, Envelope]:
        said = self._context.formats(topic)
        if said.schema is None:
            raise SchemaError(f"topic {topic}: no schema to write with; name its file in topics.{topic}.schema")
        options = _options(said)
        subject = options.subject_of(topic)
        try:
            registered = self.registry.register(subject, said.schema, options.compatibility)
            self.registry.lookup(said.envelope.parse(said.envelope.prefix(registered)), subject)
            return registered, said.envelope
        except SchemaError as error:
            raise SchemaError(f"topic {topic}: {error}") from error

    def deserializer(self, topic: str) -> Deserializer:
        said = self._context.formats(topic)
        kind = _options(said).load_class(topic)
        reader = None if said.schema is None else parse(said.schema)
        return _Reader(topic, _options(said).subject_of(topic), said.envelope, self, reader, kind)

    def json_deserializer(self, topic: str) -> Deserializer:
        """Returns the deserializer to the JSON of a value (`json_values`); `record.class` is ignored."""
        said = self._context.formats(topic)
        reader = None if said.schema is None else parse(said.schema)
        return _Reader(topic, _options(said).subject_of(topic), said.envelope, self, reader, None, json_text)


def _options(said: TopicFormat) -> AvroOptions:
    return AvroOptions.model_validate(dict(said.options))


def row_writer(topic: str, schema: ParsedSchema, prefix: bytes, convert: Convert | None = None) -> Serializer:
    """Returns the serializer of single values for a registered schema. `convert` is called first with each value."""
    write = value_writer(schema.root)

    def serialize(value: Any) -> bytes | None:
        if value is None:
            return None
        pieces = [prefix]
        try:
            write(value if convert is None else convert(value), pieces.append)
        except SchemaError as error:
            raise SchemaError(f"topic {topic}: the value does not fit its schema: {error}") from error
        except RecursionError as error:
            raise SchemaError(f"topic {topic}: the value is nested too deeply") from error
        return b"".join(pieces)

    return serialize


class _Reader:
    """The deserializer of one topic. The schema of a prefix is looked up once. `finish` makes the function that is
    called with each value of a type."""

    def __init__(
        self,
        topic: str,
        subject: str,
        envelope: Envelope,
        serde: AvroSerde,
        reader: ParsedSchema | None,
        kind: type | None,
        finish: Callable[[AvroType], Convert] | None = None,
    ) -> None:
        self._topic = topic
        self._subject = subject
        self._envelope = envelope
        self._size = envelope.prefix_size
        self._serde = serde
        self._reader = reader
        self._kind = kind
        self._finish = finish
        self._by_prefix: dict[bytes, Decode] = {}

    def __call__(self, data: bytes | None) -> Any:
        if data is None:
            return None
        decode = self._by_prefix.get(data[: self._size]) or self._look_up(data)
        stream = io.BytesIO(data)
        stream.seek(self._size)
        try:
            value = decode(stream)
        except _BROKEN as error:
            what = "is truncated" if isinstance(error, EOFError) else "does not fit its schema"
            why = " ".join(str(error).split())
            raise SchemaError(f"topic {self._topic}: the payload {what}{': ' + why if why else ''}") from error
        left = len(data) - stream.tell()
        if left:
            raise SchemaError(f"topic {self._topic}: {left} bytes left over after the payload")
        return value

    def _look_up(self, data: bytes) -> Decode:
        try:
            schema = self._serde.registry.lookup(self._envelope.parse(data), self._subject)
        except SchemaError as error:
            raise SchemaError(f"topic {self._topic}: {error}") from error
        decode = self._decoder(schema)
        self._by_prefix[bytes(data[: self._size])] = decode
        return decode

    def _decoder(self, schema: RegisteredSchema) -> Decode:
        writer = parse(schema.text).root
        wanted = writer if self._reader is None else self._reader.root
        decode = value_reader(writer, wanted, name_records=self._kind is not None)
        if self._finish is not None:
            finish = self._finish(wanted)
            return lambda stream: finish(decode(stream))
        if self._kind is None:
            return decode
        self._check_class(self._kind, wanted)
        build = from_plain(self._kind)
        return lambda stream: build(decode(stream))

    def _check_class(self, kind: type, avro: AvroType) -> None:
        """Raises one clear error before the first record fails."""
        if avro.kind != "record":
            raise SchemaError(f"topic {self._topic}: {kind.__name__} cannot hold values that are not records")
        unknown = {field.name for field in avro.fields} - set(field_names(kind) or ())
        if unknown:
            raise SchemaError(f"topic {self._topic}: {kind.__name__} has no field {', '.join(sorted(unknown))}")
