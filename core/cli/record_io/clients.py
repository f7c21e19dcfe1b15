"""The settings of the clients of `klamm produce` and `klamm consume`, and the conversion of values to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from json.scanner import make_scanner
from pathlib import Path
from typing import Any, Final

from ...client.typed import SharedCoordination, TypedValues
from ...config.servers import servers_of
from ...config.settings import Settings
from ...interfaces.serde import JsonSerde, Serializer, headers_of
from ...records.record import Headers
from ..options import settings_of

__all__ = ["CliValues", "JsonParser", "client_settings", "json_parser", "to_json"]

JsonParser = Callable[[str], Any]

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


def _no_constant(name: str) -> Any:
    raise ValueError(f'{name} is not JSON; the text "{name}" is read as a float or double')


def json_parser(fractions: type[float] | type[Decimal]) -> JsonParser:
    """Returns a function that parses a document, and its fractions to this class. It raises `ValueError`."""
    decoder = json.JSONDecoder(parse_float=fractions, parse_constant=_no_constant)
    scan = make_scanner(decoder)  # type: ignore[arg-type]  # typeshed has another class here

    def parse(text: str) -> Any:
        try:  # quicker than `decode`, which allows white space around the document
            value, end = scan(text, 0)
        except StopIteration:
            return decoder.decode(text)
        return value if end == len(text) else decoder.decode(text)

    return parse
