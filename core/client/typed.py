"""Typed values for producers and consumers: the serde of each topic, as the YAML names it, made when first needed."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from ..config.sections.client import ClientConfig
from ..config.settings import Settings
from ..errors import KlammError, SchemaError
from ..interfaces.coordination import Coordination
from ..interfaces.serde import (
    ArrowDeserializer,
    ArrowSerde,
    ArrowSerializer,
    Deserializer,
    Serde,
    SerdeContext,
    Serializer,
)


def bootstrap_text(config: ClientConfig) -> str:
    """Returns `host:port,…` as `ClusterClient` takes it."""
    return ",".join(map(str, config.bootstrap()))


class SharedCoordination:
    """The one session for all parts of a client that need the coordination; opened on first use. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._coordination: Coordination | None = None
        self._closed = False

    def __call__(self) -> Coordination:
        """Returns the started coordination. Raises `CoordinationUnavailableError` in one line if it cannot be
        started.
        """
        with self._lock:
            if self._closed:
                raise KlammError("the client is closed")
            if self._coordination is None:
                coordination = self._settings.make_coordination()
                coordination.start()
                self._coordination = coordination
            return self._coordination

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._coordination is not None:
                self._coordination.close()
                self._coordination = None


class TypedValues:
    """The serdes of one client, by topic. Thread-safe; `close` when done. `timeout_s`: see `SerdeContext`."""

    def __init__(
        self, settings: Settings, bootstrap: str, coordination: SharedCoordination, timeout_s: float = 30.0
    ) -> None:
        self._settings = settings
        self._context = SerdeContext(bootstrap, coordination, settings.topic_format, timeout_s)
        self._lock = threading.Lock()
        self._serdes: dict[str, Serde] = {}
        self._arrow_serializers: dict[str, ArrowSerializer | None] = {}
        self._arrow_deserializers: dict[str, ArrowDeserializer | None] = {}

    def serializer(self, topic: str) -> Serializer:
        """Returns the serializer of the topic's values; without a serde it takes bytes unchanged, and text as UTF-8."""
        serde = self.serde(topic)
        return _raw(topic) if serde is None else serde.serializer(topic)

    def deserializer(self, topic: str) -> Deserializer | None:
        """Returns the deserializer; None if values are returned as bytes."""
        serde = self.serde(topic)
        return None if serde is None else serde.deserializer(topic)

    def arrow_serializer(self, topic: str) -> ArrowSerializer | None:
        """Returns the serializer for columns of the topic's values, made once; None if values are serialized one by
        one.
        """
        if topic not in self._arrow_serializers:
            serde = self.serde(topic)
            made = serde.arrow_serializer(topic) if isinstance(serde, ArrowSerde) else None
            self._arrow_serializers[topic] = made
        return self._arrow_serializers[topic]

    def arrow_deserializer(self, topic: str) -> ArrowDeserializer | None:
        """Returns the deserializer for columns of the topic's values, made once; None if values are deserialized one by
        one.
        """
        if topic not in self._arrow_deserializers:
            serde = self.serde(topic)
            made = serde.arrow_deserializer(topic) if isinstance(serde, ArrowSerde) else None
            self._arrow_deserializers[topic] = made
        return self._arrow_deserializers[topic]

    def serde(self, topic: str) -> Serde | None:
        name = self._settings.serde_name(topic)
        if name is None:
            return None
        with self._lock:
            if name not in self._serdes:
                self._serdes[name] = self._settings.make_serde(name, self._context)
            return self._serdes[name]

    def close(self) -> None:
        with self._lock:
            for serde in self._serdes.values():
                with contextlib.suppress(KlammError):  # a serde that does not close must not keep the others open
                    serde.close()
            self._serdes.clear()


def _raw(topic: str) -> Serializer:
    def serialize(value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise SchemaError(
            f"topic {topic!r}: cannot send {type(value).__name__}; give bytes or text, or set `topics.{topic}.schema`"
        )

    return serialize
