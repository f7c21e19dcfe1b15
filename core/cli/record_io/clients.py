"""The settings of the clients of `klamm produce` and `klamm consume`, and the conversion of values to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from json.scanner import make_scanner
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pydantic_core import from_json

from ...client.typed import SharedCoordination, TypedValues
from ...config.servers import servers_of
from ...config.settings import Settings
from ...errors import KlammError
from ...interfaces.serde import (
    DocumentsDeserializer,
    DocumentsSerializer,
    JsonColumnsSerde,
    JsonSerde,
    Serializer,
    headers_of,
)
from ...records.record import Headers
from ..options import settings_of

JsonParser = Callable[["str | bytes"], Any]
"""Parses a document, given as text or as UTF-8. Raises `ValueError`."""
F = TypeVar("F")
_MANY: Final = 100_000
"""The number of records whose conversion one by one takes as long as loading pyarrow."""
_FEW: Final = 200
"""The number of records from which on columns are quicker."""

to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode


def client_settings(config: Path, bootstrap: str | None) -> Settings:
    """Returns the file's settings, whose producer and consumer use the cluster that `--bootstrap` or the file names;
    with `--bootstrap` no file is needed.
    """
    settings = settings_of(config, bootstrap)
    servers = {"bootstrap_servers": bootstrap or servers_of(settings)}
    return settings.with_(
        producer=settings.producer.model_copy(update=servers), consumer=settings.consumer.model_copy(update=servers)
    )


class Columnar(Generic[F]):
    """A conversion of many records at once. It is made only after so many records that loading pyarrow pays."""

    def __init__(self, make: Callable[[], F | None]) -> None:
        self._make: Callable[[], F | None] | None = make
        self._made: F | None = None
        self._before = 0

    def of(self, count: int) -> F | None:
        """Returns the conversion for the next `count` records; None: they are converted one by one."""
        if self._before < _MANY:
            self._before += count
            return None
        if count < _FEW:
            return None
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made


class CliValues:
    """The serializers and deserializers of a command's topics, in JSON."""

    def __init__(self, settings: Settings, coordination: SharedCoordination) -> None:
        timeout_s = settings.consumer.request_timeout_ms / 1000
        self._values = TypedValues(settings, settings.consumer.bootstrap_servers, coordination, timeout_s)
        self._settings = settings

    @classmethod
    @contextmanager
    def of(cls, settings: Settings) -> Iterator[CliValues]:
        coordination = SharedCoordination(settings)
        values = cls(settings, coordination)
        try:
            yield values
        finally:
            values._values.close()
            coordination.close()

    def typed(self, topic: str) -> bool:
        return self._settings.serde_name(topic) is not None

    def headers(self, topic: str) -> Headers:
        """Returns the headers that a typed topic's records have."""
        return headers_of(self._values.serializer(topic)) if self.typed(topic) else ()

    def json_serializer(self, topic: str) -> tuple[Serializer, JsonParser]:
        """Returns the serializer of JSON documents of a typed topic, and the parser of these."""
        serde = self._values.serde(topic)
        if not isinstance(serde, JsonSerde):
            return self._values.serializer(topic), json_parser(Decimal)
        serialize, fractions = serde.json_serializer(topic)
        return serialize, json_parser(fractions)

    def row_serializer(self, topic: str, columns: Sequence[str]) -> Serializer:
        """Returns the serializer of a typed topic's CSV rows; raises `SchemaError` if these columns make no value."""
        serde = self._values.serde(topic)
        return serde.row_serializer(topic, columns) if isinstance(serde, JsonSerde) else self._values.serializer(topic)

    def json_deserializer(self, topic: str) -> Callable[[bytes], str] | None:
        """Returns the deserializer to a value's JSON; None for a topic without a serde."""
        serde = self._values.serde(topic)
        if isinstance(serde, JsonSerde):
            return serde.json_deserializer(topic)
        deserialize = self._values.deserializer(topic)
        return None if deserialize is None else lambda data: to_json(deserialize(data))

    def documents_serializer(self, topic: str) -> Columnar[DocumentsSerializer]:
        """Returns what serializes many JSON documents as `json_serializer` does each."""
        return Columnar(lambda: self._columnar(topic, lambda serde: serde.documents_serializer(topic)))

    def documents_deserializer(self, topic: str) -> Columnar[DocumentsDeserializer]:
        """Returns what deserializes many values as `json_deserializer` does each."""
        return Columnar(lambda: self._columnar(topic, lambda serde: serde.documents_deserializer(topic)))

    def _columnar(self, topic: str, make: Callable[[JsonColumnsSerde], F | None]) -> F | None:
        serde = self._values.serde(topic)
        if not isinstance(serde, JsonColumnsSerde):
            return None
        try:
            return make(serde)
        except (ImportError, KlammError):  # pyarrow comes with an extra; a registry may not answer a second time
            return None


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is not JSON; the text "{name}" is read as a float or double')


def json_parser(fractions: type[float] | type[Decimal]) -> JsonParser:
    """Returns a function that parses a JSON document, with fractions as this class. The function raises
    `ValueError`."""
    decoder = json.JSONDecoder(parse_float=fractions, parse_constant=_no_constant)
    scan = make_scanner(decoder)  # type: ignore[arg-type]  # typeshed has another class here

    def parse(document: str | bytes) -> Any:
        text = document if isinstance(document, str) else document.decode()
        try:  # quicker than `decode`, which allows white space around the document
            value, end = scan(text, 0)
        except StopIteration:
            return decoder.decode(text)
        return value if end == len(text) else decoder.decode(text)

    def parse_quickly(document: str | bytes) -> Any:
        try:
            return from_json(document, allow_inf_nan=False)
        except ValueError:  # `parse` accepts halves of surrogate pairs and deeper documents, and has the message
            return parse(document)

    return parse_quickly if fractions is float else parse
