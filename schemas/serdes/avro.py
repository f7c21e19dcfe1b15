"""The `avro` serde: dicts or dataclasses in, envelope + Avro bytes on the wire, dicts or dataclasses out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import Envelope, RegisteredSchema
from klamm.core.interfaces.serde import Deserializer, Serializer

from ..avro.logical import Convert
from ..avro.model import AvroType
from ..avro.parsing import ParsedSchema, check_new, parse
from ..avro.values.dataclass import field_names, from_plain
from ..avro.values.json_values import cell_reader, fractions, json_reader, json_text
from ..avro.values.reading import value_reader
from ..avro.values.writing import value_writer
from ..names import AVRO
from ..options import AvroOptions
from .topic_serde import Decode, RegistrySerde, in_header, payload_serializer

if TYPE_CHECKING:  # pyarrow comes with an extra
    from ..columns.json_documents import DocumentReader, DocumentWriter
    from ..columns.reader import ColumnReader
    from ..columns.writer import ColumnWriter


class AvroSerde(RegistrySerde[AvroOptions]):
    schema_type: ClassVar[str] = AVRO

    def check_new(self, text: str) -> None:
        check_new(text)

    def record_name(self, text: str) -> str:
        return parse(text).root.name

    def serializer(self, topic: str) -> Serializer:
        """Registers the topic's schema and returns its serializer; raises `SchemaError` if the topic has none, or the
        registry refuses it.
        """
        return self._serializer(topic)[0]

    def json_serializer(self, topic: str) -> tuple[Serializer, type[float] | type[Decimal]]:
        """Returns the serializer of JSON documents (`json_values`), and the class of their fractions."""
        serialize, schema = self._serializer(topic, json_reader)
        return serialize, fractions(schema.root)

    def row_serializer(self, topic: str, columns: Sequence[str]) -> Serializer:
        """Returns the serializer of rows of CSV. Raises `SchemaError` if the columns are not those of the schema."""
        return self._serializer(topic, lambda avro: cell_reader(avro, columns))[0]

    def _serializer(
        self, topic: str, reader: Callable[[AvroType], Convert] | None = None
    ) -> tuple[Serializer, ParsedSchema]:
        registered = self.written_by(topic)
        framing = self.framing(topic, registered)
        schema = parse(registered.text)
        convert = None if reader is None else reader(schema.root)
        return framing.with_headers(row_writer(topic, schema, framing.prefix, convert)), schema

    def arrow_serializer(self, topic: str) -> ColumnWriter | None:
        """Returns the serializer for the columns of a table; None if columns cannot have the schema's types. Needs
        pyarrow.
        """
        from ..avro.parsing import parse_type
        from ..columns.writer import ColumnWriter

        registered = self.written_by(topic)
        try:
            return ColumnWriter(parse_type(registered.text), self.framing(topic, registered).prefix)
        except SchemaError:  # a type that contains itself
            return None

    def arrow_deserializer(self, topic: str) -> ColumnReader | None:
        """Returns the deserializer to columns; `record.class` is ignored. None also for an envelope in headers, which
        columns do not have. Needs pyarrow."""
        from ..avro.parsing import parse_type
        from ..columns.reader import ColumnReader

        said = self._context.formats(topic)
        if in_header(said.envelope):
            return None
        try:
            reader = None if said.schema is None else parse_type(self._own_text(topic, said.schema))
        except SchemaError:  # as above
            return None
        return ColumnReader(said.envelope.prefix_size, self._written_text(topic, said.envelope), reader)

    def documents_serializer(self, topic: str) -> DocumentWriter | None:
        """Returns the serializer of many JSON documents. Needs pyarrow."""
        from ..columns.json_documents import DocumentWriter

        registered = self.written_by(topic)
        return DocumentWriter.of(parse(registered.text).root, self.framing(topic, registered).prefix)

    def documents_deserializer(self, topic: str) -> DocumentReader | None:
        """Returns the deserializer of many values to JSON; None for an envelope in headers. Needs pyarrow."""
        from ..columns.json_documents import DocumentReader

        said = self._context.formats(topic)
        if in_header(said.envelope):
            return None
        own = self._own(topic)
        return DocumentReader(
            said.envelope.prefix_size, self._written_text(topic, said.envelope), None if own is None else own.root
        )

    def deserializer(self, topic: str) -> Deserializer:
        kind = self.options(topic).load_class(topic)
        return self.reader(topic, partial(_decoder, reader=self._own(topic), kind=kind, finish=None))

    def json_deserializer(self, topic: str) -> Deserializer:
        """Returns the deserializer to the JSON of a value (`json_values`); `record.class` is ignored."""
        return self.reader(topic, partial(_decoder, reader=self._own(topic), kind=None, finish=json_text))

    def _written_text(self, topic: str, envelope: Envelope) -> Callable[[bytes], str]:
        """Returns a function from a payload's prefix to the text of the schema that it was written with."""
        subject = self.readers_subject(topic)

        def schema_text(prefix: bytes) -> str:
            try:
                return self.registry(topic).lookup(envelope.parse(prefix), subject).text
            except SchemaError as error:
                raise SchemaError(f"topic {topic}: {error}") from error

        return schema_text

    def _own(self, topic: str) -> ParsedSchema | None:
        """Returns the schema of the topic's section, by which values are read."""
        said = self._context.formats(topic)
        return None if said.schema is None else parse(self._own_text(topic, said.schema))

    def _own_text(self, topic: str, text: str) -> str:
        """Returns the schema of the topic's section with what it refers to written out."""
        options = self.options(topic)
        if not options.schema_references:
            return text
        found = self.registry(topic).registered(
            self.subject(topic), text, references=options.schema_references, normalize=options.normalize_schemas
        )
        return found.text


def row_writer(topic: str, schema: ParsedSchema, prefix: bytes, convert: Convert | None = None) -> Serializer:
    """Returns the serializer of single values for a registered schema. `convert` is called first with each value."""
    put_value = value_writer(schema.root)

    def write(value: Any) -> bytes:
        pieces: list[bytes] = []
        put_value(value if convert is None else convert(value), pieces.append)
        return b"".join(pieces)

    return payload_serializer(topic, prefix, write)


def _decoder(
    schema: RegisteredSchema,
    reader: ParsedSchema | None,
    kind: type | None,
    finish: Callable[[AvroType], Convert] | None,
) -> Decode:
    """Returns the decoder of a writer's schema. `finish` makes the function that is called with each value of a
    type."""
    writer = parse(schema.text).root
    wanted = writer if reader is None else reader.root
    decode = value_reader(writer, wanted, name_records=kind is not None)
    if finish is not None:
        convert = finish(wanted)
        return lambda stream: convert(decode(stream))
    if kind is None:
        return decode
    _check_class(kind, wanted)
    build = from_plain(kind)
    return lambda stream: build(decode(stream))


def _check_class(kind: type, avro: AvroType) -> None:
    """Raises one clear error before the first record fails."""
    if avro.kind != "record":
        raise SchemaError(f"{kind.__name__} cannot hold values that are not records")
    unknown = {field.name for field in avro.fields} - set(field_names(kind) or ())
    if unknown:
        raise SchemaError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
