"""The common part of the serdes of all formats: a topic's schema is registered, and payloads name it by the topic's
envelope, in front of them or in a record header.
"""

from __future__ import annotations

import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, TypeGuard, TypeVar

from klamm.core.client.cluster_client import ClusterClient
from klamm.core.client.factory import ClusterAccess, open_client
from klamm.core.errors import ConfigError, RegistryUnavailableError, SchemaError
from klamm.core.interfaces.envelope import Envelope, HeaderEnvelope, RegisteredSchema
from klamm.core.interfaces.serde import Deserializer, SerdeContext, Serializer, TopicFormat
from klamm.core.plugins import plugin_host
from klamm.core.records.record import Headers

from ..comparing import OldVersion, Requirement, messages
from ..compatibility import Compatibility
from ..formats import parsed
from ..options import RegistryAccess, RegistryOptions
from ..registry.registry import SchemaRegistry, open_registry
from ..registry.subject_schemas import FORMATS, describe

_MISFITS: Final = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, ArithmeticError)
_BROKEN: Final = (*_MISFITS, EOFError, StopIteration, RecursionError, MemoryError, SchemaError)
Decode = Callable[[io.BytesIO], Any]
"""Reads a value from where the payload begins to its end."""
_ACCESS: Final = set(RegistryAccess.model_fields)
Decoder = Callable[[RegisteredSchema], Decode]
O = TypeVar("O", bound=RegistryOptions)  # noqa: E741


@dataclass(frozen=True)
class Framing:
    """How a topic's records name their schema: by a prefix of the value, or by headers."""

    prefix: bytes = b""
    headers: Headers = ()

    def with_headers(self, serialize: Serializer) -> Serializer:
        return SerializerWithHeaders(serialize, self.headers) if self.headers else serialize


def payload_serializer(
    topic: str,
    prefix: bytes,
    write: Callable[[Any], bytes],
    misfits: tuple[type[Exception], ...] = (SchemaError,),
) -> Serializer:
    """Returns the serializer of a topic: `write` makes the payload of a value after `prefix`, and raises one of
    `misfits` for a value that does not fit its schema."""

    def serialize(value: Any) -> bytes | None:
        if value is None:
            return None
        try:
            return prefix + write(value)
        except misfits as error:
            raise SchemaError(f"topic {topic}: the value does not fit its schema: {error}") from error
        except RecursionError as error:
            raise SchemaError(f"topic {topic}: the value is nested too deeply") from error

    return serialize


@dataclass(frozen=True)
class SerializerWithHeaders:
    """A `HeaderSerializer`."""

    serialize: Serializer
    headers: Headers

    def __call__(self, value: Any) -> bytes | None:
        return self.serialize(value)


