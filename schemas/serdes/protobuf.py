"""The `protobuf` serde: dicts, dataclasses or messages in; envelope, message indexes and a message on the wire; dicts,
dataclasses or messages of a generated class out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError, EncodeError, Message

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema
from klamm.core.interfaces.serde import Deserializer, Serializer

from .. import message_indexes
from ..avro.values.dataclass import from_plain
from ..names import PROTOBUF
from ..options import ProtobufOptions
from ..protobuf.messages import Messages
from ..protobuf.schema import parse
from ..protobuf.values import fill, plain
from .topic_serde import Decode, RegistrySerde, payload_serializer

_MISFITS: Final = (SchemaError, EncodeError, DecodeError)
_Fill = Callable[[Message, Any], None]
_Finish = Callable[[Message, Messages], Any]


class ProtobufSerde(RegistrySerde[ProtobufOptions]):
    schema_type: ClassVar[str] = PROTOBUF

    def check_new(self, text: str) -> None:
        parse(text)

    def record_name(self, text: str) -> str:
        messages = parse(text, new=False).files.file[-1]
        package = f"{messages.package}." if messages.package else ""
        return package + messages.message_type[0].name if messages.message_type else ""

    def subject(self, topic: str) -> str:
        options = self.options(topic)
        return options.subject_of(topic, options.message) if options.message else super().subject(topic)

    def serializer(self, topic: str) -> Serializer:
        """Registers the topic's schema and returns its serializer; raises `SchemaError` if the topic has none, or the
        registry refuses it."""
        return self._serializer(topic, lambda _: fill)

    def json_serializer(self, topic: str) -> tuple[Serializer, type[float]]:
        """Returns the serializer of JSON documents, in Protobuf's own JSON form, and the class of their fractions."""
        return self._serializer(topic, _from_json), float

    def _serializer(self, topic: str, filling: Callable[[Messages], _Fill]) -> Serializer:
        registered = self.written_by(topic)
        try:
            messages = _messages(registered)
            place = messages.place(self.options(topic).message)
        except SchemaError as error:
            raise SchemaError(f"topic {topic}: {error}") from error
        kind, fill_message = messages.at(place), filling(messages)
        framing = self.framing(topic, registered, message_indexes.encode(place))

        def write(value: Any) -> bytes:
            message = kind()
            fill_message(message, value)
            return bytes(message.SerializeToString())

        return framing.with_headers(payload_serializer(topic, framing.prefix, write, _MISFITS))

    def deserializer(self, topic: str) -> Deserializer:
        kind = self.options(topic).load_any_class(topic)
        if kind is not None and issubclass(kind, Message):
            return self.reader(topic, partial(_decoder, partial(_generated, kind)))
        kind = self.options(topic).load_class(topic)
        build = None if kind is None else from_plain(kind)
        return self.reader(
            topic, partial(_decoder, lambda message, _: plain(message) if build is None else build(plain(message)))
        )

    def json_deserializer(self, topic: str) -> Deserializer:
        """Returns the deserializer to the JSON of a value, in Protobuf's own form; `record.class` is ignored."""
        return self.reader(topic, partial(_decoder, _to_json))


def _messages(registered: RegisteredSchema) -> Messages:
    return Messages(parse(registered.text, dict(registered.references), new=False))


def _decoder(finish: _Finish, written: RegisteredSchema) -> Decode:
    messages = _messages(written)

    def decode(stream: io.BytesIO) -> Any:
        message = messages.at(message_indexes.decode(stream))()
        try:
            message.MergeFromString(stream.read())
        except DecodeError as error:
            raise ValueError(f"not a message {message.DESCRIPTOR.full_name}: {error}") from error
        return finish(message, messages)

    return decode


def _generated(kind: type[Message], message: Message, _: Messages) -> Message:
    name, wanted = message.DESCRIPTOR.full_name, kind.DESCRIPTOR.full_name
    if name != wanted:
        raise SchemaError(f"it is a message {name}, and record.class is {wanted}")
    made = kind()
    made.MergeFromString(message.SerializePartialToString())
    return made


def _from_json(messages: Messages) -> _Fill:
    def write(message: Message, document: Any) -> None:
        try:
            json_format.ParseDict(document, message, descriptor_pool=messages.pool)
        except (json_format.Error, TypeError, ValueError, AttributeError) as error:
            raise SchemaError(" ".join(str(error).split())[:300]) from error

    return write


def _to_json(message: Message, messages: Messages) -> str:
    found = json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=messages.pool,
    )
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))
