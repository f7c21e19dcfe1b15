"""The settings of the clients of `klamm produce` and `klamm consume`, and the conversion of values to and from JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from ...client.typed import SharedCoordination, TypedValues
from ...config.servers import servers_of
from ...config.settings import Settings
from ...interfaces.serde import Deserializer, JsonSerde, Serializer
from ..options import settings_of

__all__ = ["CliValues", "client_settings", "parse_json", "to_json"]

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
        self._values = TypedValues(settings, settings.consumer.bootstrap_servers, coordination)
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

    def json_serializer(self, topic: str) -> Serializer:
        """Returns the serializer of JSON documents of a typed topic."""
        serde = self._values.serde(topic)
        return serde.json_serializer(topic) if isinstance(serde, JsonSerde) else self._values.serializer(topic)

    def row_serializer(self, topic: str, columns: Sequence[str]) -> Serializer:
        """Returns the serializer of a typed topic's CSV rows; raises `SchemaError` if these columns make no value."""
        serde = self._values.serde(topic)
        return serde.row_serializer(topic, columns) if isinstance(serde, JsonSerde) else self._values.serializer(topic)

    def json_deserializer(self, topic: str) -> Deserializer | None:
        """Returns the deserializer to JSON; None for a topic without a serde."""
        serde = self._values.serde(topic)
        return serde.json_deserializer(topic) if isinstance(serde, JsonSerde) else self._values.deserializer(topic)


def parse_json(text: str) -> Any:
    """Parses a document; fractions are `Decimal`. Raises `ValueError`."""
    return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