class RegistrySerde(ABC, Generic[O]):
    """One per client; thread-safe. `registry` may be given, else that of a topic's section is opened on first use."""

    schema_type: ClassVar[str]

    def __init__(self, options: O, context: SerdeContext, registry: SchemaRegistry | None = None) -> None:
        self._options = type(options)  # a topic's section has the keys of all topics, too
        self._context = context
        self._given = registry
        self._lock = threading.Lock()
        self._opened: dict[str, SchemaRegistry] = {}

    @abstractmethod
    def check_new(self, text: str) -> None:
        """Raises `SchemaError` if a text is no schema."""

    @abstractmethod
    def record_name(self, text: str) -> str:
        """Returns the full name of a schema's record, for the subject; "" if it has none."""

    def row_serializer(self, topic: str, columns: Sequence[str]) -> Serializer:
        """Returns the serializer of rows of CSV. Raises `SchemaError` if the schema gives its cells no types."""
        del columns
        raise SchemaError(f"topic {topic}: rows of CSV need an Avro schema; the topic's is {FORMATS[self.schema_type]}")

    def registry(self, topic: str) -> SchemaRegistry:
        """Returns the registry of a topic's section; sections that name the same one share it."""
        if self._given is not None:
            return self._given
        options = self.options(topic)
        access = options.model_dump_json(include=_ACCESS)
        with self._lock:
            if access not in self._opened:
                self._opened[access] = open_registry(
                    options,
                    self._client,
                    self._context.coordination,
                    schema_type=self.schema_type,
                    timeout_s=self._context.timeout_s,
                )
            return self._opened[access]

    def _client(self) -> ClusterClient:
        return open_client(ClusterAccess(self._context.bootstrap_servers, plugin_host().codec_table()), "schemas")

    def close(self) -> None:
        with self._lock:
            for registry in (self._given, *self._opened.values()):
                if registry is not None:
                    registry.close()
            self._opened.clear()

    def options(self, topic: str) -> O:
        return self._options.model_validate(dict(self._context.formats(topic).options))

    def check(self, topic: str) -> None:
        """Raises `SchemaError` when the file's schema is not a schema. Connects to nothing: for `klamm config check`. A
        schema with references is not checked, since only the registry knows these."""
        said = self._context.formats(topic)
        if said.schema is not None and not self.options(topic).schema_references:
            self.check_new(said.schema)

    def subject(self, topic: str) -> str:
        """Returns the subject of a topic's values. Raises `ConfigError` if the strategy needs a schema."""
        said, options = self._context.formats(topic), self.options(topic)
        by_name = options.subject is None and options.value_subject_name_strategy != "TopicNameStrategy"
        name = self.record_name(said.schema) if by_name and said.schema is not None else ""
        return options.subject_of(topic, name)

    def readers_subject(self, topic: str) -> str:
        """Returns the subject; "" if it is not known, which a reader by id does not need."""
        try:
            return self.subject(topic)
        except ConfigError:
            return ""

    def written_by(self, topic: str) -> RegisteredSchema:
        """Returns the schema that the topic's values are written with, once it is registered. Raises `SchemaError` if
        the topic has none, or the registry refuses it.
        """
        said, options = self._context.formats(topic), self.options(topic)
        if said.schema is None and not options.use_latest_version:
            raise SchemaError(f"topic {topic}: no schema to write with; name its file in topics.{topic}.schema")
        subject = self.subject(topic)
        registry = self.registry(topic)
        try:
            if said.schema is None:
                schema = registry.latest(subject)
            elif options.auto_register_schemas:
                schema = registry.register(
                    subject,
                    said.schema,
                    options.compatibility,
                    references=options.schema_references,
                    normalize=options.normalize_schemas,
                )
            elif options.use_latest_version:
                schema = registry.latest(subject)
                if options.latest_compatibility_strict:
                    self._check_latest(subject, schema, said.schema)
            else:
                schema = registry.registered(
                    subject, said.schema, references=options.schema_references, normalize=options.normalize_schemas
                )
            registry.lookup(said.envelope.parse(self._prefix(said.envelope, schema)), subject)
        except SchemaError as error:
            raise SchemaError(f"topic {topic}: {error}") from error
        except RegistryUnavailableError as error:
            raise RegistryUnavailableError(f"topic {topic}, subject {subject}: {error}") from error
        return schema

    def framing(self, topic: str, schema: RegisteredSchema, more: bytes = b"") -> Framing:
        """Returns how records name the schema; `more`: the format's own bytes after the envelope's prefix."""
        envelope = self._context.formats(topic).envelope
        prefix = self._prefix(envelope, schema) + more
        return Framing(headers=((envelope.header, prefix),)) if in_header(envelope) else Framing(prefix)

    def _prefix(self, envelope: Envelope, schema: RegisteredSchema) -> bytes:
        prefix = envelope.prefix(schema)
        if len(prefix) != envelope.prefix_size:
            raise SchemaError(f"the envelope {envelope.name} does not name {FORMATS[schema.schema_type]} schemas")
        return prefix

    def _check_latest(self, subject: str, latest: RegisteredSchema, text: str) -> None:
        newest = parsed(self.schema_type, latest.text, dict(latest.references), new=False)
        own = OldVersion(0, self.schema_type, text, dict(latest.references))
        why = messages(self.schema_type, newest, [own], Requirement(Compatibility.BACKWARD))
        if why:
            raise SchemaError(
                f"the newest version of {subject}, id {latest.schema_id}, cannot read what the topic's schema writes: "
                f"{why[0]} (latest.compatibility.strict)"
            )

    def reader(self, topic: str, decoder: Decoder) -> Deserializer:
        """Returns the deserializer of a topic. `decoder` is called once for each schema."""
        said = self._context.formats(topic)
        kind = HeaderReader if in_header(said.envelope) else PayloadReader
        return kind(topic, self.readers_subject(topic), said, lambda: self.registry(topic), decoder)


def in_header(envelope: Envelope) -> TypeGuard[HeaderEnvelope]:
    return isinstance(envelope, HeaderEnvelope)


class PayloadReader:
    """The deserializer of one topic. The schema of a prefix is looked up once."""

    def __init__(
        self,
        topic: str,
        subject: str,
        said: TopicFormat,
        registry: Callable[[], SchemaRegistry],
        decoder: Decoder,
    ) -> None:
        self._topic = topic
        self._subject = subject
        self._envelope = said.envelope
        self._size = said.envelope.prefix_size
        self._registry = registry
        self._decoder = decoder
        self._by_prefix: dict[bytes, Decode] = {}

    def __call__(self, data: bytes | None) -> Any:
        return None if data is None else self._read(data, self._size)

    def _read(self, data: bytes, size: int) -> Any:
        """Reads a payload that stands after a prefix of `size` bytes."""
        decode = self._by_prefix.get(data[:size]) or self._look_up(data, size)
        stream = io.BytesIO(data)
        stream.seek(size)
        try:
            value = decode(stream)
        except _BROKEN as error:
            what = "is truncated" if isinstance(error, EOFError) else "does not fit its schema"
            named = describe(self._envelope.parse(data))
            why = " ".join(str(error).split())
            raise SchemaError(
                f"topic {self._topic}: the payload {what} ({named}){': ' + why if why else ''}"
            ) from error
        left = len(data) - stream.tell()
        if left:
            raise SchemaError(f"topic {self._topic}: {left} bytes left over after the payload")
        return value

    def _look_up(self, data: bytes, size: int) -> Decode:
        try:
            schema = self._registry().lookup(self._envelope.parse(data), self._subject)
            decode = self._decoder(schema)
        except SchemaError as error:
            raise SchemaError(f"topic {self._topic}: {error}") from error
        self._by_prefix[bytes(data[:size])] = decode
        return decode


class HeaderReader(PayloadReader):
    """A `HeaderDeserializer`. A record without the header has the prefix in its value."""

    _envelope: HeaderEnvelope

    def __call__(self, data: bytes | None) -> Any:
        return self.with_headers(data, ())

    def with_headers(self, data: bytes | None, headers: Headers) -> Any:
        if data is None:
            return None
        named = next((value for name, value in headers if name == self._envelope.header), None)
        if named is not None:
            data = named + data  # a format's own part, such as Protobuf's message indexes, is in the header too
        try:
            size = self._envelope.size_of(data)
        except SchemaError as error:
            raise SchemaError(f"topic {self._topic}: {error}") from error
        return self._read(data, size)
