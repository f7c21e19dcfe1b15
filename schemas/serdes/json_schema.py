"""The `json-schema` serde: JSON values or dataclasses in; envelope + JSON text on the wire; JSON values or dataclasses
out. Values are checked by the schema.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from jsonschema import exceptions

from klamm.core.errors import SchemaError
from klamm.core.interfaces.envelope import RegisteredSchema
from klamm.core.interfaces.serde import Deserializer, Serializer

from ..avro.values.dataclass import from_plain
from ..json_schema.schema import JsonSchema, parse
from ..names import JSON
from ..options import JsonSchemaOptions
from .topic_serde import Decode, RegistrySerde, payload_serializer

Check = Callable[[Any], None]
_MISFITS: Final = (TypeError, ValueError, SchemaError)


class JsonSchemaSerde(RegistrySerde[JsonSchemaOptions]):
    schema_type: ClassVar[str] = JSON

    def check_new(self, text: str) -> None:
        parse(text)

    def record_name(self, text: str) -> str:
        document = parse(text, new=False).document
        title = document.get("title") if isinstance(document, dict) else None
        return title if isinstance(title, str) else ""

    def serializer(self, topic: str) -> Serializer:
        """Registers the topic's schema and returns its serializer; raises `SchemaError` if the topic has none, or the
        registry refuses it."""
        registered = self.written_by(topic)
        framing = self.framing(topic, registered)
        check = _check(_schema(registered)) if self.options(topic).json_fail_invalid_schema else None

        def write(value: Any) -> bytes:
            text = compact(value)
            if check is not None:
                check(json.loads(text))
            return text.encode()

        return framing.with_headers(payload_serializer(topic, framing.prefix, write, _MISFITS))

    def json_serializer(self, topic: str) -> tuple[Serializer, type[float]]:
        """Returns the serializer of JSON documents, and the class of their fractions."""
        return self.serializer(topic), float

    def deserializer(self, topic: str) -> Deserializer:
        kind = self.options(topic).load_class(topic)
        return self.reader(topic, partial(self._decoder, topic, None if kind is None else from_plain(kind)))

    def json_deserializer(self, topic: str) -> Deserializer:
        """Returns the deserializer to the JSON of a value; `record.class` is ignored."""
        return self.reader(topic, partial(self._decoder, topic, compact))

    def _decoder(self, topic: str, build: Callable[[Any], Any] | None, written: RegisteredSchema) -> Decode:
        """Values are checked by the topic's own schema if its section has one, else by the writer's."""
        own, options = self._context.formats(topic).schema, self.options(topic)
        schema = parse(own, new=False) if own is not None and not options.schema_references else _schema(written)
        check = _check(schema) if options.json_fail_invalid_schema else None

        def decode(stream: io.BytesIO) -> Any:
            value = json.loads(stream.read().decode(), parse_constant=_no_constant)
            if check is not None:
                check(value)
            return value if build is None else build(value)

        return decode


def _schema(registered: RegisteredSchema) -> JsonSchema:
    return parse(registered.text, dict(registered.references), new=False)


def _check(schema: JsonSchema) -> Check:
    validator = schema.validator

    def check(value: Any) -> None:
        if validator.is_valid(value):
            return
        found = exceptions.best_match(validator.iter_errors(value))
        where = "".join(f"/{part}" for part in found.absolute_path)
        message = " ".join(found.message.split())[:300]
        raise SchemaError(f"field {where}: {message}" if where else message)

    return check


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} {value!r:.100} is no JSON")


compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain).encode


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
