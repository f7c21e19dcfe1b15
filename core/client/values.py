"""Typed values and keys: what `send` is given becomes bytes."""

from __future__ import annotations

import threading
from typing import Any

from klamm.core.config.settings import Settings
from klamm.core.errors import SchemaError
from klamm.core.seams.coordination import Coordination
from klamm.core.seams.serde import Deserializer, Serde, SerdeContext, Serializer

RAW = (bytes, bytearray, memoryview)


class Serdes:
    """The serdes of one client, each made when a topic first needs it; thread-safe. `close` ends what they opened."""

    def __init__(self, settings: Settings, bootstrap_servers: str) -> None:
        self._settings = settings
        self._context = SerdeContext(bootstrap_servers, self._open_coordination, settings.topic_format)
        self._lock = threading.RLock()  # a serde that is being made may ask for the coordination
        self._serdes: dict[str, Serde] = {}
        self._coordination: Coordination | None = None

    def serializer(self, topic: str) -> Serializer:
        """By the topic's serde; without one bytes and str (as UTF-8) are taken as they are."""
        serde = self._serde(topic)
        return serde.serializer(topic) if serde is not None else _raw_serializer(topic)

    def deserializer(self, topic: str) -> Deserializer:
        """By the topic's serde; without one values stay bytes."""
        serde = self._serde(topic)
        return serde.deserializer(topic) if serde is not None else lambda data: data

    def close(self) -> None:
        with self._lock:
            for serde in self._serdes.values():
                serde.close()
            self._serdes.clear()
            if self._coordination is not None:
                self._coordination.close()
                self._coordination = None

    def _serde(self, topic: str) -> Serde | None:
        name = self._settings.serde_name(topic)
        if name is None:
            return None
        with self._lock:
            if name not in self._serdes:
                self._serdes[name] = self._settings.make_serde(name, self._context)
            return self._serdes[name]

    def _open_coordination(self) -> Coordination:
        with self._lock:
            if self._coordination is None:
                coordination = self._settings.make_coordination()
                coordination.start()
                self._coordination = coordination
            return self._coordination


def key_bytes(topic: str, key: Any) -> bytes | None:
    """bytes as they are, str as UTF-8, int as its decimal digits (what Kafka's tools show); None stays None."""
    kind = key.__class__
    if kind is bytes:
        given: bytes = key
        return given
    if kind is str:
        text: str = key
        return text.encode()
    if key is None:
        return None
    if isinstance(key, RAW):
        return bytes(key)
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key).encode("ascii")
    raise SchemaError(f"topic {topic}: a key is bytes, str or int, not {kind.__name__}")


def _raw_serializer(topic: str) -> Serializer:
    def serialize(value: Any) -> bytes | None:
        if value is None or value.__class__ is bytes:
            raw: bytes | None = value
            return raw
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, RAW):
            return bytes(value)
        raise SchemaError(
            f"topic {topic}: a value is bytes or str, not {type(value).__name__}; "
            f"for typed values name a schema in topics.{topic}.schema"
        )

    return serialize
